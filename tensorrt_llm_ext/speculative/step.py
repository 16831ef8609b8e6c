# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""One step of one-model execution: verify, accept, extend, chain (DESIGN section 4).

`one_model_step` has static shapes and never reads a value on the host, so that the same code runs
eagerly on a CPU, under FakeTensorMode in a test, and inside a captured CUDA graph.
"""

from __future__ import annotations

import torch

from tensorrt_llm_ext.models.interfaces import (
    DraftModel,
    ForwardContext,
    TargetModel,
    TargetTokenId,
)
from tensorrt_llm_ext.speculative.drafter import ChainStart, DraftRows, chain, extend
from tensorrt_llm_ext.speculative.metadata import RingFlush, StepInputs, StepOutputs
from tensorrt_llm_ext.speculative.phases import PhaseClock
from tensorrt_llm_ext.speculative.verifier import Verdict, logprobs_of, prompt_logprobs, verify


def one_model_step(
    target: TargetModel,
    draft: DraftModel | None,
    inputs: StepInputs,
    caches: tuple[torch.Tensor, ...],
    ring: torch.Tensor | None = None,
    clock: PhaseClock | None = None,
) -> StepOutputs:
    """Runs one step for every request in it.

    Args:
        target: The verified model.
        draft: The proposing model; None runs the target alone.
        inputs: Rows, placement and sampling.
        caches: Latent caches, the target's layers first; written in place.
        ring: [num_ring_rows, L * target_hidden_size] captured states kept while k' is 0; written
            in place when `inputs.ring_rows` is given, read when `inputs.flush` is.
        clock: Told when phases end; not inside a captured graph.
    """
    if clock is not None:
        clock.begin()
    boundaries = draft.config.boundaries if draft is not None else ()
    ctx = ForwardContext(caches, inputs.metadata)
    hidden, captured = target.forward(
        TargetTokenId(inputs.token_ids), inputs.positions, ctx, boundaries
    )
    logits = target.compute_logits(_emitting_rows(hidden, inputs))
    if clock is not None:
        clock.end("verify")
    verdict = verify(logits, inputs)
    outputs = StepOutputs(
        tokens=verdict.tokens(inputs.query_len),
        num_emitted=_emitted(verdict, inputs),
        # A state with a NaN makes all logits of its row NaN: one column tells.
        num_nan=logits[:, 0].isnan().sum(),
    )
    if inputs.num_logprobs is not None:
        outputs.logprobs = logprobs_of(logits, verdict, inputs, inputs.num_logprobs)
    if inputs.prompt_rows is not None:
        outputs.prompt_logprobs = prompt_logprobs(target, hidden, inputs.prompt_rows)
    if clock is not None:
        clock.end("accept")
    if draft is None or captured is None:
        return outputs
    if inputs.draft_len == 0:
        if ring is not None and inputs.ring_rows is not None:
            ring.index_copy_(0, inputs.ring_rows, captured)
        return outputs
    if inputs.flush is not None and ring is not None:
        flush_ring(draft, inputs.flush, ring, caches, inputs.max_positions)
    outputs.drafts = _propose(draft, captured, verdict, inputs, caches, clock)
    return outputs


def flush_ring(
    draft: DraftModel,
    flush: RingFlush,
    ring: torch.Tensor,
    caches: tuple[torch.Tensor, ...],
    max_positions: int,
) -> None:
    """Resumes drafting after k = 0 steps: one extend over the rows that the ring kept."""
    captured = ring.index_select(0, flush.ring_rows)
    rows = DraftRows(captured, flush.successors, flush.positions, flush.metadata)
    extend(draft, rows, caches, max_positions)


def _emitting_rows(hidden: torch.Tensor, inputs: StepInputs) -> torch.Tensor:
    """The grid's rows and each chunk's last row."""
    if inputs.num_prefill == 0:
        return hidden
    return torch.cat((hidden[: inputs.num_grid_rows], hidden.index_select(0, inputs.last_rows)))


def _emitted(verdict: Verdict, inputs: StepInputs) -> torch.Tensor:
    """[batch] int64 tokens that each request emits."""
    counts = verdict.num_accepted + 1
    if inputs.num_prefill:
        counts = torch.cat((counts, torch.ones_like(inputs.last_rows)))
    return counts * inputs.emits


def _propose(
    draft: DraftModel,
    captured: torch.Tensor,
    verdict: Verdict,
    inputs: StepInputs,
    caches: tuple[torch.Tensor, ...],
    clock: PhaseClock | None,
) -> torch.Tensor:
    """Extends over this step's rows with their true successors, then runs the chain."""
    successors = _successors(verdict, inputs)
    rows = DraftRows(captured, successors, inputs.positions, inputs.metadata)
    states = extend(draft, rows, caches, inputs.max_positions)
    if clock is not None:
        clock.end("extend")
    last = _last_rows(verdict, inputs)
    start = ChainStart(
        state=states.index_select(0, last),
        positions=inputs.positions.index_select(0, last),
        block_table=inputs.block_table,
        active=inputs.emits,
        max_positions=inputs.max_positions,
        block_size=inputs.block_size,
    )
    drafts = chain(draft, start, caches, inputs.draft_len)
    if clock is not None:
        clock.end("chain")
    return drafts


def _successors(verdict: Verdict, inputs: StepInputs) -> torch.Tensor:
    """Token after each row: x_i on the grid; in a chunk the next prompt token, but x at its end.

    Grid rows past the first rejection get a token that follows nothing; their draft KV is
    provisional and overwritten before anyone reads it.
    """
    grid = verdict.grid_tokens.flatten()
    if inputs.num_prefill == 0:
        return grid
    successors = torch.cat((grid, inputs.next_tokens))
    known = successors.index_select(0, inputs.last_rows)
    sampled = torch.where(inputs.emits[inputs.num_decode :], verdict.prefill_tokens, known)
    return successors.index_copy(0, inputs.last_rows, sampled)


def _last_rows(verdict: Verdict, inputs: StepInputs) -> torch.Tensor:
    """[batch] int64 flat row of each request's last committed position."""
    num_decode, query_len = inputs.num_decode, inputs.query_len
    first = torch.arange(0, num_decode * query_len, query_len, device=inputs.positions.device)
    grid = first[:num_decode] + verdict.num_accepted
    return torch.cat((grid, inputs.last_rows)) if inputs.num_prefill else grid
