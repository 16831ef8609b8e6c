# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The options that commands share, each with its help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from tensorrt_llm_ext.configs.speculative import MAX_DRAFT_LEN
from tensorrt_llm_ext.errors import ConfigError

_MODELS, _INPUT, _SAMPLING, _RUN = "Models", "Prompts", "Sampling", "Run and output"

Model: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        help="Folder of the target. Default: examples/tiny_kimi/target.", rich_help_panel=_MODELS
    ),
]
Draft: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        help="Folder of the draft. Default: tiny_kimi's for the default target, else none.",
        rich_help_panel=_MODELS,
    ),
]
MaxDraftLen: TypeAlias = Annotated[
    int,
    typer.Option(min=1, max=MAX_DRAFT_LEN, help="Draft tokens per step.", rich_help_panel=_MODELS),
]
Device: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="cpu, cuda or cuda:N. Default: CUDA when there is one.", rich_help_panel=_MODELS
    ),
]
Dtype: TypeAlias = Annotated[
    str,
    typer.Option(
        help="auto (float32 on the CPU, bfloat16 on CUDA), float64, float32, bfloat16, float16.",
        rich_help_panel=_MODELS,
    ),
]
QuantMode: TypeAlias = Annotated[
    str,
    typer.Option(
        help="Of quantized weights: auto (dequantized), packed (W4A16), dequantized, w4a4 "
        "(activations quantized too, as on Blackwell).",
        rich_help_panel=_MODELS,
    ),
]
DraftQuantMode: TypeAlias = Annotated[
    str | None,
    typer.Option(help="The same for the draft. Default: --quant-mode.", rich_help_panel=_MODELS),
]
Prompt: TypeAlias = Annotated[
    list[str] | None, typer.Option(help="A prompt; repeatable.", rich_help_panel=_INPUT)
]
PromptsFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        help="Prompts from a file: text (one per line), .jsonl or .json.", rich_help_panel=_INPUT
    ),
]
Problems: TypeAlias = Annotated[
    int | None,
    typer.Option(
        min=1, help="So many held-out word problems of tiny_kimi.", rich_help_panel=_INPUT
    ),
]
Temperature: TypeAlias = Annotated[
    float, typer.Option(min=0.0, help="0 is greedy.", rich_help_panel=_SAMPLING)
]
TopP: TypeAlias = Annotated[
    float, typer.Option(min=0.0, max=1.0, help="1 keeps all tokens.", rich_help_panel=_SAMPLING)
]
TopK: TypeAlias = Annotated[
    int, typer.Option(min=0, help="0 keeps all tokens.", rich_help_panel=_SAMPLING)
]
Seed: TypeAlias = Annotated[
    int, typer.Option(min=0, max=2**63 - 1, help="Seed of all draws.", rich_help_panel=_SAMPLING)
]
MaxTokens: TypeAlias = Annotated[
    int, typer.Option(min=1, help="Most tokens per text.", rich_help_panel=_SAMPLING)
]
Compare: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--compare/--no-compare",
        help="Run with and without the draft. Default: whenever there is a draft.",
        rich_help_panel=_RUN,
    ),
]
Pairs: TypeAlias = Annotated[
    int,
    typer.Option(min=1, help="Pairs of runs; speeds are their medians.", rich_help_panel=_RUN),
]
BatchSize: TypeAlias = Annotated[
    int, typer.Option(min=1, help="Prompts running at once.", rich_help_panel=_RUN)
]
Boundaries: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="Override of the captured boundaries (before 0-based layer b): 2,30,58.",
        show_default=False,
        rich_help_panel=_MODELS,
    ),
]
Overwrite: TypeAlias = Annotated[
    bool,
    typer.Option("--overwrite", help="Replace the checkpoint in OUT.", rich_help_panel=_RUN),
]
AsJson: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print JSON.", rich_help_panel=_RUN)
]


def integers(text: str | None, option: str) -> tuple[int, ...] | None:
    """Parses "1,29,57" or "[1, 29, 57]".

    Raises:
        ConfigError: If it is anything else.
    """
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.strip().strip("[]").split(","))
    except ValueError:
        raise ConfigError(
            f"{option} takes integers with commas, as 1,29,57; got {text!r}."
        ) from None
