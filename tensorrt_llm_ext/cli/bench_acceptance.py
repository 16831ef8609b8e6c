# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""`trtllm-ext bench acceptance`: how many drafts are accepted, on any engine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorrt_llm_ext.cli import bench_acceptance_options as of
from tensorrt_llm_ext.cli.options import AsJson, MaxDraftLen
from tensorrt_llm_ext.cli.output import finish
from tensorrt_llm_ext.errors import ConfigError

if TYPE_CHECKING:
    from tensorrt_llm_ext.benchmarking.acceptance.measurement import Measurement
    from tensorrt_llm_ext.benchmarking.acceptance.report import AcceptanceReport

EPILOG = (
    "[bold]Acceptance length[/bold] is 1 + accepted drafts per verify step, pooled over requests; "
    "its 95 % interval resamples whole requests. Position i is the share of steps whose first i "
    "drafts were all accepted.\n\n"
    "[bold]Sources[/bold] of a server, the first that it has: --stats-dir of this package's hook "
    "in trtllm-serve; counts in each response (trtllm-ext serve, SGLang); vLLM's metrics; "
    "SGLang's gauge; sizes of stream pieces, one request at a time, labelled as an estimate.\n\n"
    "[bold]Exit codes[/bold]: 1 below --min-length or below 95 % of the --baseline of the same "
    "target, draft, drafts, template, host and layout; 2 for bad input."
)


def acceptance(
    model: of.Model = None,
    draft: of.Draft = None,
    max_draft_len: MaxDraftLen = 3,
    base_url: of.BaseUrl = None,
    model_name: of.ModelName = None,
    api_key: of.ApiKey = None,
    stats_dir: of.StatsDir = None,
    layout: of.Layout = "one device",
    host: of.Host = None,
    dataset: of.Dataset = None,
    num_questions: of.NumQuestions = 200,
    chat: of.Chat = False,
    max_tokens: of.MaxTokens = 128,
    temperature: of.Temperature = 0.0,
    seed: of.Seed = 0,
    concurrency: of.Concurrency = 8,
    baseline: of.Baseline = None,
    min_length: of.MinLength = None,
    save_baseline: of.SaveBaseline = None,
    plot: of.Plot = None,
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
        run = _embedded(model, draft, max_draft_len, concurrency, questions, sampling)
        target_name = model_name or model.resolve().name
    else:
        server = (base_url or "", model_name, api_key, stats_dir, concurrency)
        run, target_name = _remote(server, questions, sampling)
    if run.stats is not None and run.stats.accepted_per_position:
        max_draft_len = len(run.stats.accepted_per_position)  # a server has its own
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
    draft: str | None,
    max_draft_len: int,
    batch_size: int,
    questions: Any,
    sampling: dict[str, Any],
) -> Measurement:
    from tensorrt_llm_ext.benchmarking.acceptance.embedded import measure_embedded
    from tensorrt_llm_ext.configs.sampling import SamplingParams
    from tensorrt_llm_ext.engine.llm import LLM

    if draft is None:
        raise ConfigError("The embedded engine needs --draft, the draft's folder.")
    config = {
        "decoding_type": "Eagle3",
        "max_draft_len": max_draft_len,
        "speculative_model": draft,
    }
    with LLM(model=str(model), speculative_config=config, max_batch_size=batch_size) as llm:
        return measure_embedded(llm, questions, SamplingParams(**sampling))


def _remote(
    server: tuple[str, str | None, str | None, Path | None, int],
    questions: Any,
    sampling: dict[str, Any],
) -> tuple[Measurement, str]:
    from tensorrt_llm_ext.benchmarking.acceptance.remote import Remote, measure_remote

    base_url, name, api_key, stats_dir, concurrency = server
    remote = Remote(
        base_url=base_url,
        model=name,
        api_key=api_key,
        stats_dir=stats_dir,
        concurrency=concurrency,
    )
    return measure_remote(remote, questions, **sampling), remote.model_name()


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
