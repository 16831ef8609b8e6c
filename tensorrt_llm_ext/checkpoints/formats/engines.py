# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The spellings of SGLang and vLLM: what their loaders make of a draft, saved again."""

from __future__ import annotations

from typing import Final

from tensorrt_llm_ext.checkpoints.formats import common
from tensorrt_llm_ext.checkpoints.formats.base import DraftFiles, DraftFormat, IdMark


def _sglang_marks(files: DraftFiles) -> tuple[str, ...]:
    found = []
    if common.has(files.shapes, r"\.fused_qkv_a_proj_with_mqa\."):
        found.append("fused_qkv_a_proj_with_mqa")
    if common.has(files.shapes, r"^(draft_)?model\.midlayer\."):
        found.append("model.midlayer. names")
    if common.setting(files, "use_aux_norm") is not None:
        found.append("use_aux_norm in config.json")
    return tuple(found)


def _vllm_marks(files: DraftFiles) -> tuple[str, ...]:
    found = []
    if common.has(files.shapes, r"\.fused_qkv_a_proj\."):
        found.append("fused_qkv_a_proj")
    if common.layer_ids(files, "layer_ids") is not None:
        found.append("layer_ids in eagle_config")
    return tuple(found)


def _open(files: DraftFiles) -> IdMark | None:
    """SGLang accepts ids of both conventions, and vLLM leaves them as the producer wrote them."""
    return None


SGLANG: Final = DraftFormat(
    name="sglang",
    title="SGLang spelling",
    marks=_sglang_marks,
    renames=(common.STRIP_PREFIXES, common.MIDLAYER_NUMBERED, common.MIDLAYER),
    read_config=common.flat_config,
    id_convention=_open,
)
VLLM: Final = DraftFormat(
    name="vllm",
    title="vLLM spelling",
    marks=_vllm_marks,
    renames=(common.STRIP_PREFIXES, common.MIDLAYER_NUMBERED, common.MIDLAYER),
    read_config=common.flat_config,
    id_convention=_open,
)
