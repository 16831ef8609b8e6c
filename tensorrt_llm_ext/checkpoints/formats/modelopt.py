# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Drafts exported by NVIDIA ModelOpt, quantized or not."""

from __future__ import annotations

from typing import Final

from tensorrt_llm_ext.checkpoints.formats import common
from tensorrt_llm_ext.checkpoints.formats.base import (
    DraftFiles,
    DraftFormat,
    IdConvention,
    IdMark,
)

MODELOPT_KEYS: Final = (
    "next_layer_regular",
    "parallel_draft_step",
    "parallel_draft_heads_num_layers",
)
# Its Kimi template copies the experts of the target into a draft that has none.
_TEMPLATE: Final = ("n_routed_experts", "moe_intermediate_size", "first_k_dense_replace")


def _own_keys(files: DraftFiles) -> tuple[str, ...]:
    return common.present(MODELOPT_KEYS, common.eagle_config(files), files.config)


def _is_template(files: DraftFiles) -> bool:
    dense = not common.has(files.shapes, r"\.experts\.")
    expert_keys = all(key in files.config for key in _TEMPLATE)
    return expert_keys and dense and not common.has_embedding(files)


def _marks(files: DraftFiles) -> tuple[str, ...]:
    found = [f"{key} in its eagle settings" for key in _own_keys(files)]
    if common.has(files.shapes, r"(^|\.)eagle_module\."):
        found.append("tensors prefixed eagle_module.")
    if "has_lm_head" in files.config:
        found.append("has_lm_head in config.json")
    if _is_template(files):
        found.append("MoE keys of its Kimi template beside dense tensors, and no embed_tokens")
    return tuple(found)


def _id_convention(files: DraftFiles) -> IdMark | None:
    keys = _own_keys(files)
    if keys:
        return IdMark(
            IdConvention.AFTER_LAYER,
            f"ModelOpt writes {keys[0]} and ids of layers after which its hooks take a state",
        )
    if files.config.get("model_type") == "kimi_k2" and not common.has_embedding(files):
        return IdMark(
            IdConvention.AFTER_LAYER, "a kimi_k2 draft without embed_tokens is ModelOpt's", True
        )
    return None


MODELOPT: Final = DraftFormat(
    name="modelopt",
    title="NVIDIA ModelOpt export",
    marks=_marks,
    renames=common.UNION,
    read_config=common.flat_config,
    id_convention=_id_convention,
)
