# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
# mypy: ignore-errors

"""NVFP4: packing, products with weights unpacked as they are read, and products of packed numbers.

Divisions are `div_rn`: Triton's `/` is approximate on a GPU, and a scale must be ModelOpt's to the
bit.
"""

from __future__ import annotations

from tensorrt_llm_ext._triton import tl, triton
from tensorrt_llm_ext.ops.triton_helpers import cast_for, dot, packed_tile, to_e4m3


@triton.jit
def quotient(a, b, INTERPRET: tl.constexpr):
    """`a / b` rounded to the nearest."""
    if INTERPRET:
        return a / b
    return tl.div_rn(a, b)


@triton.jit
def e2m1_code(ratio):
    """e2m1 code of float32, ties to the even code; NaN becomes 7, as in ModelOpt."""
    a = tl.abs(ratio)
    below = (a <= 0.25).to(tl.int32) + (a < 0.75).to(tl.int32) + (a <= 1.25).to(tl.int32)
    below += (a < 1.75).to(tl.int32) + (a <= 2.5).to(tl.int32) + (a < 3.5).to(tl.int32)
    below += (a <= 5.0).to(tl.int32)
    return (7 - below) | tl.where(ratio < 0, 8, 0)


@triton.jit
def activation_scale(amax, g, INTERPRET: tl.constexpr):
    """e4m3 bits of the scale of an activation's blocks, and the factor of their values."""
    inverse = quotient(1.0, g, INTERPRET)
    code = to_e4m3(inverse * (amax * 0.16666666666666666), INTERPRET)
    scale = code.to(tl.float8e4nv, bitcast=True).to(tl.float32)
    step = scale * quotient(1.0, inverse, INTERPRET)
    return code, tl.where(scale == 0, 0.0, quotient(1.0, step, INTERPRET))


@triton.jit
def quantize_kernel(
    x,
    global_scale,
    data,
    block_scale,
    num_blocks,
    row_stride,
    BLOCKS_PER_ROW: tl.constexpr,
    IS_ACTIVATION: tl.constexpr,
    BLOCK: tl.constexpr,
    INTERPRET: tl.constexpr,
):
    """BLOCK blocks of 16 values per program."""
    block = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    is_block = block < num_blocks
    row = block // BLOCKS_PER_ROW
    pair = tl.arange(0, 8)
    place = x + (row * row_stride + (block % BLOCKS_PER_ROW) * 16)[:, None] + 2 * pair[None, :]
    even = tl.load(place, mask=is_block[:, None], other=0.0).to(tl.float32)
    odd = tl.load(place + 1, mask=is_block[:, None], other=0.0).to(tl.float32)
    amax = tl.max(tl.maximum(tl.abs(even), tl.abs(odd)), 1)
    g = tl.load(global_scale)
    if IS_ACTIVATION:
        code, factor = activation_scale(amax, g, INTERPRET)
        even, odd = even * factor[:, None], odd * factor[:, None]
    else:
        ratio = quotient(amax, g * 6.0, INTERPRET)
        ratio = tl.where(ratio == 0, 1.0, ratio)
        code = to_e4m3(tl.maximum(ratio, 0.001953125), INTERPRET)
        step = code.to(tl.float8e4nv, bitcast=True).to(tl.float32) * g
        even = quotient(even, step[:, None], INTERPRET)
        odd = quotient(odd, step[:, None], INTERPRET)
    tl.store(block_scale + block, code, mask=is_block)
    packed = e2m1_code(even) | (e2m1_code(odd) << 4)
    to = data + block[:, None] * 8 + pair[None, :]
    tl.store(to, packed.to(tl.uint8), mask=is_block[:, None])


@triton.jit
def linear_kernel(
    x,
    data,
    block_scale,
    global_scale,
    out,
    num_rows,
    num_columns,
    x_stride,
    SIZE: tl.constexpr,
    SPLIT_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    INTERPRET: tl.constexpr,
):
    """W4A16: a tile of `x W^T` over one split of the columns of W, [split, rows, out] where split.

    Block scales go to the weights, which then fit 16 bits exactly; the global scale to the sum.
    """
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    rows = tl.program_id(1).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    split = tl.program_id(2)
    is_row, is_column = rows < num_rows, columns < num_columns
    half: tl.constexpr = BLOCK_K // 2
    bytes_: tl.constexpr = SIZE // 2
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(split * SPLIT_SIZE, (split + 1) * SPLIT_SIZE, BLOCK_K):
        at = k + 2 * tl.arange(0, half)
        mask = is_row[:, None] & (at < SIZE)[None, :]
        place = x + rows[:, None] * x_stride + at[None, :]
        even = tl.load(place, mask=mask, other=0.0)
        odd = tl.load(place + 1, mask=mask, other=0.0)
        low, high = packed_tile(
            data, block_scale, columns.to(tl.int64), is_column, k // 2, bytes_, BLOCK_N, half
        )
        acc = dot(even, tl.trans(low.to(even.dtype)), acc, INTERPRET)
        acc = dot(odd, tl.trans(high.to(odd.dtype)), acc, INTERPRET)
    acc = acc * tl.load(global_scale)
    to = out + (split * num_rows + rows)[:, None] * num_columns + columns[None, :]
    tl.store(to, cast_for(acc, out, INTERPRET), mask=is_row[:, None] & is_column[None, :])


@triton.jit
def sum_kernel(
    parts, out, size, SPLITS: tl.constexpr, BLOCK: tl.constexpr, INTERPRET: tl.constexpr
):
    """Adds the splits, always in the same order."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < size
    acc = tl.zeros((BLOCK,), tl.float32)
    for split in tl.static_range(SPLITS):
        acc += tl.load(parts + split * size + at, mask=mask, other=0.0)
    tl.store(out + at, cast_for(acc, out, INTERPRET), mask=mask)


@triton.jit
def scaled_kernel(
    x_data,
    x_scale,
    data,
    block_scale,
    input_scale,
    global_scale,
    out,
    num_rows,
    num_columns,
    SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    INTERPRET: tl.constexpr,
):
    """W4A4: a tile of the product of two packed matrices, in FP4 tensor cores."""
    columns = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    rows = tl.program_id(1).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    is_row, is_column = rows < num_rows, columns < num_columns
    half: tl.constexpr = BLOCK_K // 2
    bytes_: tl.constexpr = SIZE // 2
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, bytes_, half):
        if INTERPRET:
            x_low, x_high = packed_tile(x_data, x_scale, rows, is_row, k, bytes_, BLOCK_M, half)
            low, high = packed_tile(data, block_scale, columns, is_column, k, bytes_, BLOCK_N, half)
            acc = dot(x_low, tl.trans(low), acc, True)
            acc = dot(x_high, tl.trans(high), acc, True)
        else:
            at = k + tl.arange(0, half)
            is_at = (at < bytes_)[None, :]
            blocks = k // 8 + tl.arange(0, BLOCK_K // 16)
            is_block = (blocks < bytes_ // 8)[None, :]
            a = tl.load(
                x_data + rows[:, None] * bytes_ + at[None, :], mask=is_row[:, None] & is_at, other=0
            )
            a_scale = tl.load(
                x_scale + rows[:, None] * (bytes_ // 8) + blocks[None, :],
                mask=is_row[:, None] & is_block,
                other=0.0,
            )
            b = tl.load(
                data + columns[:, None] * bytes_ + at[None, :],
                mask=is_column[:, None] & is_at,
                other=0,
            )
            b_scale = tl.load(
                block_scale + columns[:, None] * (bytes_ // 8) + blocks[None, :],
                mask=is_column[:, None] & is_block,
                other=0.0,
            )
            acc = tl.dot_scaled(a, a_scale, "e2m1", tl.trans(b), b_scale, "e2m1", acc)
    acc = acc * (tl.load(input_scale) * tl.load(global_scale))
    to = out + rows[:, None] * num_columns + columns[None, :]
    tl.store(to, cast_for(acc, out, INTERPRET), mask=is_row[:, None] & is_column[None, :])
