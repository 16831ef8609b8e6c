# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Steps 3 and 4 of one-model execution: the draft's extend pass and its greedy chain."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tensorrt_llm_ext.models.interfaces import DraftModel, ForwardContext, TargetTokenId
from tensorrt_llm_ext.ops.attention.metadata import PADDING_SLOT, DecodeMetadata, MLAMetadata


@dataclass
class DraftRows:
    """Rows of one draft pass: states, successors, positions and cache placement.

    Attributes:
        captured: [rows, L * target_hidden_size] captured target states.
        successors: [rows] int64, target id of the token after each row's position.
        positions: [rows] int64.
        metadata: Cache placement.
    """

    captured: torch.Tensor
    successors: torch.Tensor
    positions: torch.Tensor
    metadata: MLAMetadata


@dataclass
class ChainStart:
    """Where the chain begins.

    Attributes:
        state: [batch, hidden_size] recurrent state of each request's last accepted row.
        positions: [batch] int64, that row's position.
        block_table: [batch, num_columns] int64.
        active: [batch] bool; the others write nothing.
        max_positions: The chain writes nothing at or past this position.
        block_size: Tokens per cache block.
    """

    state: torch.Tensor
    positions: torch.Tensor
    block_table: torch.Tensor
    active: torch.Tensor
    max_positions: int
    block_size: int


def extend(
    draft: DraftModel, rows: DraftRows, caches: tuple[torch.Tensor, ...], max_positions: int
) -> torch.Tensor:
    """Runs the draft on rows whose target states are true, writing their draft KV.

    Rows at or past `max_positions` (the draft's rotary table may be shorter than the target's)
    are computed at a clamped position and write nothing.

    Returns:
        [rows, hidden_size] recurrent states.
    """
    positions, metadata = rows.positions, rows.metadata
    table = draft.config.mla.rope.max_position_embeddings
    if table < max_positions:
        inside = positions < table
        metadata = MLAMetadata(
            slot_mapping=torch.where(inside, metadata.slot_mapping, PADDING_SLOT),
            decode=metadata.decode,
            prefill=metadata.prefill,
            has_padding=True,
        )
        positions = positions.clamp(max=table - 1)
    ctx = ForwardContext(caches, metadata)
    hidden = draft.combine(rows.captured)
    return draft.forward(hidden, TargetTokenId(rows.successors), positions, ctx)


def chain(
    draft: DraftModel, start: ChainStart, caches: tuple[torch.Tensor, ...], draft_len: int
) -> torch.Tensor:
    """Proposes `draft_len` tokens per request, one after the other, greedily.

    Step j feeds the state of step j - 1 and the embedding of d_j at the last row's position + j;
    its KV row is provisional and overwritten by the next extend.

    Returns:
        [batch, draft_len] int64 target ids.
    """
    limit = min(start.max_positions, draft.config.mla.rope.max_position_embeddings)
    last_column = start.block_table.shape[1] - 1
    state = start.state
    _, token = draft.propose(state)
    drafts: list[torch.Tensor] = [token]
    for step in range(1, draft_len):
        ahead = start.positions + step
        positions = ahead.clamp(max=limit - 1)
        # Only inactive requests reach past their table: nothing was reserved for them.
        columns = (positions // start.block_size).clamp(max=last_column)
        blocks = start.block_table.gather(1, columns.unsqueeze(1))
        slots = blocks.squeeze(1) * start.block_size + positions % start.block_size
        writes = start.active & (ahead < limit)
        metadata = MLAMetadata(
            slot_mapping=torch.where(writes, slots, PADDING_SLOT),
            decode=DecodeMetadata(start.block_table, positions.unsqueeze(1), start.block_size),
            has_padding=True,
        )
        state = draft.forward(state, token, positions, ForwardContext(caches, metadata))
        _, token = draft.propose(state)
        drafts.append(token)
    return torch.stack(drafts, dim=1)
