# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Drafts saved by NeMo Automodel: every tensor of the body under `model.`."""

from __future__ import annotations

from typing import Final

from tensorrt_llm_ext.checkpoints.formats import common
from tensorrt_llm_ext.checkpoints.formats.base import DraftFiles, DraftFormat

_OUTSIDE: Final = ("lm_head.", "d2t", "t2d")


def _marks(files: DraftFiles) -> tuple[str, ...]:
    body = [name for name in files.shapes if not name.startswith(_OUTSIDE)]
    prefixed = bool(body) and all(name.startswith("model.") for name in body)
    plain = "model.fc.weight" in files.shapes and common.has(body, r"^model\.layers\.\d+\.")
    fused = common.has(body, r"\.(fused_qkv_a_proj|gate_up_proj)")
    if not (prefixed and plain) or fused:
        return ()
    return ("every tensor but head and vocabulary tables under model., unfused, as model.layers.",)


AUTOMODEL: Final = DraftFormat(
    name="automodel",
    title="NeMo Automodel",
    marks=_marks,
    renames=(common.STRIP_PREFIXES,),
    read_config=common.flat_config,
    id_convention=lambda files: None,
    facts=(
        "NeMo Automodel trains MLA drafts without YaRN's mscale in the softmax scale, whatever "
        "the config says: with factor 64 and mscale_all_dim 1 engines scale by 2.005 more than "
        "the draft was trained with. Run `trtllm-ext canary`, which measures both; `--fix` folds "
        "the factor into q_b_proj.",
    ),
)
