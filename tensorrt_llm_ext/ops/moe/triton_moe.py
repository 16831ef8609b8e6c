# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
# mypy: ignore-errors

"""Routing in one launch, and experts as grouped products whose sizes the host never learns.

The (token, expert) pairs of an expert fill blocks of BLOCK_M rows; there are as many blocks as the
worst case needs, and those without an expert end at once.
"""

from __future__ import annotations

from tensorrt_llm_ext._triton import tl, triton
from tensorrt_llm_ext.ops.triton_helpers import cast_for, dot, packed_tile, runtime_bound


@triton.jit
def route_kernel(
    logits,
    bias,
    weights,
    expert_ids,
    factor,
    logits_stride,
    GROUPS: tl.constexpr,
    GROUPS_BLOCK: tl.constexpr,
    SIZE: tl.constexpr,
    SIZE_BLOCK: tl.constexpr,
    TOPK_GROUP: tl.constexpr,
    TOP_K: tl.constexpr,
    TOP_K_BLOCK: tl.constexpr,
    IS_NORMED: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    group = tl.arange(0, GROUPS_BLOCK)
    member = tl.arange(0, SIZE_BLOCK)
    mask = (group < GROUPS)[:, None] & (member < SIZE)[None, :]
    expert = group[:, None] * SIZE + member[None, :]
    x = tl.load(logits + row * logits_stride + expert, mask=mask, other=0.0)
    scores = 1.0 / (1.0 + tl.exp(-x))
    biased = scores + tl.load(bias + expert, mask=mask, other=0.0)
    biased = tl.where(mask, biased, float("-inf"))
    if TOPK_GROUP < GROUPS:
        first = tl.max(biased, 1)
        is_first = member[None, :] == tl.argmax(biased, 1)[:, None]
        rank = first + tl.max(tl.where(is_first, float("-inf"), biased), 1)
        allowed = group < 0
        for _ in tl.static_range(TOPK_GROUP):
            best = tl.argmax(tl.where(allowed, float("-inf"), rank), 0)
            allowed = allowed | (group == best)
        biased = tl.where(allowed[:, None], biased, float("-inf"))

    flat = tl.reshape(biased, (GROUPS_BLOCK * SIZE_BLOCK,))
    flat_scores = tl.reshape(scores, (GROUPS_BLOCK * SIZE_BLOCK,))
    place = tl.arange(0, GROUPS_BLOCK * SIZE_BLOCK)
    slot = tl.arange(0, TOP_K_BLOCK)
    chosen = tl.zeros((TOP_K_BLOCK,), tl.float32)
    ids = tl.zeros((TOP_K_BLOCK,), tl.int64)
    for j in tl.static_range(TOP_K):
        best = tl.argmax(flat, 0)
        score = tl.sum(tl.where(place == best, flat_scores, 0.0), 0)
        chosen = tl.where(slot == j, score, chosen)
        number = (best // SIZE_BLOCK) * SIZE + best % SIZE_BLOCK
        ids = tl.where(slot == j, number.to(tl.int64), ids)
        flat = tl.where(place == best, float("-inf"), flat)
    if IS_NORMED:
        chosen = chosen / (tl.sum(chosen, 0) + 1e-20)
    is_slot = slot < TOP_K
    tl.store(weights + row * TOP_K + slot, chosen * factor, mask=is_slot)
    tl.store(expert_ids + row * TOP_K + slot, ids, mask=is_slot)


@triton.jit
def align_kernel(
    expert_ids,
    sorted_pairs,
    block_experts,
    num_pairs,
    max_blocks,
    NUM_EXPERTS: tl.constexpr,
    EXPERTS_BLOCK: tl.constexpr,
    PAIRS_BLOCK: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """One program: which pairs fill which block, in order; the rest is `num_pairs` and -1."""
    experts = tl.arange(0, EXPERTS_BLOCK)
    at = tl.arange(0, PAIRS_BLOCK)
    counts = tl.zeros((EXPERTS_BLOCK,), tl.int32)
    for begin in range(0, num_pairs, PAIRS_BLOCK):
        ids = tl.load(expert_ids + begin + at, mask=begin + at < num_pairs, other=-1).to(tl.int32)
        counts += tl.sum((ids[:, None] == experts[None, :]).to(tl.int32), 0)
    blocks = (counts + BLOCK_M - 1) // BLOCK_M
    ends = tl.cumsum(blocks, 0)
    total = tl.sum(blocks, 0)
    for begin in range(0, max_blocks, PAIRS_BLOCK):
        block = begin + at
        is_before = (ends[None, :] <= block[:, None]) & (experts < NUM_EXPERTS)[None, :]
        expert = tl.sum(is_before.to(tl.int32), 1)
        expert = tl.where(block < total, expert, -1)
        tl.store(block_experts + block, expert, mask=block < max_blocks)
    for begin in range(0, max_blocks * BLOCK_M, PAIRS_BLOCK):
        slot = begin + at
        tl.store(sorted_pairs + slot, num_pairs + 0 * slot, mask=slot < max_blocks * BLOCK_M)
    tl.debug_barrier()
    starts = (ends - blocks) * BLOCK_M
    for begin in range(0, num_pairs, PAIRS_BLOCK):
        is_pair = begin + at < num_pairs
        ids = tl.load(expert_ids + begin + at, mask=is_pair, other=-1).to(tl.int32)
        match = ids[:, None] == experts[None, :]
        slot = tl.sum(tl.where(match, starts[None, :], 0), 1)
        is_earlier = (ids[:, None] == ids[None, :]) & (at[None, :] < at[:, None])
        slot += tl.sum(is_earlier.to(tl.int32), 1)
        tl.store(sorted_pairs + slot, begin + at, mask=is_pair)
        starts += tl.sum(match.to(tl.int32), 0)


@triton.jit
def _weight_tile(
    w,
    rows,
    is_row,
    begin,
    COLUMNS: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    at = begin + tl.arange(0, BLOCK_K)
    mask = is_row[:, None] & (at < COLUMNS)[None, :]
    return tl.load(w + rows[:, None] * COLUMNS + at[None, :], mask=mask, other=0.0)


@triton.jit
def _row_tile(
    x,
    rows,
    is_row,
    row_stride,
    begin,
    step: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    at = begin + step * tl.arange(0, BLOCK_K)
    mask = is_row[:, None] & (at < COLUMNS)[None, :]
    return tl.load(x + rows[:, None] * row_stride + at[None, :], mask=mask, other=0.0)


@triton.jit
def gate_up_kernel(
    x,
    w,
    w_scale,
    w_global,
    hidden,
    sorted_pairs,
    block_experts,
    num_pairs,
    x_stride,
    TOP_K: tl.constexpr,
    HIDDEN: tl.constexpr,
    INTER: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    IS_PACKED: tl.constexpr,
    INTERPRET: tl.constexpr,
):
    """`silu(gate) * up` of the pairs of one block, for BLOCK_N columns of the intermediate."""
    block = tl.program_id(1)
    expert = tl.load(block_experts + block)
    if expert < 0:
        return
    pairs = tl.load(sorted_pairs + block * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    is_pair = pairs < num_pairs
    tokens = pairs // TOP_K
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    is_column = columns < INTER
    rows = expert.to(tl.int64) * 2 * INTER + columns
    gate = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    up = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, runtime_bound(HIDDEN, num_pairs), BLOCK_K):
        if IS_PACKED:
            half: tl.constexpr = BLOCK_K // 2
            bytes_: tl.constexpr = HIDDEN // 2
            even = _row_tile(x, tokens, is_pair, x_stride, k, 2, HIDDEN, half)
            odd = _row_tile(x, tokens, is_pair, x_stride, k + 1, 2, HIDDEN, half)
            low, high = packed_tile(w, w_scale, rows, is_column, k // 2, bytes_, BLOCK_N, half)
            gate = dot(even, tl.trans(low.to(even.dtype)), gate, INTERPRET)
            gate = dot(odd, tl.trans(high.to(odd.dtype)), gate, INTERPRET)
            low, high = packed_tile(
                w, w_scale, rows + INTER, is_column, k // 2, bytes_, BLOCK_N, half
            )
            up = dot(even, tl.trans(low.to(even.dtype)), up, INTERPRET)
            up = dot(odd, tl.trans(high.to(odd.dtype)), up, INTERPRET)
        else:
            tile = _row_tile(x, tokens, is_pair, x_stride, k, 1, HIDDEN, BLOCK_K)
            own = _weight_tile(w, rows, is_column, k, HIDDEN, BLOCK_K)
            gate = dot(tile, tl.trans(own), gate, INTERPRET)
            own = _weight_tile(w, rows + INTER, is_column, k, HIDDEN, BLOCK_K)
            up = dot(tile, tl.trans(own), up, INTERPRET)
    if IS_PACKED:
        scale = tl.load(w_global + expert)
        gate, up = gate * scale, up * scale
    gated = gate / (1.0 + tl.exp(-gate)) * up
    to = hidden + pairs[:, None] * INTER + columns[None, :]
    mask = is_pair[:, None] & is_column[None, :]
    tl.store(to, cast_for(gated, hidden, INTERPRET), mask=mask)


@triton.jit
def down_kernel(
    hidden,
    w,
    w_scale,
    w_global,
    weights,
    parts,
    sorted_pairs,
    block_experts,
    num_pairs,
    HIDDEN: tl.constexpr,
    INTER: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    IS_PACKED: tl.constexpr,
    INTERPRET: tl.constexpr,
):
    """The weighted result of each pair of one block, for BLOCK_N columns of the output."""
    block = tl.program_id(1)
    expert = tl.load(block_experts + block)
    if expert < 0:
        return
    pairs = tl.load(sorted_pairs + block * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    is_pair = pairs < num_pairs
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    is_column = columns < HIDDEN
    rows = expert.to(tl.int64) * HIDDEN + columns
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, runtime_bound(INTER, num_pairs), BLOCK_K):
        if IS_PACKED:
            half: tl.constexpr = BLOCK_K // 2
            bytes_: tl.constexpr = INTER // 2
            even = _row_tile(hidden, pairs, is_pair, INTER, k, 2, INTER, half)
            odd = _row_tile(hidden, pairs, is_pair, INTER, k + 1, 2, INTER, half)
            low, high = packed_tile(w, w_scale, rows, is_column, k // 2, bytes_, BLOCK_N, half)
            acc = dot(even, tl.trans(low.to(even.dtype)), acc, INTERPRET)
            acc = dot(odd, tl.trans(high.to(odd.dtype)), acc, INTERPRET)
        else:
            tile = _row_tile(hidden, pairs, is_pair, INTER, k, 1, INTER, BLOCK_K)
            own = _weight_tile(w, rows, is_column, k, INTER, BLOCK_K)
            acc = dot(tile, tl.trans(own), acc, INTERPRET)
    if IS_PACKED:
        acc = acc * tl.load(w_global + expert)
    factor = tl.load(weights + pairs, mask=is_pair, other=0.0).to(tl.float32)
    to = parts + pairs[:, None] * HIDDEN + columns[None, :]
    tl.store(to, acc * factor[:, None], mask=is_pair[:, None] & is_column[None, :])


@triton.jit
def combine_kernel(
    parts,
    out,
    TOP_K: tl.constexpr,
    HIDDEN: tl.constexpr,
    BLOCK_N: tl.constexpr,
    INTERPRET: tl.constexpr,
):
    """Adds a token's results, in the order of its experts."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask = columns < HIDDEN
    acc = tl.zeros((BLOCK_N,), tl.float32)
    for j in tl.static_range(TOP_K):
        acc += tl.load(parts + (token * TOP_K + j) * HIDDEN + columns, mask=mask, other=0.0)
    tl.store(out + token * HIDDEN + columns, cast_for(acc, out, INTERPRET), mask=mask)
