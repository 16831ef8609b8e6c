# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""What `doctor` prints for people."""

from __future__ import annotations

from collections import Counter
from typing import Final

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tensorrt_llm_ext.checkpoints.checks import ALL_CHECKS
from tensorrt_llm_ext.checkpoints.checks.base import Status
from tensorrt_llm_ext.diagnostics.doctor import DoctorReport
from tensorrt_llm_ext.planning.budget import StepBudget
from tensorrt_llm_ext.planning.hosts import EXTENSION_STATUS

_STYLES: Final = {
    Status.PASSED: "green",
    Status.INFO: "cyan",
    Status.NOT_APPLICABLE: "dim",
    Status.NOT_CHECKED: "dim",
    Status.WARNING: "bold yellow",
    Status.ERROR: "bold red",
}


def show_report(report: DoctorReport) -> None:
    """Prints the pair, every check, the bytes, the hosts and a verdict."""
    console = Console()
    console.print(f"[bold]target[/bold] {escape(report.target)}", highlight=False)
    console.print(f"[bold]draft[/bold]  {escape(report.draft)}", highlight=False)
    for line in _facts(report):
        console.print(line, highlight=False)
    console.print(_checks_table(report))
    if report.budget is not None:
        console.print("[bold]Bytes that drafting reads[/bold], weights only")
        console.print(_budget_table(report.budget, report.kv_bytes))
    if report.hosts:
        console.print(
            "[bold]TensorRT-LLM versions[/bold], from their sources, [bold]not run[/bold]"
        )
        console.print(_hosts_table(report))
    _show_verdict(console, report)


def _facts(report: DoctorReport) -> list[str]:
    lines = []
    if report.layout:
        evidence = "; ".join(report.layout["evidence"])
        lines.append(f"layout: {escape(report.layout['title'])} ({escape(evidence)})")
    if report.quantization:
        target, draft = report.quantization["target"], report.quantization["draft"]
        lines.append(f"weights: target {escape(target)}; draft {escape(draft)}")
    if report.captured is not None:
        captured = report.captured
        lines.append(
            f"captures after target layers [bold]{captured['after_layers']}[/bold] (0-based), that "
            f"is boundaries [bold]{captured['boundaries']}[/bold]; {escape(captured['evidence'])}"
        )
    return lines


def _checks_table(report: DoctorReport) -> Table:
    titles = {check.check_id: check.title for check in ALL_CHECKS}
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("check", no_wrap=True)
    table.add_column("what", min_width=18)
    table.add_column("result", no_wrap=True)
    table.add_column("found", ratio=1, overflow="fold")
    for finding in report.findings:
        style = _STYLES[finding.status]
        table.add_row(
            finding.check_id,
            titles.get(finding.check_id, "reading the files"),
            f"[{style}]{finding.status.value}[/{style}]",
            escape(finding.message),
        )
    return table


def _budget_table(budget: StepBudget, kv_bytes: dict[str, int] | None) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("part")
    table.add_column("bytes", justify="right")
    table.add_row("draft step: layers and norms", _bytes(budget.body))
    table.add_row(f"draft step: head ({budget.head_share:.0%} of the step)", _bytes(budget.head))
    table.add_row("once per round: fc", _bytes(budget.fc))
    if kv_bytes is not None:
        width = f"{kv_bytes['bytes_per_value']} byte(s) per value"
        for name in ("without_draft", "with_draft"):
            words = name.replace("_", " ")
            table.add_row(f"KV cache per token {words}, {width}", _bytes(kv_bytes[name]))
    return table


def _bytes(value: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:.2f} {unit}"
    return f"{value:.0f} B"


def _hosts_table(report: DoctorReport) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("version", no_wrap=True)
    table.add_column("as released", no_wrap=True)
    table.add_column(f"with this extension ({EXTENSION_STATUS})")
    # Folded, not cut: a reference must be readable to be looked up.
    table.add_column("why not, and what to mind", ratio=1, overflow="fold")
    for verdict in report.hosts:
        # A dict: what stops the stock host may stop the extension too.
        notes = dict.fromkeys((*verdict.reasons, *verdict.extension_reasons, *verdict.cautions))
        table.add_row(
            verdict.era,
            _yes(verdict.can_serve),
            _yes(verdict.with_extension),
            escape("\n".join(f"• {note}" for note in notes)),
        )
    return table


def _yes(value: bool) -> str:
    return "[green]yes[/green]" if value else "[red]no[/red]"


def _show_verdict(console: Console, report: DoctorReport) -> None:
    counts = Counter(finding.status for finding in report.findings)
    errors, warnings = counts[Status.ERROR], counts[Status.WARNING]
    summary = f"{counts[Status.PASSED]} passed, {warnings} warning(s), {errors} error(s)"
    left = counts[Status.NOT_CHECKED]
    if left:
        summary += f", {left} not checked"
    style = "red" if errors else "yellow" if warnings else "green"
    words = "not fit to run" if errors else "look again" if warnings else "nothing wrong found"
    console.print(f"[bold {style}]{words}[/bold {style}]: {summary}")
    if not errors:
        console.print(
            "Files cannot show everything: `trtllm-ext canary` measures whether these settings fit "
            "the weights.",
            style="dim",
        )
