# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
# mypy: ignore-errors

"""RoPE and the write of the latent row in one pass over the rows."""

from __future__ import annotations

from tensorrt_llm_ext._triton import tl, triton
from tensorrt_llm_ext.ops.triton_helpers import cast_for, to_e4m3


@triton.jit
def _rotated(even, odd, cos, sin):
    """The interleaved pair (even, odd) turned by an angle."""
    return even * cos - odd * sin, odd * cos + even * sin


@triton.jit
def rope_append_kernel(
    q_pe,
    k_pe,
    latent,
    rope_rows,
    slots,
    cache,
    latent_scale,
    out,
    q_stride_t,
    q_stride_h,
    k_stride,
    latent_stride,
    HEADS: tl.constexpr,
    HEADS_BLOCK: tl.constexpr,
    HALF: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    RANK: tl.constexpr,
    RANK_BLOCK: tl.constexpr,
    IS_FP8: tl.constexpr,
    INTERPRET: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    pairs = tl.arange(0, HALF_BLOCK)
    is_pair = pairs < HALF
    table = rope_rows + row * 2 * HALF + 2 * pairs
    cos = tl.load(table, mask=is_pair, other=0.0).to(tl.float32)
    sin = tl.load(table + 1, mask=is_pair, other=0.0).to(tl.float32)

    heads = tl.arange(0, HEADS_BLOCK)
    mask = (heads < HEADS)[:, None] & is_pair[None, :]
    place = q_pe + row * q_stride_t + heads[:, None] * q_stride_h + 2 * pairs[None, :]
    even = tl.load(place, mask=mask, other=0.0).to(tl.float32)
    odd = tl.load(place + 1, mask=mask, other=0.0).to(tl.float32)
    even, odd = _rotated(even, odd, cos[None, :], sin[None, :])
    to = out + (row * HEADS + heads[:, None]) * 2 * HALF + 2 * pairs[None, :]
    tl.store(to, cast_for(even, out, INTERPRET), mask=mask)
    tl.store(to + 1, cast_for(odd, out, INTERPRET), mask=mask)

    slot = tl.load(slots + row)
    if slot < 0:
        return
    even = tl.load(k_pe + row * k_stride + 2 * pairs, mask=is_pair, other=0.0).to(tl.float32)
    odd = tl.load(k_pe + row * k_stride + 2 * pairs + 1, mask=is_pair, other=0.0).to(tl.float32)
    even, odd = _rotated(even, odd, cos, sin)
    ranks = tl.arange(0, RANK_BLOCK)
    is_rank = ranks < RANK
    values = tl.load(latent + row * latent_stride + ranks, mask=is_rank, other=0.0).to(tl.float32)
    to = cache + slot * (RANK + 2 * HALF)
    if IS_FP8:
        scale = tl.load(latent_scale)
        tl.store(to + ranks, to_e4m3(values / scale, INTERPRET), mask=is_rank)
        tl.store(to + RANK + 2 * pairs, to_e4m3(even / scale, INTERPRET), mask=is_pair)
        tl.store(to + RANK + 2 * pairs + 1, to_e4m3(odd / scale, INTERPRET), mask=is_pair)
    else:
        tl.store(to + ranks, cast_for(values, cache, INTERPRET), mask=is_rank)
        tl.store(to + RANK + 2 * pairs, cast_for(even, cache, INTERPRET), mask=is_pair)
        tl.store(to + RANK + 2 * pairs + 1, cast_for(odd, cache, INTERPRET), mask=is_pair)
