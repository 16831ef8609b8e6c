# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Turns a scheduled step into the tensors of `StepInputs`."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tensorrt_llm_ext.engine.block_manager import BlockManager
from tensorrt_llm_ext.engine.request import Request
from tensorrt_llm_ext.engine.sampling_state import sampling_inputs
from tensorrt_llm_ext.engine.scheduler import ScheduledChunk, ScheduledStep
from tensorrt_llm_ext.engine.warmup import SamplingKind
from tensorrt_llm_ext.ops.attention.metadata import (
    NULL_BLOCK,
    PADDING_SLOT,
    DecodeMetadata,
    MLAMetadata,
    PrefillMetadata,
)
from tensorrt_llm_ext.speculative.metadata import PromptRows, RingFlush, StepInputs


@dataclass(frozen=True, kw_only=True, slots=True)
class InputLimits:
    """Sizes that inputs are built for.

    Attributes:
        block_size: Tokens per cache block.
        max_seq_len: Positions that a row may have.
        vocab_size: Width of the logits.
        ring_size: Captured rows per request in the ring; 0 without a draft.
        max_batch_size: Rings; row `max_batch_size * ring_size` takes what nobody needs.
    """

    block_size: int
    max_seq_len: int
    vocab_size: int
    ring_size: int
    max_batch_size: int


class InputBuilder:
    """Builds step inputs on one device."""

    def __init__(self, limits: InputLimits, blocks: BlockManager, device: torch.device) -> None:
        self.limits = self._limits = limits
        self._blocks = blocks
        self._device = device

    def build(
        self,
        step: ScheduledStep,
        *,
        pad_decodes_to: int | None = None,
        query_len: int | None = None,
        num_columns: int | None = None,
        sampling_kind: SamplingKind | None = None,
    ) -> StepInputs:
        """Builds the inputs of one step.

        Args:
            step: The plan; its cache positions are reserved.
            pad_decodes_to: Requests in the decode grid, padding included (a captured step's
                bucket); padding requests write nothing and emit nothing.
            query_len: Rows per grid request; at least one more than the most pending drafts.
            num_columns: Columns of the block table; as many as the longest request when None.
            sampling_kind: Of a captured step: its inputs have the shapes of this kind, and always
                say that they may hold padding.
        """
        rows = _RowLists()
        query_len = query_len or 1 + max((len(r.pending_drafts) for r in step.decodes), default=0)
        num_decode = max(len(step.decodes), pad_decodes_to or 0)
        for request in step.decodes:
            self._add_decode(rows, request, query_len)
        num_padding = num_decode - len(step.decodes)
        rows.pad(num_padding, query_len)
        for chunk in step.chunks:
            self._add_chunk(rows, chunk)
        table = self._block_table(step, num_padding, num_columns)
        token_ids, positions, slots = self._tensor([rows.token_ids, rows.positions, rows.slots])
        num_grid = num_decode * query_len
        decode = None
        if num_decode:
            grid = positions[:num_grid].view(num_decode, query_len)
            decode = DecodeMetadata(table[:num_decode], grid, self._limits.block_size)
        metadata = MLAMetadata(
            slot_mapping=slots,
            decode=decode,
            prefill=self._prefill(step.chunks, table[num_decode:]),
            has_padding=sampling_kind is not None or PADDING_SLOT in rows.slots,
        )
        requests = step.requests
        emits = [True] * len(step.decodes) + [False] * num_padding
        emits += [chunk.is_final for chunk in step.chunks]
        generated = [r.num_tokens for r in step.decodes] + [0] * num_padding
        generated += [chunk.request.num_tokens for chunk in step.chunks]
        return StepInputs(
            token_ids=token_ids,
            positions=positions,
            metadata=metadata,
            block_table=table,
            num_drafts=self._tensor(rows.num_drafts),
            next_tokens=self._tensor(rows.next_tokens),
            last_rows=self._tensor(rows.last_rows),
            emits=torch.tensor(emits, dtype=torch.bool, device=self._device),
            first_generated=self._tensor(generated),
            num_decode=num_decode,
            query_len=query_len,
            num_prefill=len(step.chunks),
            block_size=self._limits.block_size,
            max_positions=self._limits.max_seq_len,
            draft_len=step.draft_len,
            num_logprobs=_num_logprobs(requests),
            prompt_rows=self._prompt_rows(step.chunks, num_grid),
            sampling=sampling_inputs(
                step, num_padding, self._limits.vocab_size, self._device, sampling_kind
            ),
            ring_rows=self._ring_rows(step, query_len, num_padding),
            flush=self._flush(step),
        )

    def _add_decode(self, rows: _RowLists, request: Request, query_len: int) -> None:
        """The last committed token and its drafts, padded to `query_len` rows."""
        drafts = request.pending_drafts
        first, block_size = request.num_computed, self._limits.block_size
        blocks = self._blocks.block_ids(request.request_id)
        valid = 1 + len(drafts)
        positions = range(first, first + valid)
        rows.token_ids += [request.token_ids[-1], *drafts]
        rows.positions += positions
        rows.slots += [blocks[p // block_size] * block_size + p % block_size for p in positions]
        rows.num_drafts.append(len(drafts))
        padding = query_len - valid
        if padding:
            rows.token_ids += [0] * padding
            rows.positions += [first + valid - 1] * padding
            rows.slots += [PADDING_SLOT] * padding

    def _add_chunk(self, rows: _RowLists, chunk: ScheduledChunk) -> None:
        request, block_size = chunk.request, self._limits.block_size
        end = chunk.start + chunk.num_tokens
        blocks = self._blocks.block_ids(request.request_id)
        positions = range(chunk.start, end)
        rows.token_ids += request.token_ids[chunk.start : end]
        rows.positions += positions
        rows.slots += [blocks[p // block_size] * block_size + p % block_size for p in positions]
        rows.next_tokens += request.token_ids[chunk.start + 1 : end]
        rows.next_tokens.append(0 if chunk.is_final else request.token_ids[end])
        rows.last_rows.append(len(rows.token_ids) - 1)

    def _block_table(
        self, step: ScheduledStep, num_padding: int, num_columns: int | None
    ) -> torch.Tensor:
        """[batch, num_columns] block ids, the null block where a request has none."""
        tables = [self._blocks.block_ids(request.request_id) for request in step.decodes]
        tables += [[]] * num_padding
        tables += [self._blocks.block_ids(chunk.request.request_id) for chunk in step.chunks]
        width = num_columns or max(len(table) for table in tables)
        return self._tensor([[*t, *[NULL_BLOCK] * (width - len(t))] for t in tables])

    def _prefill(
        self, chunks: list[ScheduledChunk], tables: torch.Tensor
    ) -> tuple[PrefillMetadata, ...]:
        size = self._limits.block_size
        return tuple(
            PrefillMetadata(tables[index], chunk.start, chunk.num_tokens, size)
            for index, chunk in enumerate(chunks)
        )

    def _prompt_rows(self, chunks: list[ScheduledChunk], first: int) -> PromptRows | None:
        """Rows of the chunks, which begin at row `first`, that are scored."""
        rows: list[int] = []
        successors: list[int] = []
        num_top = 0
        for chunk in chunks:
            scored = chunk.scored
            if scored:
                rows += [first + position - chunk.start for position in scored]
                successors += chunk.request.token_ids[scored.start + 1 : scored.stop + 1]
                num_top = max(num_top, chunk.request.sampling.prompt_logprobs or 0)
            first += chunk.num_tokens
        return PromptRows(self._tensor(rows), self._tensor(successors), num_top) if rows else None

    def _ring_rows(
        self, step: ScheduledStep, query_len: int, num_padding: int
    ) -> torch.Tensor | None:
        """Flat ring row of each captured row at k' = 0; the last ring row takes the rest."""
        limits = self._limits
        if limits.ring_size == 0 or step.draft_len > 0:
            return None
        unused = limits.max_batch_size * limits.ring_size
        rows: list[int] = []
        for request in step.decodes:
            valid = 1 + len(request.pending_drafts)
            rows += self._ring_row_list(request, valid, unused)
            rows += [unused] * (query_len - valid)
        rows += [unused] * (num_padding * query_len)
        for chunk in step.chunks:
            rows += self._ring_row_list(chunk.request, chunk.num_tokens, unused)
        return self._tensor(rows)

    def _ring_row_list(self, request: Request, num_rows: int, unused: int) -> list[int]:
        if not ring_has_room(request, num_rows, self._limits.ring_size):
            return [unused] * num_rows
        first = request.ring_slot * self._limits.ring_size + request.num_ring_rows
        return list(range(first, first + num_rows))

    def _flush(self, step: ScheduledStep) -> RingFlush | None:
        """Ring rows of the requests that resume drafting in this step."""
        resuming = [r for r in step.requests if r.num_ring_rows and r.is_drafting]
        if step.draft_len == 0 or not resuming:
            return None
        size, ring_size = self._limits.block_size, self._limits.ring_size
        ring_rows: list[int] = []
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        chunks = []
        for request in resuming:
            blocks = self._blocks.block_ids(request.request_id)
            start, count = request.num_draft_valid, request.num_ring_rows
            first = request.ring_slot * ring_size
            ring_rows += range(first, first + count)
            tokens += request.token_ids[start + 1 : start + count + 1]
            positions += range(start, start + count)
            slots += [blocks[p // size] * size + p % size for p in range(start, start + count)]
            chunks.append(PrefillMetadata(self._tensor(blocks), start, count, size))
        metadata = MLAMetadata(slot_mapping=self._tensor(slots), prefill=tuple(chunks))
        return RingFlush(
            ring_rows=self._tensor(ring_rows),
            successors=self._tensor(tokens),
            positions=self._tensor(positions),
            metadata=metadata,
        )

    def _tensor(self, values: list[int] | list[list[int]]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)


class _RowLists:
    """Rows of a step as they are gathered."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.positions: list[int] = []
        self.slots: list[int] = []
        self.num_drafts: list[int] = []
        self.next_tokens: list[int] = []
        self.last_rows: list[int] = []

    def pad(self, num_requests: int, query_len: int) -> None:
        """Appends grid requests that write nothing."""
        num_rows = num_requests * query_len
        self.token_ids += [0] * num_rows
        self.positions += [0] * num_rows
        self.slots += [PADDING_SLOT] * num_rows
        self.num_drafts += [0] * num_requests


def ring_has_room(request: Request, num_rows: int, ring_size: int) -> bool:
    """Whether the request still drafts and its ring can take `num_rows` more captured rows."""
    return request.is_drafting and request.num_ring_rows + num_rows <= ring_size


def _num_logprobs(requests: list[Request]) -> int | None:
    asked = [r.sampling.logprobs for r in requests if r.sampling.logprobs is not None]
    return max(asked, default=None)
