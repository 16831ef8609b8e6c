# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""`trtllm-ext quantize`: a float draft and a recipe in, a measured quantized draft out."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tensorrt_llm_ext.cli import options
from tensorrt_llm_ext.cli import quantize_options as choices
from tensorrt_llm_ext.cli.progress import status
from tensorrt_llm_ext.cli.prompts import read_prompts, tiny_kimi
from tensorrt_llm_ext.errors import ConfigError

_EXIT_FINDINGS = 1
_DEFAULT_PROBLEMS = 96  # of the bundled example
_DEFAULT_RECIPE = "nvfp4_layer"

EPILOG = (
    "[bold]What is done[/bold]: the target continues the prompts greedily and its states are "
    "captured; the draft runs over them as in an engine, every draft step of it; the recipe is "
    "applied (by ModelOpt where it is installed), fused projections get common scales, kv_b_proj "
    "stays in floating point; the checkpoint is written, read back and put through the checks of "
    "`doctor`; and every fourth text, kept apart from calibration, measures what it cost.\n\n"
    "[bold]Recipes[/bold] (modelopt_recipes/): nvfp4_layer (default), nvfp4_layer_fc, "
    "nvfp4_layer_fc_head, nvfp4_layer_fc_fp8_head, w4a16_nvfp4_layer, fp8_layer ...; "
    "qad/nvfp4_layer_fc_head trains after calibration. Any file of ModelOpt's format will do.\n\n"
    "[bold]W4A16[/bold] rounds weights only, as Hopper and CPUs run NVFP4; [bold]W4A4[/bold] "
    "rounds activations too, as Blackwell does: its acceptance is the one to trust.\n\n"
    "[bold]Exit codes[/bold]: 0 written, 1 written, but the draft fails a check that it failed "
    "before too, 2 bad usage, or nothing was written."
)


def quantize(
    draft: choices.Draft,
    out: choices.Out,
    recipe: choices.Recipe = _DEFAULT_RECIPE,
    target: choices.Target = None,
    prompts_file: choices.PromptsFile = None,
    problems: choices.Problems = None,
    states: choices.States = None,
    chat_template: choices.ChatTemplate = None,
    max_draft_len: options.MaxDraftLen = 3,
    max_tokens: options.MaxTokens = 192,
    backend: choices.Backend = "auto",
    train_seconds: choices.TrainSeconds = 180.0,
    learning_rate: choices.LearningRate = 2e-5,
    engine: choices.Engine = True,
    fix_export: choices.FixExport = False,
    boundaries: options.Boundaries = None,
    device: options.Device = None,
    dtype: options.Dtype = "auto",
    overwrite: choices.Overwrite = False,
    as_json: options.AsJson = False,
) -> None:
    """Quantize a draft with a recipe, and measure what it costs in acceptance."""
    wanted = options.integers(boundaries, "--boundaries")
    if fix_export:
        _fix(draft, out, target, wanted, overwrite=overwrite, as_json=as_json)
        return
    if target is None:
        raise ConfigError("--target is missing: a draft is calibrated on what its target writes.")
    given = [x for x in (prompts_file, problems, states) if x is not None]
    if len(given) > 1:
        raise ConfigError("--prompts-file, --problems and --states exclude each other.")
    prompts = None if states is not None else _prompts(target, prompts_file, problems)

    # Not before, so that --help and bad input do not wait for torch.
    from tensorrt_llm_ext.quantizing.distill import DistillOptions
    from tensorrt_llm_ext.quantizing.job import QuantizeOptions

    choice = QuantizeOptions(
        max_draft_len=max_draft_len,
        max_tokens=max_tokens,
        chat_template=chat_template,
        backend=backend,
        distill=DistillOptions(seconds=train_seconds, learning_rate=learning_rate),
        run_engine=engine,
        boundaries=wanted,
        device=device,
        dtype=dtype,
        overwrite=overwrite,
    )
    work = {"recipe": recipe, "target": target, "prompts": prompts, "states": states}
    _quantize(draft, out, {**work, "options": choice}, as_json)


def _quantize(draft: Path, out: Path, work: dict[str, Any], as_json: bool) -> None:
    from tensorrt_llm_ext.cli.quantize_report import show_report
    from tensorrt_llm_ext.quantizing.runner import quantize_draft

    with _progress() as advance:
        report = quantize_draft(draft, out, progress=advance, **work)
    if as_json:
        typer.echo(json.dumps(report.to_dict(), ensure_ascii=False, indent=2, allow_nan=False))
    else:
        show_report(report)
    if report.errors:
        raise typer.Exit(_EXIT_FINDINGS)


def _fix(
    draft: Path,
    out: Path,
    target: Path | None,
    boundaries: tuple[int, ...] | None,
    *,
    overwrite: bool,
    as_json: bool,
) -> None:
    from tensorrt_llm_ext.cli.quantize_report import show_fix
    from tensorrt_llm_ext.quantizing.fixer import fix_export

    with status("mending"):
        report = fix_export(draft, out, target=target, boundaries=boundaries, overwrite=overwrite)
    if as_json:
        typer.echo(json.dumps(report.to_dict(), ensure_ascii=False, indent=2, allow_nan=False))
    else:
        show_fix(report)
    if report.export.errors:
        raise typer.Exit(_EXIT_FINDINGS)


def _prompts(target: Path, prompts_file: Path | None, problems: int | None) -> list[str]:
    """The user's prompts; the bundled example's own problems when none were given."""
    if prompts_file is not None:
        return read_prompts(prompts_file)
    if problems is None and not _is_tiny_kimi(target):
        raise ConfigError(
            "There are no texts. Give --prompts-file with at least 32 prompts of the kind that the "
            "draft is to serve, or --states."
        )
    from tensorrt_llm_ext.benchmarking.problems import load_problems

    count = _DEFAULT_PROBLEMS if problems is None else problems
    return [problem.prompt for problem in load_problems(tiny_kimi("heldout.jsonl"), count)]


def _is_tiny_kimi(target: Path) -> bool:
    try:
        return target.resolve().parent == tiny_kimi("heldout.jsonl").parent
    except ConfigError:
        return False


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """Shows a bar per stage and yields the function that advances it."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("loading", total=None)
        stage = ""

        def advance(text: str, done: int, total: int) -> None:
            nonlocal stage
            if text != stage:
                stage = text
                progress.reset(task, description=text)
            progress.update(task, completed=done, total=total)

        yield advance


__all__ = ["EPILOG", "quantize"]
