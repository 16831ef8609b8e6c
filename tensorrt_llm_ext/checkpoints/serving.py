# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Two checkpoints in, what `planning.serve_config` needs to know of them out."""

from __future__ import annotations

import os
from collections.abc import Sequence

from tensorrt_llm_ext.checkpoints.normalize import (
    draft_config,
    open_draft,
    open_target,
    target_config,
)
from tensorrt_llm_ext.planning.serve_config import ServePair


def read_serve_pair(
    target: str | os.PathLike[str],
    draft: str | os.PathLike[str],
    *,
    boundaries: Sequence[int] | None = None,
) -> ServePair:
    """Reads a target and a draft, from headers and JSON alone.

    Args:
        target: Folder or hub id of the target.
        draft: Folder or hub id of the draft.
        boundaries: The user's override of the captured boundaries.

    Returns:
        The pair; folders get their absolute path, because a server may start elsewhere.

    Raises:
        CheckpointError: If files cannot be read or are unsafe.
        ConfigError, UnsupportedError: If one of them, or the two together, break a rule.
    """
    opened_target = open_target(target)
    read_target = target_config(opened_target)
    opened_draft = open_draft(draft)
    return ServePair(
        target=read_target,
        draft=draft_config(opened_draft, read_target, boundaries=boundaries),
        target_ref=_reference(target),
        draft_ref=_reference(draft),
        target_quant=opened_target.quant,
        draft_quant=opened_draft.quant,
        traits=opened_draft.traits(),
    )


def _reference(ref: str | os.PathLike[str]) -> str:
    return os.path.abspath(ref) if os.path.isdir(ref) else os.fspath(ref)
