# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""TorchSpec's drafts: native `midlayer.` with after-layer ids, or its shifted vLLM export."""

from __future__ import annotations

from typing import Final

from tensorrt_llm_ext.checkpoints.formats import common
from tensorrt_llm_ext.checkpoints.formats.base import (
    DraftFiles,
    DraftFormat,
    IdConvention,
    IdMark,
)
from tensorrt_llm_ext.checkpoints.formats.modelopt import MODELOPT_KEYS

_EAGLE_KEYS: Final = (
    "use_input_layernorm_in_first_layer",
    "use_last_layernorm",
    "use_mtp_layernorm",
)
_ARCHITECTURES: Final = ("DeepSeekForCausalLMEagle3",)


def _is_native(files: DraftFiles) -> bool:
    return common.has(files.shapes, r"(^|\.)midlayer\.") and not _is_fused(files)


def _is_fused(files: DraftFiles) -> bool:
    return common.has(files.shapes, r"\.(fused_qkv_a_proj|gate_up_proj|qkv_proj)")


def _is_export(files: DraftFiles) -> bool:
    plain = common.has(files.shapes, r"^layers\.0\.") and not _is_fused(files)
    return plain and common.has_embedding(files)


def _has_settings(files: DraftFiles) -> bool:
    return bool(common.present(_EAGLE_KEYS, common.eagle_config(files), files.config))


def _marks(files: DraftFiles) -> tuple[str, ...]:
    found = []
    if set(_ARCHITECTURES) & set(common.architectures(files)):
        found.append(f"architecture {_ARCHITECTURES[0]}")
    latent = common.has(files.shapes, r"\.kv_a_proj_with_mqa\.")
    if latent and _is_native(files):
        found.append("unfused MLA tensors under midlayer.")
    elif latent and _is_export(files):
        found.append("unfused tensors under layers.0. without prefix, with embed_tokens")
    if found and _has_settings(files):
        found.append("its eagle_config (use_mtp_layernorm and others)")
    return tuple(found)


def _id_convention(files: DraftFiles) -> IdMark | None:
    if _is_native(files):
        settings = _has_settings(files)
        extra = " beside its own eagle_config" if settings else ""
        return IdMark(
            IdConvention.AFTER_LAYER,
            f"TorchSpec keeps midlayer. names{extra} only with ids of layers after which a state "
            "is taken",
            weak=not settings,
        )
    ids = common.layer_ids(files)
    # Its vLLM export renames to layers.0. and adds one to each id in the same run.
    modelopt = common.present(MODELOPT_KEYS, common.eagle_config(files), files.config)
    if _is_export(files) and not modelopt and ids is not None and ids[0] == 2:
        return IdMark(
            IdConvention.BOUNDARY,
            "layers.0. names with embed_tokens and ids from 2 are TorchSpec's vLLM export, which "
            "shifts the ids",
        )
    return None


TORCHSPEC: Final = DraftFormat(
    name="torchspec",
    title="TorchSpec (lightseekorg)",
    marks=_marks,
    renames=(common.STRIP_PREFIXES, common.MIDLAYER_NUMBERED, common.MIDLAYER),
    read_config=common.flat_config,
    id_convention=_id_convention,
)
