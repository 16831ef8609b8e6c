# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""What `quantize` prints: formats, agreement by draft step, acceptance, and the checks."""

from __future__ import annotations

import math
from collections import Counter

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tensorrt_llm_ext.checkpoints.checks.base import Finding, Status
from tensorrt_llm_ext.quantizing.acceptance import Ratio
from tensorrt_llm_ext.quantizing.fixer import FixReport
from tensorrt_llm_ext.quantizing.report import QuantizeReport


def show_report(report: QuantizeReport) -> None:
    """Prints a report for people."""
    console = Console()
    console.print(_summary(report))
    console.print(_format_table(report))
    if report.agreement:
        console.print(_agreement_table(report))
    if report.acceptance:
        console.print(_acceptance_table(report))
    _show_findings(console, report.findings)
    for note in report.notes:
        console.print(f"[cyan]note:[/cyan] {escape(note)}", soft_wrap=True)


def show_fix(report: FixReport) -> None:
    """Prints what was mended."""
    console = Console()
    for change in report.changes:
        console.print(f"[green]mended:[/green] {escape(change)}", soft_wrap=True)
    if not report.changes:
        console.print("There was nothing to mend; the files were rewritten in clean form.")
    left = ", ".join(report.export.exclude) or "nothing"
    console.print(f"{escape(str(report.export.out))}: not quantized: {escape(left)}")
    _show_findings(console, report.export.findings)


def _summary(report: QuantizeReport) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_header=False)
    table.add_column(style="bold")
    table.add_column()
    texts, judged = report.num_texts
    share = report.nbytes_after / report.nbytes_before
    rows = {
        "recipe": report.recipe,
        "quantizer": report.quantizer,
        "format": report.algo,
        "texts": f"{texts} calibrated on, {judged} judged by"
        + ("" if report.is_held_out else " (the same ones)"),
        "size": f"{_megabytes(report.nbytes_before)} -> {_megabytes(report.nbytes_after)} "
        f"({share:.0%})",
        "read per draft step": f"{_megabytes(report.budget_before.total_recurrent)} -> "
        f"{_megabytes(report.budget_after.total_recurrent)}",
        "not quantized": ", ".join(report.exclude) or "nothing",
        "took": f"{report.seconds:.0f} s",
    }
    training = report.distillation
    if training is not None:
        rows["training"] = (
            f"{training.updates} updates in {training.seconds:.0f} s, KL {training.loss_before:.4f}"
            f" -> {training.loss_after:.4f}" + ("" if training.is_kept else " (dropped)")
        )
    for name, value in rows.items():
        table.add_row(name, escape(value))
    return table


def _megabytes(nbytes: float) -> str:
    return f"{nbytes / 1e6:,.2f} MB"


def _format_table(report: QuantizeReport) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("module", no_wrap=True)
    table.add_column("format")
    statistics = report.statistics
    steps = 0 if statistics is None else len(next(iter(statistics.per_step.values())))
    for step in range(steps):
        table.add_column(f"|x| at step {step + 1}", justify="right")
    for module, kind in report.formats.items():
        values = () if statistics is None else statistics.per_step.get(module, ())
        shown = [f"{value:.3g}" if value else "-" for value in values]
        style = "" if kind == "float" else "bold"
        table.add_row(escape(module), kind, *(shown or ["-"] * steps), style=style)
    return table


def _agreement_table(report: QuantizeReport) -> Table:
    where = "on texts kept apart" if report.is_held_out else "on the same texts"
    table = Table(box=box.SIMPLE_HEAD, title=f"beside the float draft, {where}")
    table.add_column("run as")
    first = next(iter(report.agreement.values()))
    for step in first.steps:
        table.add_column(f"top-1 at {step.step}", justify="right")
    for step in first.steps:
        table.add_column(f"KL at {step.step}", justify="right")
    table.add_column("length", justify="right")
    float_length = f"{first.float_acceptance_length:.3f}"
    table.add_row("float", *["1.000"] * len(first.steps), *["0"] * len(first.steps), float_length)
    for label, agreement in report.agreement.items():
        table.add_row(
            label,
            *(f"{step.top1:.3f}" for step in agreement.steps),
            *(f"{step.kl:.4f}" for step in agreement.steps),
            f"{agreement.acceptance_length:.3f}",
        )
    return table


def _acceptance_table(report: QuantizeReport) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title="on the embedded engine, greedy")
    for name in ("run as", "acceptance length", "of the float draft's", "per position", "steps"):
        table.add_column(name, justify="left" if name == "run as" else "right")
    for label, run in report.acceptance.items():
        length = run.stats.acceptance_length
        positions = " ".join(f"{share:.2f}" for share in run.stats.per_position)
        table.add_row(
            label,
            "-" if length is None else f"{length:.3f}",
            _ratio(run.ratio),
            positions,
            str(run.stats.num_steps),
        )
    return table


def _ratio(ratio: Ratio | None) -> str:
    if ratio is None:
        return "-"
    if not math.isfinite(ratio.low):
        return f"{ratio.value:.3f} (too few prompts for an interval)"
    return f"{ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"


def _show_findings(console: Console, findings: tuple[Finding, ...]) -> None:
    for finding in findings:
        if finding.status in (Status.WARNING, Status.ERROR):
            style = "yellow" if finding.status is Status.WARNING else "bold red"
            text = f"[{style}]{finding.check_id}:[/{style}] {escape(finding.message)}"
            console.print(text, soft_wrap=True)
    counts = Counter(finding.status.value for finding in findings)
    listing = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    console.print(f"checks: {listing}")
