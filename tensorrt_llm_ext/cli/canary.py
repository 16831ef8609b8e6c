# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""`trtllm-ext canary`: which setting does this draft agree with its target in?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from tensorrt_llm_ext.cli import options
from tensorrt_llm_ext.cli.output import finish
from tensorrt_llm_ext.cli.progress import stage_bar
from tensorrt_llm_ext.cli.prompts import sample_texts

# Of the bundled example's held-out problems; enough to tell 0.05 in acceptance length.
_DEFAULT_PROBLEMS = 96
_INPUT, _RUN = "Texts", "Run and output"

EPILOG = (
    "A wrong draft never gives a wrong answer, only a slow one, so nothing but agreement with the "
    "target shows it.\n\n"
    "[bold]What is run[/bold]: the target continues the prompts greedily (or its states come from "
    "a file); the draft then proposes tokens at every position of these texts, as declared and "
    "with one thing changed at a time: captured layers one lower or higher, order of the fc "
    "columns, norm flags, YaRN's mscale, rope, d2t, embedding, head; then changes that help "
    "together.\n\n"
    "[bold]Acceptance length[/bold] is 1 + the mean number of leading proposals that equal the "
    "target's tokens, over all positions; (engine) counts only the positions where an engine's "
    "steps begin, and is what it would report. Differences are paired by position and clustered "
    "by text; their intervals hold together for all settings.\n\n"
    "[bold]Exit codes[/bold]: 0 the declared setting fits, 1 another setting fits better (by 0.03 "
    "or more, beyond doubt), or the loader refuses the files, 3 nothing fits, 2 bad usage or fewer "
    "than 6 texts with positions to judge at. Quantized drafts are refused so far: run it on the "
    "float draft.\n\n"
    "[bold]State files[/bold]: .safetensors with {i}.input_ids, {i}.boundary.{b} (the residual "
    "stream before 0-based layer b) and, if known, {i}.target_ids; or ModelOpt's .pt files."
)


Target: TypeAlias = Annotated[Path, typer.Argument(help="Folder of the target.")]
Draft: TypeAlias = Annotated[Path, typer.Argument(help="Folder of the draft.")]
States: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        help="Captured states in place of prompts: .safetensors, .pt, or a folder of .pt; the "
        "target's layers are not loaded.",
        rich_help_panel=_INPUT,
    ),
]
SaveStates: TypeAlias = Annotated[
    Path | None,
    typer.Option(help="Write the captured states (.safetensors).", rich_help_panel=_INPUT),
]
MaxAnchors: TypeAlias = Annotated[
    int | None,
    typer.Option(min=1, help="Judge at a sample of so many positions.", rich_help_panel=_RUN),
]
Confidence: TypeAlias = Annotated[
    float,
    typer.Option(
        min=0.5, max=0.9999, help="That no healthy draft is accused.", rich_help_panel=_RUN
    ),
]
Fix: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        help="Write the corrected draft into this folder, and examine it.", rich_help_panel=_RUN
    ),
]


def canary(
    target: Target,
    draft: Draft,
    prompts_file: options.PromptsFile = None,
    problems: options.Problems = None,
    states: States = None,
    save_states: SaveStates = None,
    max_draft_len: options.MaxDraftLen = 3,
    max_tokens: options.MaxTokens = 192,
    max_anchors: MaxAnchors = None,
    confidence: Confidence = 0.99,
    fix: Fix = None,
    boundaries: options.Boundaries = None,
    seed: options.Seed = 0,
    device: options.Device = None,
    dtype: options.Dtype = "auto",
    as_json: options.AsJson = False,
) -> None:
    """Find the setting that a draft was trained for: what it declares, or another one."""
    prompts = sample_texts(target, prompts_file, problems, states, default=_DEFAULT_PROBLEMS)

    # Not before, so that --help and bad input do not wait for torch.
    from tensorrt_llm_ext.cli.canary_report import show_report
    from tensorrt_llm_ext.diagnostics.canary import CanaryOptions, run_canary

    choice = CanaryOptions(
        max_draft_len=max_draft_len,
        max_tokens=max_tokens,
        max_anchors=max_anchors,
        boundaries=options.integers(boundaries, "--boundaries"),
        confidence=confidence,
        seed=seed,
        device=device,
        dtype=dtype,
    )
    with stage_bar() as advance:
        report = run_canary(
            target,
            draft,
            prompts=prompts,
            states=states,
            options=choice,
            fix=fix,
            save_to=save_states,
            progress=advance,
        )
    finish(report, show_report, as_json=as_json, exit_code=report.exit_code)


__all__ = ["EPILOG", "canary"]
