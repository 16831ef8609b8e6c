# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Arguments of `trtllm-ext bench acceptance`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

_SERVER, _DATA, _GATE, _RUN = "A server", "Questions", "Gate", "Run and output"

Model: TypeAlias = Annotated[
    Path | None, typer.Argument(help="Folder of the target, for the embedded engine.")
]
Draft: TypeAlias = Annotated[str | None, typer.Option(help="Folder or name of the draft.")]
BaseUrl: TypeAlias = Annotated[
    str | None, typer.Option(help="Of an OpenAI-compatible server.", rich_help_panel=_SERVER)
]
ModelName: TypeAlias = Annotated[
    str | None, typer.Option("--model", help="Model's name.", rich_help_panel=_SERVER)
]
ApiKey: TypeAlias = Annotated[str | None, typer.Option(rich_help_panel=_SERVER)]
StatsDir: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        help="TRTLLM_EXT_ACCEPT_STATS_DIR of the server; waits until its counters are written.",
        rich_help_panel=_SERVER,
    ),
]
Layout: TypeAlias = Annotated[
    str, typer.Option(help="Of the server, for the baseline.", rich_help_panel=_SERVER)
]
Host: TypeAlias = Annotated[
    str | None, typer.Option(help="Engine, for the baseline.", rich_help_panel=_SERVER)
]
Dataset: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        help="JSON lines with prompt, messages or question, and category; the example's "
        "held-out problems if not given.",
        rich_help_panel=_DATA,
    ),
]
NumQuestions: TypeAlias = Annotated[int, typer.Option(min=1, rich_help_panel=_DATA)]
Chat: TypeAlias = Annotated[
    bool, typer.Option(help="Ask through the chat template.", rich_help_panel=_DATA)
]
MaxTokens: TypeAlias = Annotated[int, typer.Option(min=1, rich_help_panel=_DATA)]
Temperature: TypeAlias = Annotated[float, typer.Option(min=0.0, rich_help_panel=_DATA)]
Seed: TypeAlias = Annotated[int, typer.Option(min=0, rich_help_panel=_DATA)]
Concurrency: TypeAlias = Annotated[int, typer.Option(min=1, rich_help_panel=_RUN)]
Baseline: TypeAlias = Annotated[Path | None, typer.Option(rich_help_panel=_GATE)]
MinLength: TypeAlias = Annotated[float | None, typer.Option(rich_help_panel=_GATE)]
SaveBaseline: TypeAlias = Annotated[Path | None, typer.Option(rich_help_panel=_GATE)]
Plot: TypeAlias = Annotated[Path | None, typer.Option(help="PNG.", rich_help_panel=_RUN)]
