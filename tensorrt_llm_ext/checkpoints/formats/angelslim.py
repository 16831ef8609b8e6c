# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""AngelSlim's drafts, which carry the captured layers under two keys."""

from __future__ import annotations

from typing import Final

from tensorrt_llm_ext.checkpoints.formats import common
from tensorrt_llm_ext.checkpoints.formats.base import (
    DraftFiles,
    DraftFormat,
    IdConvention,
    IdMark,
)

AFTER_KEY: Final = "aux_hidden_states_layer_ids"


def _marks(files: DraftFiles) -> tuple[str, ...]:
    return (AFTER_KEY,) if common.setting(files, AFTER_KEY) is not None else ()


def _id_convention(files: DraftFiles) -> IdMark | None:
    after = common.layer_ids(files, AFTER_KEY)
    if after is None:
        return None
    ids = common.layer_ids(files)
    if ids is None:
        return IdMark(
            IdConvention.AFTER_LAYER, f"AngelSlim writes after-layer ids under {AFTER_KEY}"
        )
    if ids == tuple(i + 1 for i in after):
        return IdMark(
            IdConvention.BOUNDARY,
            f"{AFTER_KEY} {list(after)} beside them are one below (AngelSlim writes both)",
        )
    return None


ANGELSLIM: Final = DraftFormat(
    name="angelslim",
    title="AngelSlim",
    marks=_marks,
    renames=common.UNION,
    read_config=common.flat_config,
    id_convention=_id_convention,
)
