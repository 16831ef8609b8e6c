# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""What `convert` prints: everything that was changed, and what to know about it."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tensorrt_llm_ext.checkpoints.checks.base import Status
from tensorrt_llm_ext.checkpoints.convert import ConvertReport
from tensorrt_llm_ext.checkpoints.convert_plan import TensorChange

_MAX_VALUE = 60


def show_report(report: ConvertReport) -> None:
    """Prints what became of names, layer ids, config and vocabulary, and the warnings."""
    console = Console()
    console.print(_summary(report))
    if report.tensors:
        console.print(_tensor_table(report.tensors))
    console.print(_config_table(report))
    if report.vocabulary is not None:
        console.print(_vocabulary_line(report))
    for warning in report.warnings:
        console.print(f"[yellow]warning:[/yellow] {escape(warning)}", soft_wrap=True)
    for finding in report.findings:
        if finding.status in (Status.WARNING, Status.ERROR):
            style = "yellow" if finding.status is Status.WARNING else "bold red"
            text = f"[{style}]{finding.check_id}:[/{style}] {escape(finding.message)}"
            console.print(text, soft_wrap=True)
    for note in report.notes:
        console.print(f"[cyan]note:[/cyan] {escape(note)}", soft_wrap=True)
    _show_verdict(console, report)


def _summary(report: ConvertReport) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_header=False)
    table.add_column(style="bold")
    table.add_column()
    before = "none" if report.ids_before is None else str(list(report.ids_before))
    rows = {
        "from": f"{report.layout} layout",
        "to": f"{report.receiver}, {report.out}",
        "captured boundaries": f"{list(report.boundaries)} ({report.boundaries_evidence})",
        "layer ids": f"{before} -> {list(report.ids_after)}",
        "tensors": f"{report.num_tensors}, {report.nbytes / 1e6:,.1f} MB",
    }
    if report.exclude:
        rows["not quantized"] = ", ".join(report.exclude)
    for name, value in rows.items():
        table.add_row(name, escape(value))
    return table


def _tensor_table(changes: tuple[TensorChange, ...]) -> Table:
    """Renames by what their names begin with, then every tensor that was added, dropped or cut."""
    table = Table(box=box.SIMPLE_HEAD)
    for title in ("tensor before", "after", "why"):
        table.add_column(title, overflow="fold")
    renames = Counter(_beginnings(change) for change in changes if not change.reason)
    for (before, after), count in sorted(renames.items()):
        table.add_row(escape(before), escape(after), f"renamed: {count}")
    for change in changes:
        if change.reason:
            after = escape(change.after) or "[red]dropped[/red]"
            before = escape(change.before) or "[green]new[/green]"
            table.add_row(before, after, escape(change.reason))
    return table


def _beginnings(change: TensorChange) -> tuple[str, str]:
    """What two names begin with, up to where they end alike."""
    before, after = change.before.split("."), change.after.split(".")
    while len(before) > 1 and len(after) > 1 and before[-1] == after[-1]:
        before.pop()
        after.pop()
    if before[-1] == after[-1]:
        before, after = before[:-1], after[:-1]
    if change.before.split(".")[-1] == change.after.split(".")[-1]:
        before, after = [*before, "*"], [*after, "*"]
    return ".".join(before), ".".join(after)


def _config_table(report: ConvertReport) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for title in ("config.json", "before", "after"):
        table.add_column(title, overflow="fold")
    for key, value in report.config["added"].items():
        table.add_row(escape(key), "", f"[green]{_value(value)}[/green]")
    for key, (before, after) in report.config["changed"].items():
        table.add_row(escape(key), _value(before), f"[green]{_value(after)}[/green]")
    for key in report.config["removed"]:
        table.add_row(escape(key), "[red]removed[/red]", "")
    if not table.row_count:
        table.add_row("unchanged", "", "")
    return table


def _value(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return escape(text if len(text) <= _MAX_VALUE else f"{text[: _MAX_VALUE - 1]}…")


def _vocabulary_line(report: ConvertReport) -> str:
    choice = report.vocabulary
    assert choice is not None
    lost = "" if choice.coverage_before == 1 else f" ({choice.coverage_before:.2%} before)"
    unseen = (
        f"; [yellow]{choice.num_unseen} of them never counted[/yellow]" if choice.num_unseen else ""
    )
    return (
        f"Draft vocabulary: {len(choice.target_ids)} of {choice.vocab_size} tokens cover "
        f"[bold]{choice.coverage:.2%}[/bold]{lost} of {escape(choice.source)}{unseen}."
    )


def _show_verdict(console: Console, report: ConvertReport) -> None:
    counts = Counter(finding.status.value for finding in report.findings)
    listing = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    same = "the same draft, bit for bit" if report.is_same_draft else "another draft by intent"
    if report.errors:
        ids = ", ".join(finding.check_id for finding in report.errors)
        console.print(f"[bold red]The draft fails {ids}, as it did before.[/bold red]")
    console.print(
        f"[bold green]verified[/bold green]: read back as {same}; checks: {listing or 'none'}; "
        f"hash {report.canonical_hash[:16]}",
        soft_wrap=True,
    )
