# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""`trtllm-ext bench e2e`: load with and without the draft, and where speculation stops paying."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tensorrt_llm_ext.cli.options import AsJson, MaxDraftLen, integers
from tensorrt_llm_ext.cli.output import finish
from tensorrt_llm_ext.errors import ConfigError

if TYPE_CHECKING:
    from tensorrt_llm_ext.benchmarking.e2e.embedded import E2EReport

EPILOG = (
    "Tokens with and without the draft are compared first; near-ties are counted, and any other "
    "difference ends the command with exit code 1. Both sides run in turns.\n\n"
    "[bold]Speed-up[/bold] is L / r: the acceptance length over the time of a step with the draft "
    "in steps without it. Steps are taken apart into verify, accept, extend and chain; on CUDA "
    "they run without graphs for that, so compare r with the speed of a server that has them."
)


def e2e(
    model: Annotated[Path, typer.Argument(help="Folder of the target.")],
    draft: Annotated[Path, typer.Option(help="Folder of the draft.")],
    max_draft_len: MaxDraftLen = 3,
    concurrency: Annotated[str, typer.Option(help="Closed loop: requests at once.")] = "1,2,4,8",
    rates: Annotated[
        str | None, typer.Option(help="Open loop: arrivals per second, as 1,2.5.")
    ] = None,
    num_requests: Annotated[int, typer.Option(min=2, help="Per load.")] = 16,
    max_tokens: Annotated[int, typer.Option(min=2)] = 48,
    dataset: Annotated[
        Path | None, typer.Option(help="JSON lines, as of bench acceptance.")
    ] = None,
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 ...")] = "auto",
    device: Annotated[str | None, typer.Option(help="cpu or cuda.")] = None,
    plot: Annotated[Path | None, typer.Option(help="PNG.")] = None,
    as_json: AsJson = False,
) -> None:
    """Serve under load with and without the draft, and say where the draft stops paying."""
    from tensorrt_llm_ext.benchmarking.acceptance.dataset import read_questions
    from tensorrt_llm_ext.benchmarking.e2e.embedded import Plan, bench_e2e
    from tensorrt_llm_ext.benchmarking.runs import encode_all
    from tensorrt_llm_ext.cli.prompts import tiny_kimi
    from tensorrt_llm_ext.configs.sampling import SamplingParams
    from tensorrt_llm_ext.engine.loading import load_models

    questions = read_questions(dataset or tiny_kimi("heldout.jsonl"), num_requests)
    texts = [question.text or "" for question in questions]
    if not all(texts):
        raise ConfigError('bench e2e takes texts: give "prompt" or "question" in each line.')
    models = load_models(model, draft=draft, dtype=dtype, device=device)
    plan = Plan(
        prompts=encode_all(models, texts),
        sampling=SamplingParams(max_tokens=max_tokens, temperature=0.0),
        concurrencies=integers(concurrency, "--concurrency") or (1,),
        rates=_numbers(rates),
        max_draft_len=max_draft_len,
    )
    report = bench_e2e(models, plan, lambda what: typer.echo(f"... {what}", err=True))
    if plot is not None:
        _plot(report, plot)
    code = 1 if report.text == "different" else 0
    finish(report, _show, as_json=as_json, exit_code=code)


def _numbers(text: str | None) -> tuple[float, ...]:
    if text is None:
        return ()
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise ConfigError(f"--rates is {text!r}, expected numbers as 1,2.5.") from error
    if min(found) <= 0:
        raise ConfigError(f"--rates is {text!r}, expected numbers above 0.")
    return found


def _show(report: E2EReport) -> None:
    from rich.console import Console
    from rich.table import Table

    from tensorrt_llm_ext.benchmarking.e2e.verdict import explain, verdict

    console = Console()
    note = f", {report.num_divergent} requests" if report.num_divergent else ""
    console.print(f"text with and without the draft: [bold]{report.text}[/bold]{note}")
    if report.text == "different":
        console.print("nothing is timed of a wrong result")
        return
    table = Table()
    for title in ("at once", "tokens/s", "without", "speed-up", "TTFT p50", "ITL p50", "p95"):
        table.add_column(title, justify="right")
    for level in report.levels:
        fast, slow = level.with_draft, level.without
        table.add_row(
            str(level.concurrency),
            f"{fast['tokens_per_s']:.0f}",
            f"{slow['tokens_per_s']:.0f}",
            f"{level.speedup:.2f}",
            f"{fast['ttft_s']['p50'] * 1e3:.0f} ms",
            f"{fast['itl_s']['p50'] * 1e3:.1f} ms",
            f"{fast['itl_s']['p95'] * 1e3:.1f} ms",
        )
    console.print(table)
    phases = Table(title="a step with the draft")
    for title in ("at once", "verify", "accept", "extend", "chain"):
        phases.add_column(title, justify="right")
    for concurrency, seconds in report.phase_seconds.items():
        phases.add_row(str(concurrency), *(f"{s * 1e3:.2f} ms" for s in seconds.values()))
    console.print(phases)
    for row in report.open_loop:
        fast, slow = row["with_draft"], row["without"]
        console.print(
            f"{row['rate']:g} arrivals per second: e2e p95 {fast['e2e_s']['p95']:.2f} s with the "
            f"draft, {slow['e2e_s']['p95']:.2f} s without",
            highlight=False,
        )
    for level in report.levels:
        console.print(explain(level), highlight=False)
    console.print(f"[bold]{verdict(report.levels)}[/bold]", highlight=False)


def _plot(report: E2EReport, path: Path) -> None:
    try:
        import matplotlib as mpl
    except ImportError as error:
        hint = "pip install 'tensorrt-llm-ext[plot]'"
        raise ConfigError(f"--plot needs matplotlib: {hint}") from error
    mpl.use("Agg")
    from matplotlib import pyplot

    at = [level.concurrency for level in report.levels]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4))
    left.plot(at, [level.speedup for level in report.levels], marker="o", label="measured")
    told = [(level.length or 0) / (level.step_ratio or 1) for level in report.levels]
    left.plot(at, told, marker="x", linestyle="--", label="L / r")
    left.axhline(1.0, color="grey")
    left.set(xlabel="requests at once", ylabel="speed-up")
    left.legend()
    bottom = [0.0] * len(at)
    for phase in ("verify", "accept", "extend", "chain"):
        values = [report.phase_seconds[c][phase] * 1e3 for c in at]
        right.bar([str(c) for c in at], values, bottom=bottom, label=phase)
        bottom = [a + b for a, b in zip(bottom, values, strict=True)]
    right.set(xlabel="requests at once", ylabel="ms per step")
    right.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
