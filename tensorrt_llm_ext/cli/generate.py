# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""`trtllm-ext generate`: prompts in, texts out, with and without the draft."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensorrt_llm_ext.cli import options
from tensorrt_llm_ext.cli.output import finish
from tensorrt_llm_ext.cli.progress import progress_bar, status
from tensorrt_llm_ext.cli.prompts import Task, make_task, tiny_kimi
from tensorrt_llm_ext.errors import ConfigError
from tensorrt_llm_ext.speculative.stats import DEFINITIONS

if TYPE_CHECKING:
    from tensorrt_llm_ext.benchmarking.runs import Workload
    from tensorrt_llm_ext.cli.report import ComparisonReport, RunReport
    from tensorrt_llm_ext.engine.loading import LoadedModels

# Asked when nothing is asked for and the example models answer.
_DEFAULT_PROBLEMS = 3
_EXIT_DIFFERENT = 1

EPILOG = (
    f"[bold]Acceptance[/bold]: {DEFINITIONS}\n\n"
    "[bold]Verdict[/bold]: identical: all tokens are equal. near_tie: they part where the two most "
    "likely tokens are within the tolerance of the dtype. different: they part elsewhere; exit "
    "code 1.\n\n"
    "[bold]Speed[/bold]: generated tokens per second of wall time, prompts included; medians over "
    "interleaved pairs of runs in one process, after a warm-up. Speed-up: median of the ratios of "
    "the pairs."
)


def generate(
    model: options.Model = None,
    draft: options.Draft = None,
    max_draft_len: options.MaxDraftLen = 3,
    device: options.Device = None,
    dtype: options.Dtype = "auto",
    quant_mode: options.QuantMode = "auto",
    draft_quant_mode: options.DraftQuantMode = None,
    prompt: options.Prompt = None,
    prompts_file: options.PromptsFile = None,
    problems: options.Problems = None,
    temperature: options.Temperature = 0.0,
    top_p: options.TopP = 1.0,
    top_k: options.TopK = 0,
    seed: options.Seed = 0,
    max_tokens: options.MaxTokens = 192,
    compare: options.Compare = None,
    pairs: options.Pairs = 5,
    batch_size: options.BatchSize = 1,
    as_json: options.AsJson = False,
) -> None:
    """Generate text, and see what the draft is worth: same text, acceptance, speed-up."""
    has_prompts = bool(prompt) or prompts_file is not None or problems is not None
    if model is None:
        model, draft = tiny_kimi("target"), draft or tiny_kimi("draft")
        problems = problems if has_prompts else _DEFAULT_PROBLEMS
    if compare and draft is None:
        raise ConfigError("--compare needs a draft. Pass --draft FOLDER, or leave --compare out.")
    task = make_task(prompt or [], prompts_file, problems)

    # Not before, so that --help and bad input do not wait for torch.
    from tensorrt_llm_ext.benchmarking.runs import Workload, encode_all
    from tensorrt_llm_ext.configs.sampling import SamplingParams
    from tensorrt_llm_ext.engine.loading import load_models

    sampling = SamplingParams(
        max_tokens=max_tokens, temperature=temperature, top_p=top_p, top_k=top_k
    )
    with status("loading the models"):
        models = load_models(
            model,
            draft=draft,
            device=device,
            dtype=dtype,
            quant_mode=quant_mode,
            draft_quant_mode=draft_quant_mode,
        )
    workload = Workload(
        prompts=encode_all(models, task.prompts),
        sampling=sampling,
        batch_size=batch_size,
        seed=seed,
    )
    draft_len = 0 if draft is None else max_draft_len
    _report(models, workload, task, draft_len, None if compare is False else pairs, as_json)


def _report(
    models: LoadedModels,
    workload: Workload,
    task: Task,
    draft_len: int,
    pairs: int | None,
    as_json: bool,
) -> None:
    """Generates, with and without the draft where there is one, and shows what came of it."""
    report: ComparisonReport | RunReport
    if models.draft is None or pairs is None:
        report = _run(models, workload, task, draft_len)
    else:
        report = _compare(models, workload, task, draft_len, pairs)
    finish(
        report,
        lambda found: found.show(),
        as_json=as_json,
        exit_code=_EXIT_DIFFERENT if report.is_failure else 0,
    )


def _run(models: LoadedModels, workload: Workload, task: Task, draft_len: int) -> RunReport:
    from tensorrt_llm_ext.benchmarking.runs import make_core, measure, warm_up
    from tensorrt_llm_ext.cli.report import RunReport, Setting

    core = make_core(models, workload, draft_len)
    warm_up(core, workload, models.eos_token_ids)
    with progress_bar("generating", len(workload.prompts)) as advance:
        run = measure(core, workload, models.eos_token_ids, advance)
    return RunReport(setting=Setting(models, workload, task, draft_len), run=run)


def _compare(
    models: LoadedModels, workload: Workload, task: Task, draft_len: int, pairs: int
) -> ComparisonReport:
    from tensorrt_llm_ext.benchmarking.compare import compare_runs, num_requests
    from tensorrt_llm_ext.cli.report import ComparisonReport, Setting

    with progress_bar("with and without the draft", num_requests(workload, pairs)) as advance:
        comparison = compare_runs(
            models, workload, max_draft_len=draft_len, num_pairs=pairs, progress=advance
        )
    return ComparisonReport(
        setting=Setting(models, workload, task, draft_len), comparison=comparison
    )


__all__ = ["EPILOG", "generate"]
