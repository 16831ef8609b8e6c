# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""What `canary` prints."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tensorrt_llm_ext.diagnostics.canary.verdict import CanaryReport, Trial, Verdict

_STYLES = {
    Verdict.DECLARED_FITS: "bold green",
    Verdict.OTHER_FITS: "bold yellow",
    Verdict.NOTHING_FITS: "bold red",
}
_MARKS = {True: "[green]ok[/green]", False: "[red]wrong[/red]", None: "[dim]unknown[/dim]"}


def show_report(report: CanaryReport) -> None:
    """Prints tables and verdict; a corrected folder's after the draft's own."""
    console = Console()
    _show_one(console, report)
    for note in report.fix_notes:
        console.print(f"[bold]fix[/bold] {escape(note)}")
    if report.fixed is not None:
        console.print(f"\n[bold]The corrected draft in {escape(report.fixed.draft)}[/bold]")
        _show_one(console, report.fixed)


def _show_one(console: Console, report: CanaryReport) -> None:
    agreement = report.declared.agreement
    console.print(
        f"{escape(report.draft)}: {agreement.num_anchors} positions in {report.num_texts} "
        f"text(s), {report.max_draft_len} draft token(s) each; {escape(report.states)}",
        highlight=False,
    )
    console.print(settings_table(report))
    console.print(checks_table(report))
    for problem in report.problems:
        console.print(f"[yellow]the loader refuses it:[/yellow] {escape(problem)}")
    for reason in report.not_tested:
        console.print(f"[dim]not tested: {escape(reason)}[/dim]")
    style = _STYLES[report.verdict]
    console.print(f"[{style}]{escape(report.sentence)}[/{style}]")


def settings_table(report: CanaryReport) -> Table:
    """Returns the settings that were run, the declared one first and then the best."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("setting")
    for title in ("length", "engine", "difference", "per position"):
        table.add_column(title, justify="right", no_wrap=True)
    rest = sorted(report.trials[1:], key=lambda t: -t.agreement.acceptance_length)
    for trial in (report.declared, *rest):
        style = "bold" if trial is report.best else None
        table.add_row(*_cells(trial), style=style)
    return table


def _cells(trial: Trial) -> list[str]:
    agreement, difference = trial.agreement, trial.difference
    shown = "–"  # noqa: RUF001
    if difference is not None:
        shown = f"{difference.mean:+.3f}"
        if difference.high != float("inf"):
            shown += f" ±{difference.high - difference.mean:.3f}"
        shown = f"[yellow]{shown}[/yellow]" if trial.is_better else shown
    replayed = agreement.replayed_length
    return [
        escape(trial.title),
        f"{agreement.acceptance_length:.3f}",
        "–" if replayed is None else f"{replayed:.3f}",  # noqa: RUF001
        shown,
        " ".join(f"{rate:.3f}" for rate in agreement.per_position),
    ]


def checks_table(report: CanaryReport) -> Table:
    """Returns what the weights say."""
    table = Table(box=box.SIMPLE_HEAD)
    for title in ("weights", "", "found"):
        table.add_column(title)
    for check in report.weight_checks:
        table.add_row(escape(check.name), _MARKS[check.is_ok], escape(check.message))
    return table


__all__ = ["checks_table", "settings_table", "show_report"]
