# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
# mypy: ignore-errors

"""RMS norms in Triton: one program per row, or per half of a row; nothing is written in between."""

from __future__ import annotations

from tensorrt_llm_ext._triton import tl, triton
from tensorrt_llm_ext.ops.nvfp4.triton_nvfp4 import activation_scale, e2m1_code
from tensorrt_llm_ext.ops.triton_helpers import cast_for


@triton.jit
def _normed(x, weight, columns, is_column, size, eps):
    """float32 row over its root mean square, times a weight."""
    mean = tl.sum(x * x, axis=0) / size
    scale = 1.0 / tl.sqrt_rn(mean + eps)
    return x * scale * tl.load(weight + columns, mask=is_column, other=0.0).to(tl.float32)


@triton.jit
def rms_norm_kernel(
    x,
    residual,
    weight,
    out,
    total,
    eps,
    x_stride,
    residual_stride,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    INTERPRET: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    is_column = columns < SIZE
    value = tl.load(x + row * x_stride + columns, mask=is_column, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        other = tl.load(residual + row * residual_stride + columns, mask=is_column, other=0.0)
        kept = cast_for(value + other.to(tl.float32), total, INTERPRET)
        tl.store(total + row * SIZE + columns, kept, mask=is_column)
        value = kept.to(tl.float32)  # the norm reads what the stream keeps
    normed = _normed(value, weight, columns, is_column, SIZE, eps)
    tl.store(out + row * SIZE + columns, cast_for(normed, out, INTERPRET), mask=is_column)


@triton.jit
def chunk_norm_kernel(
    x,
    weights,
    out,
    eps,
    x_stride,
    CHUNKS: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    INTERPRET: tl.constexpr,
):
    """Each of several chunks of a row has a weight of its own."""
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    columns = tl.arange(0, BLOCK)
    is_column = columns < SIZE
    begin = chunk * SIZE + columns
    value = tl.load(x + row * x_stride + begin, mask=is_column, other=0.0).to(tl.float32)
    normed = _normed(value, weights + chunk * SIZE, columns, is_column, SIZE, eps)
    place = out + row * CHUNKS * SIZE + begin
    tl.store(place, cast_for(normed, out, INTERPRET), mask=is_column)


@triton.jit
def draft_input_kernel(
    token_ids,
    embedding,
    embed_weight,
    hidden,
    hidden_weight,
    out,
    eps,
    hidden_stride,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    INTERPRET: tl.constexpr,
):
    """Gather, two norms and concatenation; the second axis of the grid is the half."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    is_column = columns < SIZE
    if tl.program_id(1) == 0:
        token = tl.load(token_ids + row)
        value = tl.load(embedding + token * SIZE + columns, mask=is_column, other=0.0)
        normed = _normed(value.to(tl.float32), embed_weight, columns, is_column, SIZE, eps)
        place = out + row * 2 * SIZE + columns
    else:
        value = tl.load(hidden + row * hidden_stride + columns, mask=is_column, other=0.0)
        normed = _normed(value.to(tl.float32), hidden_weight, columns, is_column, SIZE, eps)
        place = out + row * 2 * SIZE + SIZE + columns
    tl.store(place, cast_for(normed, out, INTERPRET), mask=is_column)


@triton.jit
def pair_norm_kernel(
    first,
    second,
    first_weight,
    second_weight,
    first_out,
    second_out,
    eps,
    first_stride,
    second_stride,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    BLOCK: tl.constexpr,
    INTERPRET: tl.constexpr,
):
    """Two norms over slices of one projection's result."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    if tl.program_id(1) == 0:
        mask = columns < FIRST
        value = tl.load(first + row * first_stride + columns, mask=mask, other=0.0)
        normed = _normed(value.to(tl.float32), first_weight, columns, mask, FIRST, eps)
        place = first_out + row * FIRST + columns
        tl.store(place, cast_for(normed, first_out, INTERPRET), mask=mask)
    else:
        mask = columns < SECOND
        value = tl.load(second + row * second_stride + columns, mask=mask, other=0.0)
        normed = _normed(value.to(tl.float32), second_weight, columns, mask, SECOND, eps)
        place = second_out + row * SECOND + columns
        tl.store(place, cast_for(normed, second_out, INTERPRET), mask=mask)


@triton.jit
def draft_input_nvfp4_kernel(
    token_ids,
    embedding,
    embed_weight,
    hidden,
    hidden_weight,
    input_scale,
    data,
    block_scale,
    stream,
    eps,
    hidden_stride,
    SIZE: tl.constexpr,
    BLOCKS: tl.constexpr,
    INTERPRET: tl.constexpr,
):
    """As `draft_input_kernel`, with blocks of 16 packed; `stream` only tells the dtype."""
    row = tl.program_id(0).to(tl.int64)
    half = tl.program_id(1)
    block = tl.arange(0, BLOCKS)
    pair = tl.arange(0, 8)
    columns = block[:, None] * 16 + 2 * pair[None, :]
    mask = columns < SIZE
    begin = hidden + row * hidden_stride
    weight = hidden_weight
    if half == 0:
        begin = embedding + tl.load(token_ids + row).to(tl.int64) * SIZE
        weight = embed_weight
    even = tl.load(begin + columns, mask=mask, other=0.0).to(tl.float32)
    odd = tl.load(begin + columns + 1, mask=mask, other=0.0).to(tl.float32)
    total = tl.sum(tl.sum(even * even + odd * odd, 1), 0)
    factor = 1.0 / tl.sqrt(total / SIZE + eps)
    even = even * factor * tl.load(weight + columns, mask=mask, other=0.0).to(tl.float32)
    odd = odd * factor * tl.load(weight + columns + 1, mask=mask, other=0.0).to(tl.float32)
    # What is quantized is the stream in its own dtype.
    even = cast_for(even, stream, INTERPRET).to(tl.float32)
    odd = cast_for(odd, stream, INTERPRET).to(tl.float32)
    amax = tl.max(tl.maximum(tl.abs(even), tl.abs(odd)), 1)
    code, by = activation_scale(amax, tl.load(input_scale), INTERPRET)
    packed = e2m1_code(even * by[:, None]) | (e2m1_code(odd * by[:, None]) << 4)
    to = (row * 2 + half) * (SIZE // 16) + block
    is_block = block < SIZE // 16
    tl.store(block_scale + to, code, mask=is_block)
    place = data + to[:, None] * 8 + pair[None, :]
    tl.store(place, packed.to(tl.uint8), mask=is_block[:, None])
