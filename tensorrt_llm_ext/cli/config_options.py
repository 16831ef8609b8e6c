# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The options of `trtllm-ext config`, each with its help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

_HOST, _SIZES, _USE, _OUTPUT = "Host and GPUs", "Sizes", "What is served", "Run and output"

Target: TypeAlias = Annotated[str, typer.Argument(help="Folder or hub id of the target.")]
Draft: TypeAlias = Annotated[str, typer.Argument(help="Folder or hub id of the draft.")]
TrtllmVersion: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="1.2|1.3|1.4",
        help="Version of TensorRT-LLM; 1.3.0rc20 is 1.3.",
        rich_help_panel=_HOST,
    ),
]
Gpus: TypeAlias = Annotated[
    int, typer.Option(min=1, help="GPUs of one server.", rich_help_panel=_HOST)
]
Layout: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="tp|adp",
        help="tp splits attention over the GPUs (latency); adp is attention-DP (throughput).",
        rich_help_panel=_HOST,
    ),
]
ExpertParallel: TypeAlias = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="GPUs to spread the experts over. Default: all for adp, 1 for tp.",
        rich_help_panel=_HOST,
    ),
]
DraftLenSchedule: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="Draft length for batches up to each size, for instance 16:3,64:1.",
        rich_help_panel=_SIZES,
    ),
]
KvDtype: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="auto|fp8|bf16", help="KV cache; auto is the target's.", rich_help_panel=_SIZES
    ),
]
MaxBatchSize: TypeAlias = Annotated[
    int, typer.Option(min=1, help="Requests running at once.", rich_help_panel=_SIZES)
]
MaxSeqLen: TypeAlias = Annotated[
    int | None,
    typer.Option(
        min=1, help="Prompt and answer together. Default: the target's.", rich_help_panel=_SIZES
    ),
]
MaxNumTokens: TypeAlias = Annotated[
    int | None,
    typer.Option(min=1, help="Tokens of one pass. Default: 8192.", rich_help_panel=_SIZES),
]
FreeGpuMemoryFraction: TypeAlias = Annotated[
    float,
    typer.Option(
        min=0.05,
        max=0.99,
        help="KV cache's share of what the weights leave free.",
        rich_help_panel=_SIZES,
    ),
]
BlockReuse: TypeAlias = Annotated[
    bool, typer.Option(help="Share the KV of equal prefixes.", rich_help_panel=_USE)
]
ChunkedPrefill: TypeAlias = Annotated[
    bool, typer.Option("--chunked-prefill", help="Split long prompts.", rich_help_panel=_USE)
]
GuidedDecoding: TypeAlias = Annotated[
    bool, typer.Option("--guided-decoding", help="Structured output.", rich_help_panel=_USE)
]
Disaggregated: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--disaggregated", help="Prefill and decode on different servers.", rich_help_panel=_USE
    ),
]
Env: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(help="NAME=VALUE for the worker processes; repeatable.", rich_help_panel=_USE),
]
Output: TypeAlias = Annotated[
    Path | None,
    typer.Option(help="File to write; otherwise standard output.", rich_help_panel=_OUTPUT),
]
