# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Arguments of `trtllm-ext serve`."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

_LIMITS = "Limits"


class Level(str, Enum):
    """Severities, as the environment variable spells them."""

    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"


Model: TypeAlias = Annotated[Path, typer.Argument(help="Folder of the target.")]
Draft: TypeAlias = Annotated[Path | None, typer.Option(help="Folder of the draft.")]
Config: TypeAlias = Annotated[
    Path | None,
    typer.Option("--config", "--extra_llm_api_options", help="YAML for trtllm-serve."),
]
Host: TypeAlias = Annotated[str, typer.Option(help="Address to listen at.")]
Port: TypeAlias = Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")]
ServedModelName: TypeAlias = Annotated[
    str | None, typer.Option(help="Name of the model in requests; the folder's if not given.")
]
ChatTemplate: TypeAlias = Annotated[
    Path | None, typer.Option(help="Jinja file in place of the tokenizer's template.")
]
CustomTokenizer: TypeAlias = Annotated[
    Path | None, typer.Option(help="Folder of the tokenizer; the target's if not given.")
]
TrustRemoteCode: TypeAlias = Annotated[
    bool, typer.Option(help="Run Python files of the tokenizer's folder; of nothing else.")
]
Device: TypeAlias = Annotated[str | None, typer.Option(help="cpu or cuda.")]
Dtype: TypeAlias = Annotated[str, typer.Option(help="auto, float32, bfloat16 ...")]
LogLevel: TypeAlias = Annotated[
    Level,
    typer.Option(
        case_sensitive=False,
        help="Least severe message on standard error; one line per request is info.",
        envvar="TRTLLM_EXT_LOG_LEVEL",
    ),
]
ApiKey: TypeAlias = Annotated[
    str | None, typer.Option(help="What clients must send.", envvar="TRTLLM_EXT_API_KEY")
]
MaxBatchSize: TypeAlias = Annotated[
    int | None, typer.Option(min=1, help="Requests in a step.", rich_help_panel=_LIMITS)
]
MaxSeqLen: TypeAlias = Annotated[
    int | None, typer.Option(min=2, help="Tokens of a request.", rich_help_panel=_LIMITS)
]
MaxConcurrent: TypeAlias = Annotated[
    int, typer.Option(min=1, help="Requests in flight.", rich_help_panel=_LIMITS)
]
MaxBodyBytes: TypeAlias = Annotated[
    int, typer.Option(min=1, help="Longest body.", rich_help_panel=_LIMITS)
]
RequestSeconds: TypeAlias = Annotated[
    float, typer.Option(help="Time of a request; 0 is no limit.", rich_help_panel=_LIMITS)
]
ShutdownSeconds: TypeAlias = Annotated[
    float, typer.Option(help="Time to finish at shutdown.", rich_help_panel=_LIMITS)
]
