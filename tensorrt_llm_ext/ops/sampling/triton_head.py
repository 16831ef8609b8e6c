# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
# mypy: ignore-errors

"""The vocabulary head with a running argmax: no logit is ever stored."""

from __future__ import annotations

from tensorrt_llm_ext._triton import tl, triton
from tensorrt_llm_ext.ops.triton_helpers import dot, packed_tile, runtime_bound


@triton.jit
def head_kernel(
    hidden,
    weight,
    block_scale,
    global_scale,
    maxima,
    best,
    num_rows,
    vocab_size,
    row_stride,
    SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    IS_PACKED: tl.constexpr,
    INTERPRET: tl.constexpr,
):
    """Per row and tile of BLOCK_N ids: the largest logit and its id, [rows, tiles]."""
    tile = tl.program_id(0)
    rows = tl.program_id(1).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    ids = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    is_row, is_id = rows < num_rows, ids < vocab_size
    wide = ids.to(tl.int64)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, runtime_bound(SIZE, num_rows), BLOCK_K):
        if IS_PACKED:
            half: tl.constexpr = BLOCK_K // 2
            bytes_: tl.constexpr = SIZE // 2
            at = k + 2 * tl.arange(0, half)
            mask = is_row[:, None] & (at < SIZE)[None, :]
            place = hidden + rows[:, None] * row_stride + at[None, :]
            even = tl.load(place, mask=mask, other=0.0)
            odd = tl.load(place + 1, mask=mask, other=0.0)
            low, high = packed_tile(weight, block_scale, wide, is_id, k // 2, bytes_, BLOCK_N, half)
            acc = dot(even, tl.trans(low.to(even.dtype)), acc, INTERPRET)
            acc = dot(odd, tl.trans(high.to(odd.dtype)), acc, INTERPRET)
        else:
            at = k + tl.arange(0, BLOCK_K)
            mask = is_row[:, None] & (at < SIZE)[None, :]
            x = tl.load(hidden + rows[:, None] * row_stride + at[None, :], mask=mask, other=0.0)
            mask = is_id[:, None] & (at < SIZE)[None, :]
            w = tl.load(weight + wide[:, None] * SIZE + at[None, :], mask=mask, other=0.0)
            acc = dot(x, tl.trans(w), acc, INTERPRET)
    if IS_PACKED:
        acc = acc * tl.load(global_scale)
    acc = tl.where(is_id[None, :], acc, float("-inf"))
    to = rows * tl.num_programs(0) + tile
    tl.store(maxima + to, tl.max(acc, 1), mask=is_row)
    tl.store(best + to, tile * BLOCK_N + tl.argmax(acc, 1), mask=is_row)


@triton.jit
def winner_kernel(
    maxima,
    best,
    d2t,
    values,
    draft_ids,
    target_ids,
    num_tiles,
    vocab_size,
    BLOCK: tl.constexpr,
    HAS_D2T: tl.constexpr,
):
    """Per row: the first tile with the largest logit; its id, and that of the target."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    largest = tl.full((BLOCK,), float("-inf"), tl.float32)
    tile = tl.zeros((BLOCK,), tl.int32)
    for begin in range(0, num_tiles, BLOCK):
        mask = begin + at < num_tiles
        value = tl.load(maxima + row * num_tiles + begin + at, mask=mask, other=float("-inf"))
        is_better = value > largest
        largest = tl.where(is_better, value, largest)
        tile = tl.where(is_better, begin + at, tile)
    top = tl.max(largest, 0)
    first = tl.min(tl.where(largest == top, tile, num_tiles), 0)
    # Only rows of NaN have no winner; their id must still be one that can be looked up.
    first = tl.minimum(first, num_tiles - 1)
    winner = tl.minimum(tl.load(best + row * num_tiles + first), vocab_size - 1).to(tl.int64)
    tl.store(values + row, top)
    tl.store(draft_ids + row, winner)
    if HAS_D2T:
        tl.store(target_ids + row, winner + tl.load(d2t + winner))
