# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Writes to and reads from the paged latent cache: `mla_rope_append` and `gather_latent`."""

from __future__ import annotations

import torch

from tensorrt_llm_ext import _triton
from tensorrt_llm_ext.errors import ShapeError
from tensorrt_llm_ext.ops.checks import (
    check_float,
    check_int64,
    check_latent_cache,
    check_same_dtype,
    check_shape,
)
from tensorrt_llm_ext.ops.kvcache import library, reference, torch_kernels  # noqa: F401  (they register)
from tensorrt_llm_ext.ops.registry import choose, chosen

if _triton.AVAILABLE:
    from tensorrt_llm_ext.ops.kvcache import triton_kernels  # noqa: F401

__all__ = ["gather_latent", "mla_rope_append"]


def mla_rope_append(
    q_pe: torch.Tensor,
    k_pe: torch.Tensor,
    latent: torch.Tensor,
    rope_rows: torch.Tensor,
    slot_mapping: torch.Tensor,
    latent_cache: torch.Tensor,
    *,
    has_padding: bool,
    latent_scale: torch.Tensor | None = None,
    kernel: str | None = None,
) -> torch.Tensor:
    """Rotates q_pe and k_pe (interleaved pairs) and writes the latent rows into the cache.

    Args:
        q_pe: [num_tokens, num_heads, qk_rope_head_dim], float; may be a strided view.
        k_pe: [num_tokens, qk_rope_head_dim], dtype of `q_pe`; may be a strided view.
        latent: [num_tokens, kv_lora_rank], dtype of `q_pe`: the normed compressed key-value.
        rope_rows: [num_tokens, qk_rope_head_dim / 2, 2], float: cos and sin of each row's
            position, with the table's magnitude folded in.
        slot_mapping: [num_tokens] int64, cache slot that each row writes; -1 writes nothing.
        latent_cache: [num_blocks, block_size, kv_lora_rank + qk_rope_head_dim], dtype of `q_pe`,
            or float8_e4m3fn with `latent_scale`; contiguous; changed in place.
        has_padding: Whether `slot_mapping` may contain -1 (known to the host).
        latent_scale: [] float32, what an fp8 cache's rows are divided by before they are rounded
            (to at most +-448); None otherwise.
        kernel: Name of a registered kernel; the best supported one when None.

    Returns:
        [num_tokens, num_heads, qk_rope_head_dim], dtype of `q_pe`: the rotated q_pe.

    Raises:
        ShapeError: If shapes or dtypes contradict each other.
        KernelNotFoundError: If no registered kernel takes these inputs.
    """
    key = (
        "mla_rope_append",
        kernel,
        q_pe.dtype,
        q_pe.device,
        q_pe.shape,
        k_pe.shape,
        latent.shape,
        rope_rows.dtype,
        rope_rows.shape,
        slot_mapping.shape,
        latent_cache.dtype,
        latent_cache.shape,
        latent_cache.is_contiguous(),
        latent_scale is None,
    )
    run = chosen(key)
    if run is None:
        _check_mla_rope_append(
            q_pe, k_pe, latent, rope_rows, slot_mapping, latent_cache, latent_scale
        )
        run = choose(
            key,
            q_pe,
            k_pe,
            latent,
            rope_rows,
            slot_mapping,
            latent_cache,
            has_padding=has_padding,
            latent_scale=latent_scale,
        )
    rotated: torch.Tensor = run(
        q_pe,
        k_pe,
        latent,
        rope_rows,
        slot_mapping,
        latent_cache,
        has_padding=has_padding,
        latent_scale=latent_scale,
    )
    return rotated


def gather_latent(
    latent_cache: torch.Tensor, slots: torch.Tensor, *, kernel: str | None = None
) -> torch.Tensor:
    """Reads cached rows by slot.

    Args:
        latent_cache: [num_blocks, block_size, latent_size], contiguous.
        slots: [num_rows] int64, each in 0..num_blocks * block_size - 1.
        kernel: Name of a registered kernel; the best supported one when None.

    Returns:
        [num_rows, latent_size], dtype of `latent_cache`.

    Raises:
        ShapeError: If a shape or dtype is wrong.
        KernelNotFoundError: If no registered kernel takes these inputs.
    """
    key = (
        "gather_latent",
        kernel,
        latent_cache.dtype,
        latent_cache.device,
        latent_cache.shape,
        latent_cache.is_contiguous(),
        slots.shape,
    )
    run = chosen(key)
    if run is None:
        check_shape(
            "gather_latent",
            "latent_cache",
            latent_cache,
            (None, None, None),
            "[num_blocks, block_size, latent_size]",
        )
        check_shape("gather_latent", "slots", slots, (None,), "[num_rows]")
        check_int64("gather_latent", "slots", slots)
        run = choose(key, latent_cache, slots)
    rows: torch.Tensor = run(latent_cache, slots)
    return rows


def _check_mla_rope_append(
    q_pe: torch.Tensor,
    k_pe: torch.Tensor,
    latent: torch.Tensor,
    rope_rows: torch.Tensor,
    slot_mapping: torch.Tensor,
    latent_cache: torch.Tensor,
    latent_scale: torch.Tensor | None,
) -> None:
    op = "mla_rope_append"
    check_float(op, "q_pe", q_pe)
    check_shape(op, "q_pe", q_pe, (None, None, None), "[num_tokens, num_heads, qk_rope_head_dim]")
    num_tokens, _, rope = q_pe.shape
    if rope % 2:
        raise ShapeError(f"{op}: qk_rope_head_dim is {rope}, expected an even number.")
    check_shape(op, "k_pe", k_pe, (num_tokens, rope), "[num_tokens, qk_rope_head_dim]")
    check_shape(op, "latent", latent, (num_tokens, None), "[num_tokens, kv_lora_rank]")
    check_shape(
        op,
        "rope_rows",
        rope_rows,
        (num_tokens, rope // 2, 2),
        "[num_tokens, qk_rope_head_dim / 2, (cos, sin)]",
    )
    check_float(op, "rope_rows", rope_rows)
    check_shape(op, "slot_mapping", slot_mapping, (num_tokens,), "[num_tokens]")
    check_int64(op, "slot_mapping", slot_mapping)
    check_latent_cache(op, latent_cache, latent.shape[1] + rope, None, q_pe.dtype, latent_scale)
    for name, tensor in (("k_pe", k_pe), ("latent", latent)):
        check_same_dtype(op, name, tensor, q_pe.dtype)


library.register(mla_rope_append)
