# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The options of `quantize` that no other command has, each with its help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

_TEXTS, _TRAINING, _RUN = "Texts", "Training (QAD recipes)", "Run and output"

Draft: TypeAlias = Annotated[Path, typer.Argument(help="Folder of the float draft.")]
Out: TypeAlias = Annotated[Path, typer.Argument(help="New folder.")]
Recipe: TypeAlias = Annotated[str, typer.Option(help="Name of a recipe, or path of its YAML file.")]
Target: TypeAlias = Annotated[
    Path | None, typer.Option(help="Folder of its target.", show_default=False)
]
States: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        help="Captured states in place of prompts, as `canary --save-states` writes them; the "
        "target's layers are not loaded, and no engine runs.",
        rich_help_panel=_TEXTS,
    ),
]
ChatTemplate: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        help="Jinja template that makes each prompt the user's turn.", rich_help_panel=_TEXTS
    ),
]
Backend: TypeAlias = Annotated[
    str,
    typer.Option(
        help="modelopt, builtin (the same bits for the bundled recipes, without ModelOpt), or "
        "auto: ModelOpt where it is installed.",
        rich_help_panel=_RUN,
    ),
]
TrainSeconds: TypeAlias = Annotated[
    float, typer.Option(min=0.1, help="How long to train.", rich_help_panel=_TRAINING)
]
LearningRate: TypeAlias = Annotated[
    float, typer.Option(help="Peak rate of AdamW.", rich_help_panel=_TRAINING)
]
Engine: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--engine/--no-engine",
        help="Measure acceptance on the embedded engine.",
        rich_help_panel=_RUN,
    ),
]
FixExport: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--fix-export",
        help="Quantize nothing: mend DRAFT, which ModelOpt's export_speculative_decoding "
        "wrote quantized.",
    ),
]
