# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
# mypy: ignore-errors

"""`mla_prefill` in Triton: causal attention of a chunk over keys expanded per head.

Keys and values are expanded from the latent rows by two matrix products before; the rotary part of
a key is shared by all heads and read as it is.
"""

from __future__ import annotations

from tensorrt_llm_ext._triton import tl, triton
from tensorrt_llm_ext.ops.triton_helpers import cast_for, dot

_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def prefill_kernel(
    q_nope,
    q_pe,
    k_nope,
    k_pe,
    values,
    out,
    scale,
    num_tokens,
    start,
    q_nope_stride_t,
    q_nope_stride_h,
    q_pe_stride_t,
    q_pe_stride_h,
    k_pe_stride,
    HEADS: tl.constexpr,
    NOPE: tl.constexpr,
    ROPE: tl.constexpr,
    VALUE: tl.constexpr,
    NOPE_BLOCK: tl.constexpr,
    ROPE_BLOCK: tl.constexpr,
    VALUE_BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    STAGES: tl.constexpr,
    INTERPRET: tl.constexpr,
):
    # The last rows attend to the most keys: they start first, so that no long program runs alone.
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    head = tl.program_id(1)
    rows = tile * ROWS + tl.arange(0, ROWS)
    is_row = rows < num_tokens
    nopes, ropes = tl.arange(0, NOPE_BLOCK), tl.arange(0, ROPE_BLOCK)
    columns = tl.arange(0, VALUE_BLOCK)
    query = tl.load(
        q_nope + (rows * q_nope_stride_t + head * q_nope_stride_h)[:, None] + nopes[None, :],
        mask=is_row[:, None] & (nopes < NOPE)[None, :],
        other=0.0,
    )
    query_pe = tl.load(
        q_pe + (rows * q_pe_stride_t + head * q_pe_stride_h)[:, None] + ropes[None, :],
        mask=is_row[:, None] & (ropes < ROPE)[None, :],
        other=0.0,
    )
    factor = scale * _LOG2_E
    end = tl.minimum(start + num_tokens, start + (tile + 1) * ROWS)
    largest = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    acc = tl.zeros((ROWS, VALUE_BLOCK), tl.float32)
    for key in tl.range(0, end, KEYS, num_stages=STAGES):
        keys = key + tl.arange(0, KEYS)
        is_key = keys < end
        key_rows = keys.to(tl.int64) * HEADS + head
        nope = tl.load(
            k_nope + key_rows[:, None] * NOPE + nopes[None, :],
            mask=is_key[:, None] & (nopes < NOPE)[None, :],
            other=0.0,
        )
        rope = tl.load(
            k_pe + keys.to(tl.int64)[:, None] * k_pe_stride + ropes[None, :],
            mask=is_key[:, None] & (ropes < ROPE)[None, :],
            other=0.0,
        )
        scores = dot(query, nope.T, tl.zeros((ROWS, KEYS), tl.float32), INTERPRET)
        scores = dot(query_pe, rope.T, scores, INTERPRET) * factor
        visible = (keys[None, :] <= (start + rows)[:, None]) & is_key[None, :]
        scores = tl.where(visible, scores, float("-inf"))
        larger = tl.maximum(largest, tl.max(scores, axis=1))
        finite = tl.where(larger == float("-inf"), 0.0, larger)
        weights = tl.exp2(scores - finite[:, None])
        shrink = tl.exp2(largest - finite)
        total = total * shrink + tl.sum(weights, axis=1)
        value = tl.load(
            values + key_rows[:, None] * VALUE + columns[None, :],
            mask=is_key[:, None] & (columns < VALUE)[None, :],
            other=0.0,
        )
        acc = acc * shrink[:, None]
        acc = dot(cast_for(weights, q_nope, INTERPRET), value, acc, INTERPRET)
        largest = larger
    acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    out_rows = rows.to(tl.int64) * HEADS + head
    tl.store(
        out + out_rows[:, None] * VALUE + columns[None, :],
        cast_for(acc, out, INTERPRET),
        mask=is_row[:, None] & (columns < VALUE)[None, :],
    )
