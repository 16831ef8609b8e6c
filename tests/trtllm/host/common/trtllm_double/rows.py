# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Which rows of a pass look at which places of the cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional


@dataclass(frozen=True)
class Group:
    """Sequences of one pass with as many rows each; keys are padded to the longest.

    Attributes:
        is_context: Whether keys are expanded; generation rows absorb the projection.
        rows: [sequences, q] indices of rows of the pass.
        slots: [sequences, keys] places in the cache.
        padding: [sequences, keys] where there is no key.
        hidden: [sequences, q, keys] where a row must not look.
    """

    is_context: bool
    rows: torch.Tensor
    slots: torch.Tensor
    padding: torch.Tensor
    hidden: torch.Tensor


@dataclass(frozen=True)
class Rows:
    """Rows of one pass: their positions, their places in the cache, and what they look at."""

    positions: torch.Tensor
    slots: torch.Tensor
    longest: int
    groups: list[Group]


def make_rows(
    counts: list[int], lengths: list[int], pages: list[list[int]], num_contexts: int, size: int
) -> Rows:
    where = [
        (torch.tensor(owned)[:, None] * size + torch.arange(size)).flatten() for owned in pages
    ]
    begins = [length - count for count, length in zip(counts, lengths, strict=True)]
    members: dict[tuple[bool, int], list[int]] = {}
    for index, count in enumerate(counts):
        members.setdefault((index < num_contexts, count), []).append(index)
    starts = torch.tensor([0, *counts]).cumsum(0)
    groups = []
    for (is_context, count), indices in members.items():
        ends = torch.tensor([lengths[i] for i in indices])[:, None]
        keys = torch.arange(int(ends.max()))
        slots = torch.stack(
            [
                functional.pad(where[i][: lengths[i]], (0, keys.numel() - lengths[i]))
                for i in indices
            ]
        )
        positions = ends - count + torch.arange(count)
        groups.append(
            Group(
                is_context=is_context,
                rows=starts[indices][:, None] + torch.arange(count),
                slots=slots,
                padding=keys >= ends,
                hidden=keys > positions.unsqueeze(-1),
            )
        )
    spans = list(zip(where, begins, lengths, strict=True))
    return Rows(
        positions=torch.cat([torch.arange(begin, end) for _, begin, end in spans]),
        slots=torch.cat([slots[begin:end] for slots, begin, end in spans]),
        longest=max(lengths),
        groups=groups,
    )
