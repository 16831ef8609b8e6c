# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""`trtllm-ext bench acceptance`: how many drafts are accepted, on any engine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tensorrt_llm_ext.cli.options import AsJson, MaxDraftLen
from tensorrt_llm_ext.cli.output import finish
from tensorrt_llm_ext.errors import ConfigError

if TYPE_CHECKING:
    from tensorrt_llm_ext.benchmarking.acceptance.measurement import Measurement
    from tensorrt_llm_ext.benchmarking.acceptance.report import AcceptanceReport

_SERVER, _DATA, _GATE, _RUN = "A server", "Questions", "Gate", "Run and output"

EPILOG = (
    "[bold]Acceptance length[/bold] is 1 + accepted drafts per verify step, pooled over requests; "
    "its 95 % interval resamples whole requests. Position i is the share of steps whose first i "
    "drafts were all accepted.\n\n"
    "[bold]Sources[/bold] of a server, the first that it has: --stats-dir of this package's hook "
    "in trtllm-serve; counts in each response (trtllm-ext serve); vLLM's metrics; SGLang's gauge; "
    "sizes of stream pieces, one request at a time, labelled as an estimate.\n\n"
    "[bold]Exit codes[/bold]: 1 below --min-length or below 95 % of the --baseline of the same "
    "target, draft, drafts, template, host and layout; 2 for bad input."
)


def acceptance(
    model: Annotated[
        Path | None, typer.Argument(help="Folder of the target, for the embedded engine.")
    ] = None,
    draft: Annotated[str | None, typer.Option(help="Folder or name of the draft.")] = None,
    max_draft_len: MaxDraftLen = 3,
    base_url: Annotated[
        str | None, typer.Option(help="Of an OpenAI-compatible server.", rich_help_panel=_SERVER)
    ] = None,
    model_name: Annotated[
        str | None, typer.Option("--model", help="Model's name.", rich_help_panel=_SERVER)
    ] = None,
    api_key: Annotated[str | None, typer.Option(rich_help_panel=_SERVER)] = None,
    stats_dir: Annotated[
        Path | None,
        typer.Option(help="TRTLLM_EXT_ACCEPT_STATS_DIR of the server.", rich_help_panel=_SERVER),
    ] = None,
    layout: Annotated[
        str, typer.Option(help="Of the server, for the baseline.", rich_help_panel=_SERVER)
    ] = "one device",
    host: Annotated[
        str | None, typer.Option(help="Engine, for the baseline.", rich_help_panel=_SERVER)
    ] = None,
    dataset: Annotated[
        Path | None,
        typer.Option(
            help="JSON lines with prompt, messages or question, and category; the example's "
            "held-out problems if not given.",
            rich_help_panel=_DATA,
        ),
    ] = None,
    num_questions: Annotated[int, typer.Option(min=1, rich_help_panel=_DATA)] = 200,
    chat: Annotated[
        bool, typer.Option(help="Ask through the chat template.", rich_help_panel=_DATA)
    ] = False,
    max_tokens: Annotated[int, typer.Option(min=1, rich_help_panel=_DATA)] = 128,
    temperature: Annotated[float, typer.Option(min=0.0, rich_help_panel=_DATA)] = 0.0,
    seed: Annotated[int, typer.Option(min=0, rich_help_panel=_DATA)] = 0,
    concurrency: Annotated[int, typer.Option(min=1, rich_help_panel=_RUN)] = 8,
    baseline: Annotated[Path | None, typer.Option(rich_help_panel=_GATE)] = None,
    min_length: Annotated[float | None, typer.Option(rich_help_panel=_GATE)] = None,
    save_baseline: Annotated[Path | None, typer.Option(rich_help_panel=_GATE)] = None,
    plot: Annotated[Path | None, typer.Option(help="PNG.", rich_help_panel=_RUN)] = None,
    as_json: AsJson = False,
) -> None:
    """Measure acceptance on the embedded engine or on any OpenAI-compatible server."""
    from tensorrt_llm_ext.benchmarking.acceptance import gate, report, suspect
    from tensorrt_llm_ext.benchmarking.acceptance.dataset import as_conversations, read_questions
    from tensorrt_llm_ext.benchmarking.acceptance.published import published_for

    if (model is None) == (base_url is None):
        raise ConfigError("Give the target's folder, or --base-url of a server, one of the two.")
    questions = read_questions(dataset or _problems(), num_questions)
    questions = as_conversations(questions) if chat else questions
    sampling: dict[str, Any] = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed}
    if model is not None:
        if draft is None:
            raise ConfigError("The embedded engine needs --draft, the draft's folder.")
        run = _embedded(model, draft, max_draft_len, concurrency, questions, sampling)
    else:
        from tensorrt_llm_ext.benchmarking.acceptance.remote import Remote, measure_remote

        remote = Remote(
            base_url=base_url or "",
            model=model_name,
            api_key=api_key,
            stats_dir=stats_dir,
            concurrency=concurrency,
        )
        run = measure_remote(remote, questions, **sampling)
        model_name = model_name or remote.model_name()
    target_name = model_name or (model.resolve().name if model else "")
    key = gate.Key(
        target=target_name,
        draft=draft or "unknown",
        draft_len=max_draft_len,
        template=run.has_template,
        host=host or ("embedded" if model else "server"),
        layout=layout,
    )
    made = report.AcceptanceReport(
        key=key,
        measurement=run,
        marks=suspect.judge(run, max_draft_len),
        published=published_for(target_name, draft or "", max_draft_len),
        verdict=gate.check(run, key, baseline, min_length),
    )
    if save_baseline is not None:
        gate.save_baseline(save_baseline, key, run)
    if plot is not None:
        report.plot(made, plot)
    finish(made, _show, as_json=as_json, exit_code=1 if made.verdict.reasons else 0)


def _problems() -> Path:
    from tensorrt_llm_ext.cli.prompts import tiny_kimi

    return tiny_kimi("heldout.jsonl")


def _embedded(
    model: Path,
    draft: str,
    max_draft_len: int,
    batch_size: int,
    questions: Any,
    sampling: dict[str, Any],
) -> Measurement:
    from tensorrt_llm_ext.benchmarking.acceptance.embedded import measure_embedded
    from tensorrt_llm_ext.configs.sampling import SamplingParams
    from tensorrt_llm_ext.engine.llm import LLM

    config = {
        "decoding_type": "Eagle3",
        "max_draft_len": max_draft_len,
        "speculative_model": draft,
    }
    with LLM(model=str(model), speculative_config=config, max_batch_size=batch_size) as llm:
        return measure_embedded(llm, questions, SamplingParams(**sampling))


def _show(report: AcceptanceReport) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console, run = Console(), report.measurement
    kind = " (estimate)" if run.is_estimate else ""
    console.print(f"{len(run.answers)} requests; source: {escape(run.source)}{kind}")
    length = run.length
    if length is None or run.stats is None:
        console.print("acceptance: not reported by this server")
    else:
        console.print(
            f"mean acceptance length [bold]{length.value:.3f}[/bold] "
            f"({length.low:.3f} to {length.high:.3f}) over {run.stats.num_steps} verify steps",
            highlight=False,
        )
        table = Table()
        for title in ("", "steps", "length", "accept rate", "per position"):
            table.add_column(title)
        rows = {"all": run.stats}
        if len(run.by_category()) > 1:
            rows |= run.by_category()
        rows |= {f"context {name}": s for name, s in run.by_context().items()}
        for name, stats in rows.items():
            rate = stats.acceptance_rate
            table.add_row(
                escape(name),
                str(stats.num_steps),
                f"{stats.acceptance_length or 0:.3f}",
                "-" if rate is None else f"{rate:.1%}",
                " / ".join(f"{share:.3f}" for share in stats.per_position) or "-",
            )
        console.print(table)
    for row in report.published:
        console.print(f"published: {row.low:.2f} to {row.high:.2f} ({escape(row.source)})")
    for note in run.notes:
        console.print(escape(note))
    for mark in report.marks:
        style = "bold red" if mark.is_suspect else "bold yellow"
        word = "suspect" if mark.is_suspect else "warning"
        console.print(f"[{style}]{word}[/{style}] {escape(mark.name)}: {escape(mark.message)}")
    if report.verdict.baseline is not None:
        console.print(f"baseline: {report.verdict.baseline:.3f}")
    for reason in report.verdict.reasons:
        console.print(f"[bold red]gate closed[/bold red]: {escape(reason)}")
