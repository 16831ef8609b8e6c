# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""`trtllm-ext canary`: which setting does this draft agree with its target in?"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, TypeAlias

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tensorrt_llm_ext.cli import options
from tensorrt_llm_ext.cli.prompts import read_prompts, tiny_kimi
from tensorrt_llm_ext.errors import ConfigError

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
    if sum(given is not None for given in (prompts_file, problems, states)) > 1:
        raise ConfigError("--prompts-file, --problems and --states exclude each other.")
    prompts = None if states is not None else _prompts(target, prompts_file, problems)

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
    with _progress() as advance:
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
    if as_json:
        typer.echo(json.dumps(report.to_dict(), ensure_ascii=False, indent=2, allow_nan=False))
    else:
        show_report(report)
    if report.exit_code:
        raise typer.Exit(report.exit_code)


def _prompts(target: Path, prompts_file: Path | None, problems: int | None) -> list[str]:
    if prompts_file is not None:
        return read_prompts(prompts_file)
    if problems is None and not _is_example(target):
        raise ConfigError(
            "The canary needs texts: give prompts of the kind that the model will serve with "
            "--prompts-file (100 are a good number), or captured states with --states."
        )
    from tensorrt_llm_ext.benchmarking.problems import load_problems

    found = load_problems(tiny_kimi("heldout.jsonl"), problems or _DEFAULT_PROBLEMS)
    return [problem.prompt for problem in found]


def _is_example(target: Path) -> bool:
    """Whether the target is the one that the held-out problems belong to."""
    try:
        return target.resolve().parent == tiny_kimi("heldout.jsonl").resolve().parent
    except ConfigError:
        return False


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """Shows one bar whose text and length change, and yields the function that moves it."""
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("loading the models", total=None)

        def advance(text: str, done: int, total: int) -> None:
            progress.update(task, description=text, completed=done, total=total)

        yield advance


__all__ = ["EPILOG", "canary"]
