# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Drafts written by this package, and whatever no layout claims."""

from __future__ import annotations

from typing import Final

from tensorrt_llm_ext.checkpoints.formats import common
from tensorrt_llm_ext.checkpoints.formats.base import DraftFiles, DraftFormat
from tensorrt_llm_ext.configs.boundaries import EXPLICIT_KEY


def _marks(files: DraftFiles) -> tuple[str, ...]:
    return (EXPLICIT_KEY,) if common.setting(files, EXPLICIT_KEY) is not None else ()


def _any(files: DraftFiles) -> tuple[str, ...]:
    return ("no mark of a known producer",)


NATIVE: Final = DraftFormat(
    name="trtllm_ext",
    title="written by trtllm-ext (convert, quantize or training)",
    marks=_marks,
    renames=common.UNION,
    read_config=common.flat_config,
    id_convention=lambda files: None,
)
GENERIC: Final = DraftFormat(
    name="generic",
    title="unknown producer; the union of all known spellings",
    marks=_any,
    renames=common.UNION,
    read_config=common.flat_config,
    id_convention=lambda files: None,
)
