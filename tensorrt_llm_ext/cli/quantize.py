# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""`trtllm-ext quantize`: a float draft and a recipe in, a measured quantized draft out."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tensorrt_llm_ext.cli import options
from tensorrt_llm_ext.cli.progress import status
from tensorrt_llm_ext.cli.prompts import read_prompts, tiny_kimi
from tensorrt_llm_ext.errors import ConfigError

_EXIT_FINDINGS = 1
_DEFAULT_PROBLEMS = 96  # of the bundled example
_DEFAULT_RECIPE = "nvfp4_layer"
_TEXTS, _TRAINING, _RUN = "Texts", "Training (QAD recipes)", "Run and output"

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
    draft: Annotated[Path, typer.Argument(help="Folder of the float draft.")],
    out: Annotated[Path, typer.Argument(help="New folder.")],
    recipe: Annotated[
        str, typer.Option(help="Name of a recipe, or path of its YAML file.")
    ] = _DEFAULT_RECIPE,
    target: Annotated[
        Path | None, typer.Option(help="Folder of its target.", show_default=False)
    ] = None,
    prompts_file: Annotated[
        Path | None,
        typer.Option(
            help="Prompts from a file: text (one per line), .jsonl or .json.",
            rich_help_panel=_TEXTS,
        ),
    ] = None,
    problems: Annotated[
        int | None,
        typer.Option(
            min=1, help="So many held-out word problems of tiny_kimi.", rich_help_panel=_TEXTS
        ),
    ] = None,
    states: Annotated[
        Path | None,
        typer.Option(
            help="Captured states in place of prompts, as `canary --save-states` writes them; the "
            "target's layers are not loaded, and no engine runs.",
            rich_help_panel=_TEXTS,
        ),
    ] = None,
    chat_template: Annotated[
        Path | None,
        typer.Option(
            help="Jinja template that makes each prompt the user's turn.", rich_help_panel=_TEXTS
        ),
    ] = None,
    max_draft_len: options.MaxDraftLen = 3,
    max_tokens: options.MaxTokens = 192,
    backend: Annotated[
        str,
        typer.Option(
            help="modelopt, builtin (the same bits for the bundled recipes, without ModelOpt), or "
            "auto: ModelOpt where it is installed.",
            rich_help_panel=_RUN,
        ),
    ] = "auto",
    train_seconds: Annotated[
        float, typer.Option(min=0.1, help="How long to train.", rich_help_panel=_TRAINING)
    ] = 180.0,
    learning_rate: Annotated[
        float, typer.Option(help="Peak rate of AdamW.", rich_help_panel=_TRAINING)
    ] = 2e-5,
    engine: Annotated[
        bool,
        typer.Option(
            "--engine/--no-engine",
            help="Measure acceptance on the embedded engine.",
            rich_help_panel=_RUN,
        ),
    ] = True,
    fix_export: Annotated[
        bool,
        typer.Option(
            "--fix-export",
            help="Quantize nothing: mend DRAFT, which ModelOpt's export_speculative_decoding "
            "wrote quantized.",
        ),
    ] = False,
    boundaries: options.Boundaries = None,
    device: options.Device = None,
    dtype: options.Dtype = "auto",
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Replace the checkpoint in OUT.", rich_help_panel=_RUN),
    ] = False,
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
    from tensorrt_llm_ext.cli.quantize_report import show_report
    from tensorrt_llm_ext.quantizing.distill import DistillOptions
    from tensorrt_llm_ext.quantizing.job import QuantizeOptions
    from tensorrt_llm_ext.quantizing.runner import quantize_draft

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
    with _progress() as advance:
        report = quantize_draft(
            draft,
            out,
            recipe=recipe,
            target=target,
            prompts=prompts,
            states=states,
            options=choice,
            progress=advance,
        )
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
