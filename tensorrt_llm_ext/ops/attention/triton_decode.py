# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
# mypy: ignore-errors

"""`mla_decode` in Triton: one pass over the latent pages, work planned on the device.

The rows of a sequence (query rows x heads) form tiles; all of them share each page that is read.
Keys are cut into units of equal work over the whole batch: every program reads the lengths, works
out the same plan and takes the unit with its number, so that one long sequence among short ones
keeps all processors busy and nothing is planned on the host. The programs of one tile leave partial
results, which the last of them to finish combines (`LAST_COMBINES`), or a second kernel.
"""

from __future__ import annotations

from tensorrt_llm_ext._triton import tl, triton
from tensorrt_llm_ext.ops.triton_helpers import cast_for, dot

_LOG2_E = tl.constexpr(1.4426950408889634)
_LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _find_unit(unit, lengths, batch, TARGET, KEYS: tl.constexpr, BATCH_BLOCK: tl.constexpr):
    """Which sequence and which share of its keys a unit is.

    Returns:
        sequence (>= batch: no unit of this number), its first unit, its number of units, its keys.
    """
    index = tl.arange(0, BATCH_BLOCK)
    length = tl.load(lengths + index, mask=index < batch, other=0).to(tl.int32)
    tiles = tl.cdiv(length, KEYS)
    share = tl.maximum(tl.cdiv(tl.sum(tiles, axis=0), TARGET), 1)
    units = tl.cdiv(tiles, share)
    ends = tl.cumsum(units, axis=0)
    sequence = tl.sum((ends <= unit).to(tl.int32), axis=0)
    is_it = index == sequence
    count = tl.sum(tl.where(is_it, units, 0), axis=0)
    first = tl.sum(tl.where(is_it, ends, 0), axis=0) - count
    return sequence, first, count, tl.sum(tl.where(is_it, length, 0), axis=0)


@triton.jit
def _visible(keys, rows_limit, rows_bits, start, IS_TREE: tl.constexpr):
    """[rows, keys]: which rows attend to which keys."""
    if IS_TREE:
        node = keys - start
        bits = (rows_bits[:, None] >> tl.maximum(node, 0)[None, :].to(tl.int64)) & 1
        return (node < 0)[None, :] | ((bits != 0) & (node < 64)[None, :])
    return keys[None, :] <= rows_limit[:, None]


@triton.jit
def decode_kernel(
    q,
    cache,
    table,
    lengths,
    positions,
    starts,
    ancestors,
    latent_scale,
    out,
    lse,
    partial,
    partial_lse,
    counters,
    scale,
    batch,
    query_len,
    target_units,
    q_stride_b,
    q_stride_q,
    q_stride_h,
    table_stride,
    HEADS: tl.constexpr,
    RANK: tl.constexpr,
    ROPE: tl.constexpr,
    RANK_BLOCK: tl.constexpr,
    ROPE_BLOCK: tl.constexpr,
    PAGE: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    BATCH_BLOCK: tl.constexpr,
    IS_TREE: tl.constexpr,
    IS_FP8: tl.constexpr,
    LAST_COMBINES: tl.constexpr,
    STAGES: tl.constexpr,
    INTERPRET: tl.constexpr,
):
    tile = tl.program_id(0)
    unit = tl.program_id(1)
    sequence, first, count, length = _find_unit(
        unit, lengths, batch, target_units, KEYS, BATCH_BLOCK
    )
    if sequence >= batch:
        return
    rows = tile * ROWS + tl.arange(0, ROWS)
    is_row = rows < query_len * HEADS
    query = tl.where(is_row, rows // HEADS, 0)
    ranks = tl.arange(0, RANK_BLOCK)
    ropes = tl.arange(0, ROPE_BLOCK)
    q_rows = q + (
        sequence.to(tl.int64) * q_stride_b + query * q_stride_q + (rows % HEADS) * q_stride_h
    )
    q_latent = tl.load(
        q_rows[:, None] + ranks[None, :], mask=is_row[:, None] & (ranks < RANK)[None, :], other=0.0
    )
    q_rope = tl.load(
        q_rows[:, None] + RANK + ropes[None, :],
        mask=is_row[:, None] & (ropes < ROPE)[None, :],
        other=0.0,
    )
    limit = tl.load(positions + sequence * query_len + query).to(tl.int32)
    bits = limit.to(tl.int64)
    start = 0
    if IS_TREE:
        bits = tl.load(ancestors + sequence * query_len + query)
        start = tl.load(starts + sequence).to(tl.int32)
    factor = scale * _LOG2_E
    if IS_FP8:
        factor = factor * tl.load(latent_scale)

    share = tl.cdiv(tl.cdiv(length, KEYS), count) * KEYS
    begin = (unit - first) * share
    end = tl.minimum(length, begin + share)
    largest = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    acc = tl.zeros((ROWS, RANK_BLOCK), tl.float32)
    for key in tl.range(begin, end, KEYS, num_stages=STAGES):
        keys = key + tl.arange(0, KEYS)
        is_key = keys < end
        page = tl.load(table + sequence * table_stride + keys // PAGE, mask=is_key, other=0)
        slots = page.to(tl.int64) * PAGE + keys % PAGE
        latent_rows = cache + slots * (RANK + ROPE)
        latent = tl.load(
            latent_rows[:, None] + ranks[None, :],
            mask=is_key[:, None] & (ranks < RANK)[None, :],
            other=0.0,
        ).to(q_latent.dtype)
        rope = tl.load(
            latent_rows[:, None] + RANK + ropes[None, :],
            mask=is_key[:, None] & (ropes < ROPE)[None, :],
            other=0.0,
        ).to(q_latent.dtype)
        scores = dot(q_latent, latent.T, tl.zeros((ROWS, KEYS), tl.float32), INTERPRET)
        scores = dot(q_rope, rope.T, scores, INTERPRET) * factor
        visible = _visible(keys, limit, bits, start, IS_TREE) & is_key[None, :]
        scores = tl.where(visible, scores, float("-inf"))
        larger = tl.maximum(largest, tl.max(scores, axis=1))
        # A row that has seen no key yet keeps its zeros: -inf minus -inf is no number.
        finite = tl.where(larger == float("-inf"), 0.0, larger)
        weights = tl.exp2(scores - finite[:, None])
        shrink = tl.exp2(largest - finite)
        total = total * shrink + tl.sum(weights, axis=1)
        acc = acc * shrink[:, None]
        acc = dot(cast_for(weights, q, INTERPRET), latent, acc, INTERPRET)
        largest = larger

    is_empty = total == 0.0
    acc = acc / tl.where(is_empty, 1.0, total)[:, None]
    row_lse = tl.where(is_empty, float("-inf"), largest + tl.log2(total))
    is_column = is_row[:, None] & (ranks < RANK)[None, :]
    out_rows = sequence.to(tl.int64) * query_len * HEADS + rows
    if count == 1:
        if IS_FP8:
            acc = acc * tl.load(latent_scale)
        tl.store(
            out + out_rows[:, None] * RANK + ranks[None, :],
            cast_for(acc, out, INTERPRET),
            mask=is_column,
        )
        tl.store(lse + out_rows, cast_for(row_lse * _LN_2, lse, INTERPRET), mask=is_row)
        return
    num_tiles = tl.num_programs(0)
    slot = (unit * num_tiles + tile).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    tl.store(partial + slot[:, None] * RANK + ranks[None, :], acc, mask=is_column)
    tl.store(partial_lse + slot, row_lse, mask=is_row)
    if LAST_COMBINES:
        tl.debug_barrier()  # all threads have stored before one of them says so
        done = tl.atomic_add(counters + sequence * num_tiles + tile, 1, sem="acq_rel")
        if done == count - 1:
            _combine(
                partial,
                partial_lse,
                out,
                lse,
                latent_scale,
                sequence,
                first,
                count,
                tile,
                num_tiles,
                query_len,
                HEADS,
                RANK,
                64 if RANK_BLOCK > 64 else RANK_BLOCK,
                ROWS,
                IS_FP8,
                INTERPRET,
            )


@triton.jit
def _combine(
    partial,
    partial_lse,
    out,
    lse,
    latent_scale,
    sequence,
    first,
    count,
    tile,
    num_tiles,
    query_len,
    HEADS: tl.constexpr,
    RANK: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    IS_FP8: tl.constexpr,
    INTERPRET: tl.constexpr,
):
    """Weighs the partial results of one tile by their softmax denominators."""
    rows = tile * ROWS + tl.arange(0, ROWS)
    is_row = rows < query_len * HEADS
    out_rows = sequence.to(tl.int64) * query_len * HEADS + rows
    largest = tl.full((ROWS,), float("-inf"), tl.float32)
    for index in range(count):
        slot = ((first + index) * num_tiles + tile).to(tl.int64) * ROWS + tl.arange(0, ROWS)
        part = tl.load(partial_lse + slot, mask=is_row, other=float("-inf"))
        largest = tl.maximum(largest, part)
    finite = tl.where(largest == float("-inf"), 0.0, largest)
    total = tl.zeros((ROWS,), tl.float32)
    for index in range(count):
        slot = ((first + index) * num_tiles + tile).to(tl.int64) * ROWS + tl.arange(0, ROWS)
        part = tl.load(partial_lse + slot, mask=is_row, other=float("-inf"))
        total += tl.exp2(part - finite)
    scale = 1.0 / tl.where(total == 0.0, 1.0, total)
    if IS_FP8:
        scale = scale * tl.load(latent_scale)
    # A few columns at a time: a whole row of sums beside the attention's would not fit registers.
    for column in range(0, RANK, COLUMNS):
        ranks = column + tl.arange(0, COLUMNS)
        is_column = is_row[:, None] & (ranks < RANK)[None, :]
        acc = tl.zeros((ROWS, COLUMNS), tl.float32)
        for index in range(count):
            slot = ((first + index) * num_tiles + tile).to(tl.int64) * ROWS + tl.arange(0, ROWS)
            part = tl.load(partial_lse + slot, mask=is_row, other=float("-inf"))
            values = tl.load(
                partial + slot[:, None] * RANK + ranks[None, :], mask=is_column, other=0.0
            )
            acc += values * tl.exp2(part - finite)[:, None]
        tl.store(
            out + out_rows[:, None] * RANK + ranks[None, :],
            cast_for(acc * scale[:, None], out, INTERPRET),
            mask=is_column,
        )
    row_lse = (largest + tl.log2(total)) * _LN_2
    tl.store(lse + out_rows, cast_for(row_lse, lse, INTERPRET), mask=is_row)


@triton.jit
def combine_kernel(
    partial,
    partial_lse,
    out,
    lse,
    lengths,
    latent_scale,
    batch,
    query_len,
    target_units,
    HEADS: tl.constexpr,
    RANK: tl.constexpr,
    RANK_BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    BATCH_BLOCK: tl.constexpr,
    IS_FP8: tl.constexpr,
    INTERPRET: tl.constexpr,
):
    """Combines what `decode_kernel` left without `LAST_COMBINES`; one program per tile."""
    tile = tl.program_id(0)
    sequence = tl.program_id(1)
    index = tl.arange(0, BATCH_BLOCK)
    length = tl.load(lengths + index, mask=index < batch, other=0).to(tl.int32)
    tiles = tl.cdiv(length, KEYS)
    share = tl.maximum(tl.cdiv(tl.sum(tiles, axis=0), target_units), 1)
    units = tl.cdiv(tiles, share)
    count = tl.sum(tl.where(index == sequence, units, 0), axis=0)
    first = tl.sum(tl.where(index < sequence, units, 0), axis=0)
    if count > 1:
        _combine(
            partial,
            partial_lse,
            out,
            lse,
            latent_scale,
            sequence,
            first,
            count,
            tile,
            tl.num_programs(0),
            query_len,
            HEADS,
            RANK,
            64 if RANK_BLOCK > 64 else RANK_BLOCK,
            ROWS,
            IS_FP8,
            INTERPRET,
        )
