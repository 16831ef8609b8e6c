# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Checks the map from a draft's reduced vocabulary to its target's.

`d2t` holds offsets: `target = draft + d2t[draft]`. A wrong table only costs acceptance, so it is
checked at load, against `t2d` too where that exists.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch

from tensorrt_llm_ext.configs.hf_draft import IDENTITY_D2T_KEY
from tensorrt_llm_ext.errors import CheckpointError

_logger = logging.getLogger(__name__)


class TableKind(str, Enum):
    """What the numbers of a `d2t` are."""

    OFFSET = "offset"  # target = draft + d2t[draft]
    ABSOLUTE = "absolute"  # target = d2t[draft], which no engine reads
    IDENTITY = "identity"  # all zeros with a reduced vocabulary: the first ids
    UNDECIDABLE = "undecidable"  # neither reading is a map


@dataclass(frozen=True, kw_only=True, eq=False)
class VocabularyMap:
    """What a `d2t` was found to be.

    Attributes:
        kind: How it is to be read.
        target_ids: [draft_vocab_size] int64: the target id of each draft id under that reading; the
            offset reading where there is none.
        reason: Why, in words.
    """

    kind: TableKind
    target_ids: torch.Tensor = field(repr=False)
    reason: str


def allows_identity(config: Mapping[str, Any]) -> bool:
    """Whether a draft's config.json says that an all-zero d2t is meant."""
    return config.get(IDENTITY_D2T_KEY) is True


def decide_vocabulary_map(
    d2t: torch.Tensor, t2d: torch.Tensor | None, *, draft_vocab_size: int, vocab_size: int
) -> VocabularyMap:
    """Decides how a `d2t` is to be read.

    Offsets if draft id + d2t rises strictly within the vocabulary; absolute ids if the table itself
    does and the offset reading does not. Where both readings are maps, `t2d` decides if it fits one
    of them only.

    Args:
        d2t: [draft_vocab_size] integers.
        t2d: [vocab_size] bool (or 0/1): which target ids the draft knows; None when absent.
        draft_vocab_size: Size of the draft's vocabulary.
        vocab_size: Size of the target's vocabulary.

    Raises:
        CheckpointError: If dtype or length of a table are wrong (V8).
    """
    _check_table(d2t, draft_vocab_size)
    offsets = d2t.to(torch.int64)
    ids = torch.arange(draft_vocab_size, dtype=torch.int64) + offsets
    as_offsets, as_ids = _is_map(ids, vocab_size), _is_map(offsets, vocab_size)
    known = None if t2d is None else _known_ids(t2d, vocab_size)
    if as_offsets and as_ids and known is not None and not torch.equal(known, ids):
        as_offsets = not torch.equal(known, offsets)
    if as_offsets:
        if draft_vocab_size < vocab_size and not bool(offsets.any()):
            reason = "every offset is zero, so the draft's ids are the first of the target's"
            return VocabularyMap(kind=TableKind.IDENTITY, target_ids=ids, reason=reason)
        reason = "draft id + d2t rises strictly within the vocabulary"
        return VocabularyMap(kind=TableKind.OFFSET, target_ids=ids, reason=reason)
    if as_ids:
        reason = "d2t itself rises strictly within the vocabulary, and draft id + d2t does not fit"
        return VocabularyMap(kind=TableKind.ABSOLUTE, target_ids=offsets, reason=reason)
    reason = "neither d2t nor draft id + d2t rises strictly within the vocabulary"
    return VocabularyMap(kind=TableKind.UNDECIDABLE, target_ids=ids, reason=reason)


def check_vocabulary_map(
    d2t: torch.Tensor,
    t2d: torch.Tensor | None,
    *,
    draft_vocab_size: int,
    vocab_size: int,
    allow_identity: bool = False,
) -> None:
    """Refuses a vocabulary map that cannot be an offset table.

    Args:
        d2t: [draft_vocab_size] integer offsets.
        t2d: [vocab_size] bool (or 0/1): which target ids the draft knows; None when absent.
        draft_vocab_size: Size of the draft's vocabulary.
        vocab_size: Size of the target's vocabulary.
        allow_identity: Whether a reduced vocabulary may be the first ids of the target.

    Raises:
        CheckpointError: If dtype or length are wrong (V8), or range, order or meaning are, or
            `t2d` disagrees (V21).
    """
    found = decide_vocabulary_map(
        d2t, t2d, draft_vocab_size=draft_vocab_size, vocab_size=vocab_size
    )
    if found.kind in (TableKind.ABSOLUTE, TableKind.UNDECIDABLE):
        hint = (
            "It looks like a table of absolute target ids: store d2t - arange(draft_vocab_size)."
            if found.kind is TableKind.ABSOLUTE
            else "The tensor is damaged, or was made for another vocabulary."
        )
        ids = torch.arange(draft_vocab_size, dtype=torch.int64) + d2t.to(torch.int64)
        raise CheckpointError(
            f"d2t is no offset table: draft id + d2t must rise strictly within "
            f"0..{vocab_size - 1}, got {ids[:8].tolist()}... {hint}",
            check="V21",
        )
    if found.kind is TableKind.IDENTITY:
        if not allow_identity:
            raise CheckpointError(
                f"d2t is all zeros: the draft's {draft_vocab_size} ids would be the first of the "
                f"target's {vocab_size}. That is most often the sign of a lost table, and then "
                "acceptance is near zero. Restore d2t from the export; if it is meant, write "
                f'"{IDENTITY_D2T_KEY}": true into the draft\'s config.json.',
                check="V21",
            )
        _logger.warning(
            "d2t is all zeros: the draft's %d ids are the first of the target's %d, as %s says.",
            draft_vocab_size,
            vocab_size,
            IDENTITY_D2T_KEY,
        )
    if t2d is not None:
        _check_inverse(t2d, found.target_ids, vocab_size)


def check_vocabulary_tables(
    d2t: torch.Tensor | None,
    t2d: torch.Tensor | None,
    *,
    draft_vocab_size: int,
    vocab_size: int,
    allow_identity: bool = False,
) -> None:
    """Checks whichever of the two tables a draft has.

    Raises:
        CheckpointError: As `check_vocabulary_map`, or if only `t2d` says that ids are left out
            (V21).
    """
    if d2t is not None:
        check_vocabulary_map(
            d2t,
            t2d,
            draft_vocab_size=draft_vocab_size,
            vocab_size=vocab_size,
            allow_identity=allow_identity,
        )
    elif t2d is not None:
        check_lonely_t2d(t2d)


def check_lonely_t2d(t2d: torch.Tensor) -> None:
    """Refuses a `t2d` that leaves out target ids beside no `d2t`.

    Raises:
        CheckpointError: If it does (V21).
    """
    if not bool(t2d.to(torch.bool).all()):
        raise CheckpointError(
            "The draft has t2d, which leaves out target ids, but no d2t. The export is incomplete: "
            "restore d2t from it.",
            check="V21",
        )


def _check_table(d2t: torch.Tensor, draft_vocab_size: int) -> None:
    if d2t.is_floating_point() or d2t.is_complex() or d2t.dtype == torch.bool:
        raise CheckpointError(
            f"d2t must hold integer offsets, got dtype {d2t.dtype}. Export it as int64.",
            check="V8",
        )
    if tuple(d2t.shape) != (draft_vocab_size,):
        raise CheckpointError(
            f"d2t has shape {list(d2t.shape)}, expected [{draft_vocab_size}] (draft_vocab_size). "
            "Table and config are of different exports.",
            check="V8",
        )


def _is_map(target_ids: torch.Tensor, vocab_size: int) -> bool:
    in_range = bool((target_ids >= 0).all()) and bool((target_ids < vocab_size).all())
    return in_range and bool((target_ids[1:] > target_ids[:-1]).all())


def _known_ids(t2d: torch.Tensor, vocab_size: int) -> torch.Tensor:
    if tuple(t2d.shape) != (vocab_size,) or t2d.is_floating_point():
        raise CheckpointError(
            f"t2d must be a bool tensor of shape [{vocab_size}] (vocab_size), got {t2d.dtype} "
            f"{list(t2d.shape)}. It is from another export.",
            check="V8",
        )
    return t2d.to(torch.bool).nonzero().flatten()


def _check_inverse(t2d: torch.Tensor, target_ids: torch.Tensor, vocab_size: int) -> None:
    known = _known_ids(t2d, vocab_size)
    if not torch.equal(known, target_ids):
        raise CheckpointError(
            f"t2d marks {known.numel()} target ids, d2t maps to {target_ids.numel()}, and they are "
            "not the same ids. One of the two tables is from another export of the draft.",
            check="V21",
        )
