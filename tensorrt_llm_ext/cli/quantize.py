# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""`trtllm-ext quantize`: a float draft and a recipe in, a measured quantized draft out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tensorrt_llm_ext.cli import options
from tensorrt_llm_ext.cli import quantize_options as choices
from tensorrt_llm_ext.cli.output import finish
from tensorrt_llm_ext.cli.progress import stage_bar, status
from tensorrt_llm_ext.cli.prompts import sample_texts
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
    prompts_file: options.PromptsFile = None,
    problems: options.Problems = None,
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
    overwrite: options.Overwrite = False,
    as_json: options.AsJson = False,
) -> None:
    """Quantize a draft with a recipe, and measure what it costs in acceptance."""
    wanted = options.integers(boundaries, "--boundaries")
    if fix_export:
        _fix(draft, out, target, wanted, overwrite=overwrite, as_json=as_json)
        return
    if target is None:
        raise ConfigError("--target is missing: a draft is calibrated on what its target writes.")
    prompts = sample_texts(target, prompts_file, problems, states, default=_DEFAULT_PROBLEMS)

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

    with stage_bar() as advance:
        report = quantize_draft(draft, out, progress=advance, **work)
    finish(report, show_report, as_json=as_json, exit_code=_EXIT_FINDINGS if report.errors else 0)


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
    finish(
        report, show_fix, as_json=as_json, exit_code=_EXIT_FINDINGS if report.export.errors else 0
    )


__all__ = ["EPILOG", "quantize"]
