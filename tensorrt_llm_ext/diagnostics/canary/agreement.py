# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""How many drafts the target would have accepted at each position of its own texts.

The draft runs as it does in an engine: `speculative.drafter.extend` over a whole text, then
`speculative.drafter.chain` from each anchor. The chain's rows are provisional, so each anchor has
copies of the cache blocks that they fall into; all other blocks are shared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tensorrt_llm_ext.engine.kv_cache import allocate_pool
from tensorrt_llm_ext.engine.teacher_states import TeacherSequence, TeacherStates
from tensorrt_llm_ext.models.eagle3 import Eagle3Draft
from tensorrt_llm_ext.ops.attention.metadata import MLAMetadata, PrefillMetadata
from tensorrt_llm_ext.speculative.drafter import ChainStart, DraftRows, chain, extend

_BLOCK_SIZE = 8
_CHUNK = 256  # anchors per chain: bounds the memory of gathered keys
_NO_LIMIT = 1 << 60


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Accepted drafts at every anchor.

    Attributes:
        accepted: Per text [anchors] int64, in 0..max_draft_len.
        anchors: Per text [anchors] int64, the positions.
        max_draft_len: Proposals per anchor.
    """

    accepted: tuple[torch.Tensor, ...]
    anchors: tuple[torch.Tensor, ...]
    max_draft_len: int

    @property
    def num_anchors(self) -> int:
        """Anchors of all texts."""
        return sum(part.numel() for part in self.accepted)

    @property
    def acceptance_length(self) -> float:
        """1 + mean number of accepted drafts over all anchors."""
        return 1.0 + float(torch.cat(self.accepted).to(torch.float64).mean())

    @property
    def per_position(self) -> tuple[float, ...]:
        """Share of anchors whose first i drafts were all accepted, for i = 1, 2 and so on."""
        accepted = torch.cat(self.accepted)
        return tuple(
            float((accepted >= i).to(torch.float64).mean())
            for i in range(1, self.max_draft_len + 1)
        )

    @property
    def replayed_length(self) -> float | None:
        """Acceptance length of an engine that walks the texts: each step starts where one ends.

        With every position an anchor this is the number that the embedded engine counts, to the
        last digit; None when a step would start at a position that is no anchor.
        """
        steps = total = 0
        for anchors, accepted in zip(self.anchors, self.accepted, strict=True):
            if not anchors.numel():
                continue
            count_at = dict(zip(anchors.tolist(), accepted.tolist(), strict=True))
            position, last = min(count_at), max(count_at)
            while position <= last:
                count = count_at.get(position)
                if count is None:
                    return None
                steps, total = steps + 1, total + count
                position += count + 1
        return 1.0 + total / steps if steps else None


def choose_anchors(
    states: TeacherStates, max_draft_len: int, max_anchors: int | None = None, seed: int = 0
) -> tuple[torch.Tensor, ...]:
    """Picks the positions that all settings are judged at.

    Args:
        states: The texts.
        max_draft_len: Proposals per anchor.
        max_anchors: A seeded sample of so many; every position when None.
        seed: Of that sample.

    Returns:
        Per text [anchors] int64, ascending.
    """
    anchors = [sequence.anchors(max_draft_len) for sequence in states.sequences]
    total = sum(part.numel() for part in anchors)
    if max_anchors is None or total <= max_anchors:
        return tuple(anchors)
    generator = torch.Generator().manual_seed(seed)
    keep = torch.zeros(total, dtype=torch.bool)
    keep[torch.randperm(total, generator=generator)[:max_anchors]] = True
    parts = torch.split(keep, [part.numel() for part in anchors])
    return tuple(part[mask] for part, mask in zip(anchors, parts, strict=True))


@torch.inference_mode()
def measure_agreement(
    draft: Eagle3Draft,
    states: TeacherStates,
    anchors: Sequence[torch.Tensor],
    max_draft_len: int,
) -> Agreement:
    """Counts, at every anchor, the leading proposals that equal the target's greedy tokens.

    Args:
        draft: In eval mode, with embedding and head; its first cache layer must be 0.
        states: Texts with states of every boundary of the draft.
        anchors: Per text, from `choose_anchors`.
        max_draft_len: Proposals per anchor, at least 1.
    """
    longest = max(sequence.length for sequence in states.sequences)
    pool = _Pool(draft, longest, max(part.numel() for part in anchors), max_draft_len)
    accepted = []
    for sequence, positions in zip(states.sequences, anchors, strict=True):
        ahead = positions.unsqueeze(1) + torch.arange(1, max_draft_len + 1)
        hits = pool.propose(sequence, positions) == sequence.labels[ahead]
        accepted.append(hits.long().cumprod(dim=1).sum(dim=1))
    return Agreement(accepted=tuple(accepted), anchors=tuple(anchors), max_draft_len=max_draft_len)


@torch.inference_mode()
def propose(
    draft: Eagle3Draft, sequence: TeacherSequence, anchors: torch.Tensor, max_draft_len: int
) -> torch.Tensor:
    """Returns what a draft proposes after each anchor, [anchors, max_draft_len] target ids."""
    return _Pool(draft, sequence.length, anchors.numel(), max_draft_len).propose(sequence, anchors)


class _Pool:
    """The draft's paged cache: blocks of one text at a time, and private ones for its chains."""

    def __init__(
        self, draft: Eagle3Draft, length: int, num_anchors: int, max_draft_len: int
    ) -> None:
        self.draft = draft
        self.max_draft_len = max_draft_len
        norm = next(draft.norm.parameters())
        self.device, self.dtype = norm.device, norm.dtype
        self.num_shared = -(-(length + max_draft_len) // _BLOCK_SIZE)
        # max_draft_len - 1 rows may straddle one block border more than they fill.
        self.num_private = (max_draft_len - 2) // _BLOCK_SIZE + 2
        num_anchors = min(num_anchors, _CHUNK)
        self.caches = allocate_pool(
            draft.config.num_layers,
            1 + self.num_shared + num_anchors * self.num_private,
            _BLOCK_SIZE,
            draft.config.mla.latent_size,
            dtype=self.dtype,
            device=self.device,
        )

    def propose(self, sequence: TeacherSequence, anchors: torch.Tensor) -> torch.Tensor:
        """Returns the proposals after each anchor of a text, [anchors, max_draft_len]."""
        if not anchors.numel():
            return anchors.new_zeros((0, self.max_draft_len))
        states = self._extend(sequence)
        return torch.cat([self._chain(states, part).cpu() for part in torch.split(anchors, _CHUNK)])

    def _extend(self, sequence: TeacherSequence) -> torch.Tensor:
        """Runs the draft over all rows whose successor is known; returns their states."""
        num_rows = sequence.length - 1
        states = [sequence.states[b][:num_rows] for b in self.draft.config.boundaries]
        positions = torch.arange(num_rows, device=self.device)
        chunk = PrefillMetadata(
            block_table=torch.arange(1, self.num_shared + 1, device=self.device),
            start=0,
            num_tokens=num_rows,
            block_size=_BLOCK_SIZE,
        )
        rows = DraftRows(
            captured=torch.cat(states, dim=-1).to(self.device, self.dtype),
            successors=sequence.input_ids[1:].to(self.device),
            positions=positions,
            metadata=MLAMetadata(slot_mapping=positions + _BLOCK_SIZE, prefill=(chunk,)),
        )
        return extend(self.draft, rows, self.caches, _NO_LIMIT)

    def _chain(self, recurrent: torch.Tensor, anchors: torch.Tensor) -> torch.Tensor:
        """Returns the proposals of each anchor, [anchors, max_draft_len] target ids."""
        anchors = anchors.to(self.device)
        start = ChainStart(
            state=recurrent[anchors],
            positions=anchors,
            block_table=self._tables(anchors),
            active=torch.ones_like(anchors, dtype=torch.bool),
            max_positions=_NO_LIMIT,
            block_size=_BLOCK_SIZE,
        )
        return chain(self.draft, start, self.caches, self.max_draft_len)

    def _tables(self, anchors: torch.Tensor) -> torch.Tensor:
        """Shared blocks up to each anchor, then private ones that start as copies."""
        count, width = anchors.numel(), self.num_private
        columns = int(anchors.max() + self.max_draft_len) // _BLOCK_SIZE + 1
        table = torch.arange(1, columns + 1, device=self.device).repeat(count, 1)
        first = (anchors + 1) // _BLOCK_SIZE  # column of the chain's first row
        own = torch.arange(count * width, device=self.device).view(count, width)
        own = own + 1 + self.num_shared
        wanted = first.unsqueeze(1) + torch.arange(width, device=self.device)
        inside = wanted < columns
        copied = own[inside]
        shared = wanted[inside] + 1
        for cache in self.caches:
            cache[copied] = cache[shared]
        rows = torch.arange(count, device=self.device).unsqueeze(1).expand(-1, width)
        table[rows[inside], wanted[inside]] = copied
        return table
