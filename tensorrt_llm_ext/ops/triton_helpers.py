# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
# mypy: ignore-errors

"""Functions that kernels call, right in Triton's interpreter too.

The interpreter multiplies and adds bfloat16 wrongly, truncates float32 to bfloat16 and casts to
e4m3 wrongly, all without a word. Each function takes `INTERPRET`, a constexpr that launchers set to
`_triton.INTERPRETING`.
"""

from __future__ import annotations

from tensorrt_llm_ext._triton import tl, triton


@triton.jit
def to_bf16(x, INTERPRET: tl.constexpr):
    """Rounds float32 to bfloat16: to the nearest, ties to even."""
    if INTERPRET:
        bits = x.to(tl.uint32, bitcast=True)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        rounded = tl.where(x != x, 0x7FC0, rounded)
        return rounded.to(tl.uint16).to(tl.bfloat16, bitcast=True)
    return x.to(tl.bfloat16)


@triton.jit
def cast_for(x, pointer, INTERPRET: tl.constexpr):
    """Rounds float32 to what a pointer points at: float32, float16 or bfloat16."""
    if pointer.dtype.element_ty == tl.bfloat16:
        return to_bf16(x, INTERPRET)
    return x.to(pointer.dtype.element_ty)


@triton.jit
def dot(a, b, acc, INTERPRET: tl.constexpr):
    """`acc + a b` with float32 sums; both operands of one float type."""
    if INTERPRET:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision="ieee")
    return tl.dot(a, b, acc, input_precision="ieee")


@triton.jit
def to_e4m3(x, INTERPRET: tl.constexpr):
    """The bits of float32 rounded to e4m3 (to the nearest, ties to even), at most +-448."""
    clamped = tl.minimum(tl.maximum(x, -448.0), 448.0)
    if INTERPRET:
        bits = clamped.to(tl.uint32, bitcast=True)
        size = tl.abs(clamped)
        # Three bits of the mantissa stay; the exponent's bias goes from 127 to 7.
        normal = ((bits & 0x7FFFFFFF) + 0x7FFFF + ((bits >> 20) & 1)) >> 20
        normal = normal - (120 << 3)
        # Below 2**-6 the steps are 2**-9: the sum with 2**23 rounds to whole ones.
        small = (size * 512.0 + 8388608.0).to(tl.uint32, bitcast=True) & 0xF
        code = tl.where(size < 0.015625, small, normal) | ((bits >> 31) << 7)
        return tl.where(x != x, 0x7F, code).to(tl.uint8)
    # The clamp would turn NaN into a number.
    return tl.where(x != x, x, clamped).to(tl.float8e4nv).to(tl.uint8, bitcast=True)


@triton.jit
def e2m1(codes):
    """Values of the e2m1 codes in the low four bits of uint8, as float16, exactly.

    Its exponent and mantissa bit, set at float16's, are 2**14 too small; denormals fit as well.
    """
    wide = codes.to(tl.uint16)
    bits = ((wide & 8) << 12) | ((wide & 7) << 9)
    return bits.to(tl.float16, bitcast=True) * 16384.0


@triton.jit
def packed_tile(
    data,
    block_scale,
    rows,
    is_row,
    begin,
    BYTES: tl.constexpr,
    ROWS_BLOCK: tl.constexpr,
    BYTES_BLOCK: tl.constexpr,
):
    """Even and odd columns of rows of an NVFP4 weight, times their block scales, in float32.

    Each is [ROWS_BLOCK, BYTES_BLOCK] from byte `begin` on; zero where there is no weight. Products
    of e2m1 and e4m3 have six bits and are exact in float16 and bfloat16.

    Args:
        data: uint8, BYTES per row.
        block_scale: e4m3, one per eight bytes.
        rows: [ROWS_BLOCK] int64, numbers of rows.
        is_row: [ROWS_BLOCK], which of them exist.
        begin: First byte, a multiple of 8.
        BYTES: Bytes of a row, a multiple of 8.
        ROWS_BLOCK: Rows of the tile.
        BYTES_BLOCK: Bytes of the tile, a multiple of 8.
    """
    at = begin + tl.arange(0, BYTES_BLOCK)
    mask = is_row[:, None] & (at < BYTES)[None, :]
    codes = tl.load(data + rows[:, None] * BYTES + at[None, :], mask=mask, other=0)
    blocks = begin // 8 + tl.arange(0, BYTES_BLOCK // 8)
    mask = is_row[:, None] & (blocks < BYTES // 8)[None, :]
    place = block_scale + rows[:, None] * (BYTES // 8) + blocks[None, :]
    scale = tl.load(place, mask=mask, other=0.0).to(tl.float32)
    scale = tl.broadcast_to(scale[:, :, None], (ROWS_BLOCK, BYTES_BLOCK // 8, 8))
    scale = tl.reshape(scale, (ROWS_BLOCK, BYTES_BLOCK))
    return e2m1(codes).to(tl.float32) * scale, e2m1(codes >> 4).to(tl.float32) * scale


@triton.jit
def runtime_bound(SIZE: tl.constexpr, count):
    """SIZE, as a number that the compiler does not know; `count` is not negative.

    Triton 3.5 hoists the accumulators of two products wrongly out of a loop of known length on
    sm_100a ("operand does not dominate this use").
    """
    return SIZE + tl.minimum(count, 0)


__all__ = ["cast_for", "dot", "e2m1", "packed_tile", "runtime_bound", "to_bf16", "to_e4m3"]
