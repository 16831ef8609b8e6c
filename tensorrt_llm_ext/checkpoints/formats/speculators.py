# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Drafts of vLLM's speculators: the layer's config nested, flags beside it; Llama layers only."""

from __future__ import annotations

from typing import Final

from tensorrt_llm_ext.checkpoints.formats import common
from tensorrt_llm_ext.checkpoints.formats.base import (
    DraftFiles,
    DraftFormat,
    IdConvention,
    IdMark,
)

_KEYS: Final = ("transformer_layer_config", "speculators_config", "speculators_model_type")


def _marks(files: DraftFiles) -> tuple[str, ...]:
    found = [f"{key} in config.json" for key in _KEYS if key in files.config]
    found += [f"architecture {n}" for n in common.architectures(files) if "Speculator" in n]
    return tuple(found)


def _id_convention(files: DraftFiles) -> IdMark | None:
    if not _marks(files):
        return None
    return IdMark(IdConvention.BOUNDARY, "speculators writes vLLM's ids, which are boundaries")


SPECULATORS: Final = DraftFormat(
    name="speculators",
    title="speculators (vLLM project)",
    marks=_marks,
    renames=(common.STRIP_PREFIXES, common.MIDLAYER_NUMBERED, common.MIDLAYER),
    read_config=common.flat_config,
    id_convention=_id_convention,
)
