# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""What `doctor --trtllm` prints of the installed TensorRT-LLM for people."""

from __future__ import annotations

from typing import Final

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tensorrt_llm_ext.planning.hosts import ERA_TITLES
from tensorrt_llm_ext.trtllm.capture import PLAN_ERAS
from tensorrt_llm_ext.trtllm.surface import HostReport, Level

_STYLES: Final = {Level.ERROR: "bold red", Level.WARNING: "bold yellow", Level.INFO: "cyan"}


def show_host(report: HostReport) -> None:
    """Prints version, era, what is missing, differs, and would be patched."""
    console = Console()
    if report.version is None:
        console.print("[bold red]TensorRT-LLM is not installed[/bold red] in this environment.")
        for name in report.missing:
            console.print(f"  {escape(name)}", highlight=False)
        return
    title = ERA_TITLES[PLAN_ERAS[report.era]] if report.era else "unknown"
    console.print(
        f"TensorRT-LLM [bold]{escape(report.version)}[/bold], by its features era "
        f"[bold]{report.era}[/bold] ({title})",
        highlight=False,
    )
    found = sum(place is not None for place in report.symbols.values())
    absent = [name for name, place in report.symbols.items() if place is None]
    console.print(f"{found} of {len(report.symbols)} symbols found", highlight=False)
    for name in absent:
        console.print(f"  not in this version: {escape(name)}", highlight=False)
    for name in report.missing:
        console.print(f"  [bold red]missing[/bold red] {escape(name)}", highlight=False)
    if not report.missing:
        console.print("  [green]all names that an MLA Eagle3 draft needs are there[/green]")
    _show_differences(console, report)
    console.print("[bold]patched when registered[/bold]" if report.patches else "nothing patched")
    for name, why in report.patches.items():
        console.print(f"  {escape(name)}: {escape(why)}", highlight=False)


def _show_differences(console: Console, report: HostReport) -> None:
    if not report.differences:
        console.print("no difference from what was recorded of this era")
        return
    console.print("[bold]differences[/bold] from what was recorded of this era")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("level", no_wrap=True)
    table.add_column("what", overflow="fold")
    table.add_column("found", ratio=1, overflow="fold")
    for difference in report.differences:
        style = _STYLES[difference.level]
        table.add_row(
            f"[{style}]{difference.level.value}[/{style}]",
            escape(difference.name),
            escape(difference.message),
        )
    console.print(table)
