# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Decides what one step runs: which requests decode, which prompt chunks ride along."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from tensorrt_llm_ext.engine.block_manager import BlockManager
from tensorrt_llm_ext.engine.request import Request, RequestStatus
from tensorrt_llm_ext.engine.settings import EngineConfig
from tensorrt_llm_ext.speculative.policy import reserved_positions


@dataclass
class ScheduledChunk:
    """Prompt tokens `start .. start + num_tokens - 1` of a request."""

    request: Request
    num_tokens: int

    @property
    def start(self) -> int:
        """Position of the first row."""
        return self.request.num_computed

    @property
    def scored(self) -> range:
        """Positions whose successors' log-probabilities are wanted."""
        request = self.request
        if not request.lacks_prompt_logprobs:
            return range(0)
        end = min(self.start + self.num_tokens, request.num_prompt_tokens - 1)
        return range(max(self.start, len(request.prompt_logprobs)), end)

    @property
    def is_final(self) -> bool:
        """Whether the chunk ends with the last committed token, so that it samples."""
        return self.start + self.num_tokens == self.request.num_tokens


@dataclass
class ScheduledStep:
    """One step: a decode grid, then prefill chunks, and the drafts to propose."""

    decodes: list[Request]
    chunks: list[ScheduledChunk]
    draft_len: int

    @property
    def requests(self) -> list[Request]:
        """All requests, in the order of the step's rows."""
        return [*self.decodes, *(chunk.request for chunk in self.chunks)]


class Scheduler:
    """Keeps the waiting and running requests and plans steps under the engine's limits.

    Running requests are ordered by arrival; the youngest is preempted first.
    """

    def __init__(self, config: EngineConfig, blocks: BlockManager, max_seq_len: int) -> None:
        self._config = config
        self._blocks = blocks
        self._max_seq_len = max_seq_len
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self._free_ring_slots = list(range(config.max_batch_size - 1, -1, -1))
        self.num_preemptions = 0

    def add(self, request: Request) -> None:
        """Queues a new request."""
        self.waiting.append(request)

    def remove(self, request: Request) -> None:
        """Takes a request out and returns its blocks, whatever state it is in."""
        if request.status is RequestStatus.RUNNING:
            self._leave(request)
        elif request.status is RequestStatus.WAITING:
            self.waiting.remove(request)
        request.status = RequestStatus.FINISHED

    def preempt(self, request: Request) -> None:
        """Returns a running request's blocks; it is recomputed from its committed tokens later."""
        self._leave(request)
        request.restart()
        request.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.appendleft(request)

    def _leave(self, request: Request) -> None:
        self.running.remove(request)
        self._blocks.release(request.request_id)
        self._free_ring_slots.append(request.ring_slot)
        request.ring_slot = -1

    def plan(self, draft_len: int) -> ScheduledStep | None:
        """Plans the next step without reserving cache positions; None when nothing can run.

        Args:
            draft_len: Drafts to propose in this step.
        """
        decodes = [request for request in self.running if request.is_decoding]
        query_len = 1 + max((len(r.pending_drafts) for r in decodes), default=0)
        budget = self._config.max_num_tokens - len(decodes) * query_len
        chunks = []
        for request in self.running:
            if not request.is_decoding and budget > 0:
                chunks.append(self._chunk(request, budget))
                budget -= chunks[-1].num_tokens
        if self.waiting:
            chunks += self._admit_waiting(budget, draft_len)
        if not decodes and not chunks:
            return None
        return ScheduledStep(decodes, chunks, draft_len)

    def _admit_waiting(self, budget: int, draft_len: int) -> list[ScheduledChunk]:
        """Starts waiting requests in order, as long as rows, places and blocks allow."""
        chunks: list[ScheduledChunk] = []
        reserved = sum(self._missing_blocks(request, draft_len) for request in self.running)
        while self.waiting and budget > 0 and len(self.running) < self._config.max_batch_size:
            request = self.waiting[0]
            if not self._admit(request, budget, draft_len, reserved):
                break
            reserved += self._missing_blocks(request, draft_len)
            chunks.append(self._chunk(request, budget))
            budget -= chunks[-1].num_tokens
        return chunks

    def _chunk(self, request: Request, budget: int) -> ScheduledChunk:
        return ScheduledChunk(request, min(request.num_tokens - request.num_computed, budget))

    def positions_needed(self, request: Request, num_rows: int, draft_len: int) -> int:
        """Cache positions that a step with `num_rows` rows of a request may write."""
        end = request.num_computed + num_rows
        if end < request.num_tokens:
            return end
        drafts = len(request.pending_drafts)
        return reserved_positions(request.num_tokens, drafts, draft_len, self._max_seq_len)

    def _missing_blocks(self, request: Request, draft_len: int) -> int:
        """Blocks a running request still needs for its committed tokens and drafts."""
        rows = request.num_tokens - request.num_computed
        positions = self.positions_needed(request, rows, draft_len)
        needed = -(-positions // self._config.block_size)
        return max(0, needed - len(self._blocks.block_ids(request.request_id)))

    def _admit(self, request: Request, budget: int, draft_len: int, reserved: int) -> bool:
        """Starts a waiting request if its whole prompt fits beside what the others need."""
        # A cached row has no state left to compute log-probabilities from.
        known = [] if request.lacks_prompt_logprobs else request.token_ids
        reused = self._blocks.create(request.request_id, known)
        request.num_computed = request.num_draft_valid = reused
        remaining = request.num_tokens - reused
        fits = self._missing_blocks(request, draft_len) + reserved <= self._blocks.num_free
        # A preempted request may have outgrown one step: its recomputation is always chunked.
        may_split = self._config.enable_chunked_prefill or request.num_preemptions > 0
        whole = may_split or remaining <= budget
        if not (fits or not self.running) or not whole:
            self._blocks.release(request.request_id)
            request.num_computed = request.num_draft_valid = 0
            return False
        self.waiting.popleft()
        self.running.append(request)
        request.status = RequestStatus.RUNNING
        request.num_reused_tokens = reused
        request.ring_slot = self._free_ring_slots.pop()
        return True

    def reserve(self, step: ScheduledStep) -> None:
        """Reserves every cache position that the step may write.

        Raises:
            OutOfBlocksError: If the pool cannot hold them; call inside a transaction.
        """
        for request in step.decodes:
            rows = 1
            needed = self.positions_needed(request, rows, step.draft_len)
            self._blocks.ensure(request.request_id, needed)
        for chunk in step.chunks:
            needed = self.positions_needed(chunk.request, chunk.num_tokens, step.draft_len)
            self._blocks.ensure(chunk.request.request_id, needed)
