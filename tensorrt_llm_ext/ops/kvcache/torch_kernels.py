# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Cache writes in plain torch: a rotation is one complex product."""

from __future__ import annotations

from typing import Any

import torch

from tensorrt_llm_ext.ops.registry import Priority, register_kernel


def _needs_contiguous(latent_cache: torch.Tensor) -> str | None:
    if latent_cache.is_contiguous():
        return None
    return f"latent_cache must be contiguous, got strides {latent_cache.stride()}"


def _supports_append(
    q_pe: torch.Tensor,
    k_pe: torch.Tensor,
    latent: torch.Tensor,
    rope_rows: torch.Tensor,
    slot_mapping: torch.Tensor,
    latent_cache: torch.Tensor,
    **_: Any,
) -> str | None:
    return _needs_contiguous(latent_cache)


def _as_complex(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Views the last dimension's pairs as complex numbers; copies what cannot be viewed."""
    if x.dtype != dtype:
        x = x.to(dtype)
    pairs = x.reshape(*x.shape[:-1], x.shape[-1] // 2, 2)
    strides = pairs.stride()
    if strides[-1] != 1 or pairs.storage_offset() % 2 or any(s % 2 for s in strides[:-1]):
        pairs = pairs.clone(memory_format=torch.contiguous_format)
    return torch.view_as_complex(pairs)


@register_kernel("mla_rope_append", "torch", Priority.PORTABLE, supports=_supports_append)
def mla_rope_append_torch(
    q_pe: torch.Tensor,
    k_pe: torch.Tensor,
    latent: torch.Tensor,
    rope_rows: torch.Tensor,
    slot_mapping: torch.Tensor,
    latent_cache: torch.Tensor,
    *,
    has_padding: bool,
) -> torch.Tensor:
    """Two complex products, one concatenation and one indexed copy.

    Padding rows are redirected to slot 0 and write zeros there, which the null block already holds.
    """
    dtype = q_pe.dtype
    compute = torch.float64 if dtype == torch.float64 else torch.float32
    turn = _as_complex(rope_rows.flatten(1), compute)  # [num_tokens, rope / 2] complex
    q_rotated = torch.view_as_real(_as_complex(q_pe, compute) * turn.unsqueeze(1)).flatten(-2)
    k_rotated = torch.view_as_real(_as_complex(k_pe, compute) * turn).flatten(-2)
    if compute != dtype:
        q_rotated, k_rotated = q_rotated.to(dtype), k_rotated.to(dtype)
    rows = torch.cat([latent, k_rotated], dim=1)
    if has_padding:
        rows.masked_fill_((slot_mapping < 0).unsqueeze(1), 0)
        slot_mapping = slot_mapping.clamp_min(0)
    latent_cache.view(-1, latent_cache.shape[2]).index_copy_(0, slot_mapping, rows)
    return q_rotated


def _supports_gather(latent_cache: torch.Tensor, slots: torch.Tensor) -> str | None:
    return _needs_contiguous(latent_cache)


@register_kernel("gather_latent", "torch", Priority.PORTABLE, supports=_supports_gather)
def gather_latent_torch(latent_cache: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """One indexed copy."""
    return latent_cache.view(-1, latent_cache.shape[2]).index_select(0, slots)
