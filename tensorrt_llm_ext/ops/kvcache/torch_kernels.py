# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Cache writes in plain torch: a rotation is one complex product."""

from __future__ import annotations

from typing import Any

import torch

from tensorrt_llm_ext.ops.registry import Priority, register_kernel

_WIDE = (torch.float32, torch.float64)


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
    latent_scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """One complex product for q_pe and k_pe together, and one indexed copy.

    Padding rows are redirected to slot 0 and write zeros there, which the null block already holds.
    """
    num_tokens, num_heads, rope = q_pe.shape
    dtype = q_pe.dtype
    heads = torch.cat((q_pe, k_pe.unsqueeze(1)), dim=1)  # [num_tokens, num_heads + 1, rope]
    if dtype not in _WIDE:
        heads = heads.float()
    if rope_rows.dtype != heads.dtype:
        rope_rows = rope_rows.to(heads.dtype)
    turn = torch.view_as_complex(rope_rows.contiguous()).unsqueeze(1)
    torch.view_as_complex(heads.view(num_tokens, num_heads + 1, rope // 2, 2)).mul_(turn)
    if dtype not in _WIDE:
        heads = heads.to(dtype)
    rows = torch.cat((latent, heads[:, num_heads]), dim=1)
    if has_padding:
        rows.masked_fill_((slot_mapping < 0).unsqueeze(1), 0)
        slot_mapping = slot_mapping.clamp_min(0)
    if latent_scale is not None:
        rows = (rows.float() / latent_scale).clamp_(-448.0, 448.0).to(latent_cache.dtype)
        rows, latent_cache = rows.view(torch.uint8), latent_cache.view(torch.uint8)
    latent_cache.view(-1, latent_cache.shape[2]).index_copy_(0, slot_mapping, rows)
    return heads[:, :num_heads]


def _supports_gather(latent_cache: torch.Tensor, slots: torch.Tensor) -> str | None:
    return _needs_contiguous(latent_cache)


@register_kernel("gather_latent", "torch", Priority.PORTABLE, supports=_supports_gather)
def gather_latent_torch(latent_cache: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """One indexed copy."""
    return latent_cache.view(-1, latent_cache.shape[2]).index_select(0, slots)
