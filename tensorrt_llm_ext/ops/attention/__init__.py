# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""MLA attention over the paged latent cache: `mla_decode` (absorbed) and `mla_prefill`."""

from __future__ import annotations

from typing import Any, Literal, overload

import torch

from tensorrt_llm_ext import _triton
from tensorrt_llm_ext.errors import ShapeError
from tensorrt_llm_ext.ops.attention import library, reference, torch_kernels  # noqa: F401
from tensorrt_llm_ext.ops.attention.metadata import DecodeMetadata, PrefillMetadata
from tensorrt_llm_ext.ops.checks import (
    check_float,
    check_int64,
    check_latent_cache,
    check_same_dtype,
    check_shape,
)
from tensorrt_llm_ext.ops.registry import choose, chosen

if _triton.AVAILABLE:
    from tensorrt_llm_ext.ops.attention import triton_kernels  # noqa: F401

__all__ = ["mla_decode", "mla_prefill"]


@overload
def mla_decode(
    q: torch.Tensor,
    latent_cache: torch.Tensor,
    metadata: DecodeMetadata,
    *,
    kv_lora_rank: int,
    softmax_scale: float,
    return_lse: Literal[False] = False,
    latent_scale: torch.Tensor | None = None,
    kernel: str | None = None,
) -> torch.Tensor: ...


@overload
def mla_decode(
    q: torch.Tensor,
    latent_cache: torch.Tensor,
    metadata: DecodeMetadata,
    *,
    kv_lora_rank: int,
    softmax_scale: float,
    return_lse: Literal[True],
    latent_scale: torch.Tensor | None = None,
    kernel: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]: ...


def mla_decode(
    q: torch.Tensor,
    latent_cache: torch.Tensor,
    metadata: DecodeMetadata,
    *,
    kv_lora_rank: int,
    softmax_scale: float,
    return_lse: bool = False,
    latent_scale: torch.Tensor | None = None,
    kernel: str | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Attends each query row to its sequence's latent cache, in the absorbed form.

    The rows' own latents must already be in the cache. The caller multiplies the result by the
    value half of `kv_b_proj`.

    Args:
        q: [batch, query_len, num_heads, kv_lora_rank + qk_rope_head_dim], float; each head's nope
            part already multiplied by the key half of `kv_b_proj`, its rope part already rotated.
        latent_cache: [num_blocks, block_size, kv_lora_rank + qk_rope_head_dim], dtype of `q`, or
            float8_e4m3fn with `latent_scale`, contiguous.
        metadata: Which cached positions each row attends to.
        kv_lora_rank: Leading columns of a latent row, which also serve as its values.
        softmax_scale: Multiplied into the scores before the softmax.
        return_lse: Whether to return the log of the softmax denominators too.
        latent_scale: [] float32, what the rows of an fp8 cache are multiplied by; None otherwise.
        kernel: Name of a registered kernel; the best supported one when None.

    Returns:
        [batch, query_len, num_heads, kv_lora_rank], dtype of `q`. With `return_lse` also
        [batch, query_len, num_heads], float32 at least: log of the sum of exp(scaled score). In the
        dtype of a bf16 `q`, parts merged by it would be off by percents.

    Raises:
        ShapeError: If shapes, dtypes or block sizes contradict each other.
        KernelNotFoundError: If no registered kernel takes these inputs; the message names every
            candidate and its reason.
    """
    key = (
        "mla_decode",
        kernel,
        q.dtype,
        q.device,
        q.shape,
        latent_cache.dtype,
        latent_cache.shape,
        latent_cache.is_contiguous(),
        metadata.positions.shape,
        metadata.block_table.shape,
        metadata.block_size,
        metadata.is_tree,
        kv_lora_rank,
        latent_scale is None,
    )
    run = chosen(key)
    if run is None:
        _check_mla_decode(q, latent_cache, metadata, kv_lora_rank, latent_scale)
        run = choose(
            key,
            q,
            latent_cache,
            metadata,
            kv_lora_rank=kv_lora_rank,
            softmax_scale=softmax_scale,
            return_lse=return_lse,
            latent_scale=latent_scale,
        )
    result: Any = run(
        q,
        latent_cache,
        metadata,
        kv_lora_rank=kv_lora_rank,
        softmax_scale=softmax_scale,
        return_lse=return_lse,
        latent_scale=latent_scale,
    )
    return result  # type: ignore[no-any-return]


def mla_prefill(
    q_nope: torch.Tensor,
    q_pe: torch.Tensor,
    latent_cache: torch.Tensor,
    metadata: PrefillMetadata,
    *,
    w_kc: torch.Tensor,
    w_vc: torch.Tensor,
    softmax_scale: float,
    latent_scale: torch.Tensor | None = None,
    kernel: str | None = None,
) -> torch.Tensor:
    """Attends one chunk of a prompt to itself (causally) and to its cached prefix.

    The chunk's latents must already be in the cache.

    Args:
        q_nope: [num_tokens, num_heads, qk_nope_head_dim], float.
        q_pe: [num_tokens, num_heads, qk_rope_head_dim], dtype of `q_nope`, already rotated.
        latent_cache: [num_blocks, block_size, kv_lora_rank + qk_rope_head_dim], dtype of `q_nope`,
            or float8_e4m3fn with `latent_scale`, contiguous.
        metadata: Where the sequence lives; row i attends to positions 0..start + i.
        w_kc: [num_heads, qk_nope_head_dim, kv_lora_rank], the key half of `kv_b_proj`.
        w_vc: [num_heads, kv_lora_rank, v_head_dim], the transposed value half of `kv_b_proj`.
        softmax_scale: Multiplied into the scores before the softmax.
        latent_scale: [] float32, what the rows of an fp8 cache are multiplied by; None otherwise.
        kernel: Name of a registered kernel; the best supported one when None.

    Returns:
        [num_tokens, num_heads, v_head_dim], dtype of `q_nope`.

    Raises:
        ShapeError: If shapes, dtypes or block sizes contradict each other.
        KernelNotFoundError: If no registered kernel takes these inputs.
    """
    key = (
        "mla_prefill",
        kernel,
        q_nope.dtype,
        q_nope.device,
        q_nope.shape,
        q_pe.shape,
        latent_cache.dtype,
        latent_cache.shape,
        latent_cache.is_contiguous(),
        metadata.block_table.shape,
        metadata.num_tokens,
        metadata.block_size,
        w_kc.shape,
        w_vc.shape,
        latent_scale is None,
    )
    run = chosen(key)
    if run is None:
        _check_mla_prefill(q_nope, q_pe, latent_cache, metadata, w_kc, w_vc, latent_scale)
        run = choose(
            key,
            q_nope,
            q_pe,
            latent_cache,
            metadata,
            w_kc=w_kc,
            w_vc=w_vc,
            softmax_scale=softmax_scale,
            latent_scale=latent_scale,
        )
    out: torch.Tensor = run(
        q_nope,
        q_pe,
        latent_cache,
        metadata,
        w_kc=w_kc,
        w_vc=w_vc,
        softmax_scale=softmax_scale,
        latent_scale=latent_scale,
    )
    return out


def _check_mla_decode(
    q: torch.Tensor,
    latent_cache: torch.Tensor,
    metadata: DecodeMetadata,
    kv_lora_rank: int,
    latent_scale: torch.Tensor | None,
) -> None:
    op = "mla_decode"
    check_float(op, "q", q)
    check_shape(
        op,
        "q",
        q,
        (metadata.batch_size, metadata.query_len, None, None),
        "[batch, query_len, num_heads, kv_lora_rank + qk_rope_head_dim]",
    )
    check_latent_cache(op, latent_cache, q.shape[-1], metadata.block_size, q.dtype, latent_scale)
    if not 0 < kv_lora_rank < q.shape[-1]:
        raise ShapeError(
            f"{op}: kv_lora_rank is {kv_lora_rank}, expected 1..{q.shape[-1] - 1}, because a "
            f"latent row of {q.shape[-1]} holds kv_lora_rank columns and then the rotary ones."
        )
    check_shape(
        op,
        "metadata.block_table",
        metadata.block_table,
        (metadata.batch_size, None),
        "[batch, num_columns]",
    )
    check_int64(op, "metadata.block_table", metadata.block_table)
    check_int64(op, "metadata.positions", metadata.positions)
    if metadata.starts is not None and metadata.ancestors is not None:
        check_shape(op, "metadata.starts", metadata.starts, (metadata.batch_size,), "[batch]")
        check_int64(op, "metadata.starts", metadata.starts)
        check_int64(op, "metadata.ancestors", metadata.ancestors)


def _check_mla_prefill(
    q_nope: torch.Tensor,
    q_pe: torch.Tensor,
    latent_cache: torch.Tensor,
    metadata: PrefillMetadata,
    w_kc: torch.Tensor,
    w_vc: torch.Tensor,
    latent_scale: torch.Tensor | None,
) -> None:
    op = "mla_prefill"
    check_float(op, "q_nope", q_nope)
    check_shape(
        op,
        "q_nope",
        q_nope,
        (metadata.num_tokens, None, None),
        "[num_tokens, num_heads, qk_nope_head_dim]",
    )
    num_heads, nope = q_nope.shape[1:]
    check_shape(
        op,
        "q_pe",
        q_pe,
        (metadata.num_tokens, num_heads, None),
        "[num_tokens, num_heads, qk_rope_head_dim]",
    )
    check_shape(
        op,
        "w_kc",
        w_kc,
        (num_heads, nope, None),
        "[num_heads, qk_nope_head_dim, kv_lora_rank]",
    )
    kv_lora_rank = w_kc.shape[2]
    check_shape(
        op,
        "w_vc",
        w_vc,
        (num_heads, kv_lora_rank, None),
        "[num_heads, kv_lora_rank, v_head_dim]",
    )
    latent_size = kv_lora_rank + q_pe.shape[2]
    check_latent_cache(
        op, latent_cache, latent_size, metadata.block_size, q_nope.dtype, latent_scale
    )
    for name, tensor in (("q_pe", q_pe), ("w_kc", w_kc), ("w_vc", w_vc)):
        check_same_dtype(op, name, tensor, q_nope.dtype)
    check_shape(op, "metadata.block_table", metadata.block_table, (None,), "[num_columns]")
    check_int64(op, "metadata.block_table", metadata.block_table)


library.register(decode=mla_decode, prefill=mla_prefill)
