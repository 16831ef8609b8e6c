# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Checks the map from a draft's reduced vocabulary to its target's.

`d2t` holds offsets: `target = draft + d2t[draft]`. A wrong table only costs acceptance, so it is
checked at load, against `t2d` too where that exists.
"""

from __future__ import annotations

import logging

import torch

from tensorrt_llm_ext.errors import CheckpointError

_logger = logging.getLogger(__name__)


def check_vocabulary_map(
    d2t: torch.Tensor, t2d: torch.Tensor | None, *, draft_vocab_size: int, vocab_size: int
) -> None:
    """Refuses a vocabulary map that cannot be an offset table.

    Args:
        d2t: [draft_vocab_size] integer offsets.
        t2d: [vocab_size] bool (or 0/1): which target ids the draft knows; None when absent.
        draft_vocab_size: Size of the draft's vocabulary.
        vocab_size: Size of the target's vocabulary.

    Raises:
        CheckpointError: If dtype, length, range or order are wrong, or `t2d` disagrees.
    """
    if d2t.is_floating_point() or d2t.is_complex() or d2t.dtype == torch.bool:
        raise CheckpointError(f"d2t must hold integer offsets, got dtype {d2t.dtype}.")
    if tuple(d2t.shape) != (draft_vocab_size,):
        raise CheckpointError(
            f"d2t has shape {list(d2t.shape)}, expected [{draft_vocab_size}] (draft_vocab_size)."
        )
    ids = torch.arange(draft_vocab_size, dtype=torch.int64)
    offsets = d2t.to(torch.int64)
    if not _is_map(ids + offsets, vocab_size):
        hint = (
            "It looks like a table of absolute target ids: store d2t - arange(draft_vocab_size)."
            if _is_map(offsets, vocab_size)
            else "The tensor is damaged, or was made for another vocabulary."
        )
        raise CheckpointError(
            f"d2t is no offset table: draft id + d2t must rise strictly within "
            f"0..{vocab_size - 1}, got {(ids + offsets)[:8].tolist()}... {hint}"
        )
    if draft_vocab_size < vocab_size and not bool(offsets.any()):
        _logger.warning(
            "d2t is all zeros: the draft's %d ids are the first of the target's %d. That is legal, "
            "but most often the sign of a lost table, and then acceptance is near zero.",
            draft_vocab_size,
            vocab_size,
        )
    if t2d is not None:
        _check_inverse(t2d, ids + offsets, vocab_size)


def _is_map(target_ids: torch.Tensor, vocab_size: int) -> bool:
    in_range = bool((target_ids >= 0).all()) and bool((target_ids < vocab_size).all())
    return in_range and bool((target_ids[1:] > target_ids[:-1]).all())


def _check_inverse(t2d: torch.Tensor, target_ids: torch.Tensor, vocab_size: int) -> None:
    if tuple(t2d.shape) != (vocab_size,) or t2d.is_floating_point():
        raise CheckpointError(
            f"t2d must be a bool tensor of shape [{vocab_size}] (vocab_size), got {t2d.dtype} "
            f"{list(t2d.shape)}."
        )
    known = t2d.to(torch.bool).nonzero().flatten()
    if not torch.equal(known, target_ids):
        raise CheckpointError(
            f"t2d marks {known.numel()} target ids, d2t maps to {target_ids.numel()}, and they are "
            "not the same ids. One of the two tables is from another export of the draft."
        )
