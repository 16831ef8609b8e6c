# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""MLA attention in plain torch: a gather of the sequence's latent rows, then matrix products.

On small models the cost is the number of torch calls and the bytes of the gather, so the index of
the gather and the additive mask are computed once per forward pass (they live on the metadata) and
shared by all layers.
"""

from __future__ import annotations

from typing import Any

import torch

from tensorrt_llm_ext.ops.attention.metadata import DecodeMetadata, PrefillMetadata
from tensorrt_llm_ext.ops.registry import Priority, register_kernel

# Prefill works on slices of rows, so that scores never grow with the product of chunk length and
# context, and so that rows skip the keys behind them. A slice's scores have at most this many
# elements (but at least _MIN_ROWS rows): enough work for a GPU, or what a CPU core's cache holds.
_MAX_SCORES = 1 << 24
_MAX_SCORES_CPU = 1 << 16
_MIN_ROWS = 32


def gathered_rows(
    latent_cache: torch.Tensor,
    slots: torch.Tensor,
    latent_scale: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Returns [slots, latent_size] in `dtype`: the rows of these slots."""
    rows = latent_cache.view(-1, latent_cache.shape[2])
    if latent_scale is None:
        return rows.index_select(0, slots)
    # Bytes, because not every device gathers fp8.
    rows = rows.view(torch.uint8).index_select(0, slots).view(latent_cache.dtype)
    return rows.to(dtype) * latent_scale.to(dtype)


def _contiguous_cache(latent_cache: torch.Tensor) -> str | None:
    if latent_cache.is_contiguous():
        return None
    return f"latent_cache must be contiguous, got strides {latent_cache.stride()}"


def _supports_decode(q: torch.Tensor, latent_cache: torch.Tensor, *_: Any, **__: Any) -> str | None:
    return _contiguous_cache(latent_cache)


@register_kernel("mla_decode", "torch", Priority.PORTABLE, supports=_supports_decode)
def mla_decode_torch(
    q: torch.Tensor,
    latent_cache: torch.Tensor,
    metadata: DecodeMetadata,
    *,
    kv_lora_rank: int,
    softmax_scale: float,
    return_lse: bool = False,
    latent_scale: torch.Tensor | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Absorbed attention: a gather and two batched matrix products."""
    batch_size, query_len, num_heads, latent_size = q.shape
    keys = gathered_rows(latent_cache, metadata.flat_key_slots, latent_scale, q.dtype)
    keys = keys.view(batch_size, -1, latent_size)
    q_rows = q.reshape(batch_size, query_len * num_heads, latent_size)
    # Denominators are only as good as the scores that they are summed from.
    wide = torch.promote_types(q.dtype, torch.float32) if return_lse else q.dtype
    scores = torch.bmm(q_rows.to(wide), keys.transpose(1, 2).to(wide))
    scores = torch.add(metadata.key_bias(wide, num_heads), scores, alpha=softmax_scale)
    out = torch.bmm(torch.softmax(scores, dim=-1).to(q.dtype), keys[:, :, :kv_lora_rank])
    out = out.view(batch_size, query_len, num_heads, kv_lora_rank)
    if return_lse:
        return out, torch.logsumexp(scores, dim=-1).view(batch_size, query_len, num_heads)
    return out


def _supports_prefill(
    q_nope: torch.Tensor, q_pe: torch.Tensor, latent_cache: torch.Tensor, *_: Any, **__: Any
) -> str | None:
    return _contiguous_cache(latent_cache)


@register_kernel("mla_prefill", "torch", Priority.PORTABLE, supports=_supports_prefill)
def mla_prefill_torch(
    q_nope: torch.Tensor,
    q_pe: torch.Tensor,
    latent_cache: torch.Tensor,
    metadata: PrefillMetadata,
    *,
    w_kc: torch.Tensor,
    w_vc: torch.Tensor,
    softmax_scale: float,
    latent_scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """Expanded or absorbed attention, whichever multiplies less, in large slices."""
    slices = _row_slices(metadata, q_nope.shape[1], _MAX_SCORES)
    keys = gathered_rows(latent_cache, metadata.key_slots, latent_scale, q_nope.dtype)
    return _prefill(q_nope, q_pe, keys, metadata, w_kc, w_vc, softmax_scale, slices)


def _supports_prefill_cpu(
    q_nope: torch.Tensor, q_pe: torch.Tensor, latent_cache: torch.Tensor, *_: Any, **__: Any
) -> str | None:
    if q_nope.device.type != "cpu":
        return f"its slices are too small for {q_nope.device}"
    return _contiguous_cache(latent_cache)


@register_kernel("mla_prefill", "torch_cpu", Priority.PORTABLE + 1, supports=_supports_prefill_cpu)
def mla_prefill_torch_cpu(
    q_nope: torch.Tensor,
    q_pe: torch.Tensor,
    latent_cache: torch.Tensor,
    metadata: PrefillMetadata,
    *,
    w_kc: torch.Tensor,
    w_vc: torch.Tensor,
    softmax_scale: float,
    latent_scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """Expanded or absorbed attention, whichever multiplies less, in slices that fit a cache."""
    slices = _row_slices(metadata, q_nope.shape[1], _MAX_SCORES_CPU)
    keys = gathered_rows(latent_cache, metadata.key_slots, latent_scale, q_nope.dtype)
    return _prefill(q_nope, q_pe, keys, metadata, w_kc, w_vc, softmax_scale, slices)


def _prefill(
    q_nope: torch.Tensor,
    q_pe: torch.Tensor,
    keys: torch.Tensor,
    metadata: PrefillMetadata,
    w_kc: torch.Tensor,
    w_vc: torch.Tensor,
    softmax_scale: float,
    slices: list[tuple[int, int]],
) -> torch.Tensor:
    absorb = _absorbed_is_cheaper(metadata, q_pe, w_kc, w_vc)
    attend = _attend_absorbed if absorb else _attend_expanded
    return attend(q_nope, q_pe, keys, metadata, w_kc, w_vc, softmax_scale, slices)


def _absorbed_is_cheaper(
    metadata: PrefillMetadata, q_pe: torch.Tensor, w_kc: torch.Tensor, w_vc: torch.Tensor
) -> bool:
    """Compares the multiplications per head of the two forms."""
    _, nope, kv_lora_rank = w_kc.shape
    rope, v_head_dim = q_pe.shape[2], w_vc.shape[2]
    num_tokens, num_keys = metadata.num_tokens, metadata.num_keys
    pairs = num_tokens * num_keys
    projection = kv_lora_rank * (nope + v_head_dim)
    expanded = num_keys * projection + pairs * (nope + rope + v_head_dim)
    absorbed = num_tokens * projection + pairs * (2 * kv_lora_rank + rope)
    return absorbed < expanded


def _row_slices(
    metadata: PrefillMetadata, num_heads: int, max_scores: int
) -> list[tuple[int, int]]:
    """Splits the chunk's rows into (first, stop) slices of bounded numbers of scores."""
    size = max(_MIN_ROWS, max_scores // (num_heads * metadata.num_keys))
    stops = range(0, metadata.num_tokens, size)
    return [(first, min(first + size, metadata.num_tokens)) for first in stops]


def _causal_softmax(scores: torch.Tensor, metadata: PrefillMetadata) -> torch.Tensor:
    """Masks the last columns (the slice's own rows) of [num_heads, rows, keys], then normalises."""
    rows = scores.shape[1]
    if rows > 1:
        scores[:, :, -rows:] += metadata.causal_bias(rows, scores.dtype)
    return torch.softmax(scores, dim=-1)


def _attend_expanded(
    q_nope: torch.Tensor,
    q_pe: torch.Tensor,
    keys: torch.Tensor,
    metadata: PrefillMetadata,
    w_kc: torch.Tensor,
    w_vc: torch.Tensor,
    softmax_scale: float,
    slices: list[tuple[int, int]],
) -> torch.Tensor:
    num_tokens, num_heads, _ = q_nope.shape
    kv_lora_rank = w_kc.shape[2]
    compressed, k_pe = keys[:, :kv_lora_rank], keys[:, kv_lora_rank:]
    # A product per head: joining the heads in one matrix would copy w_kc, whose layout decode sets.
    k_nope = torch.matmul(compressed, w_kc.mT).mT  # [num_heads, nope, num_keys]
    values = torch.matmul(compressed, w_vc)  # [num_heads, num_keys, v_head_dim]
    out = q_nope.new_empty(num_tokens, num_heads, w_vc.shape[2])
    for first, stop in slices:
        seen = metadata.start + stop
        scores = torch.matmul(q_pe[first:stop].transpose(0, 1), k_pe[:seen].t())
        scores = torch.baddbmm(
            scores,
            q_nope[first:stop].transpose(0, 1),
            k_nope[:, :, :seen],
            beta=softmax_scale,
            alpha=softmax_scale,
        )
        weights = _causal_softmax(scores, metadata)
        out[first:stop] = torch.bmm(weights, values[:, :seen]).transpose(0, 1)
    return out


def _attend_absorbed(
    q_nope: torch.Tensor,
    q_pe: torch.Tensor,
    keys: torch.Tensor,
    metadata: PrefillMetadata,
    w_kc: torch.Tensor,
    w_vc: torch.Tensor,
    softmax_scale: float,
    slices: list[tuple[int, int]],
) -> torch.Tensor:
    num_tokens, num_heads, _ = q_nope.shape
    kv_lora_rank = w_kc.shape[2]
    absorbed = torch.bmm(q_nope.transpose(0, 1), w_kc)
    q = torch.cat([absorbed, q_pe.transpose(0, 1)], dim=-1)  # [num_heads, num_tokens, latent]
    out = q_nope.new_empty(num_tokens, num_heads, w_vc.shape[2])
    for first, stop in slices:
        seen = metadata.start + stop
        q_rows = q[:, first:stop].reshape(-1, q.shape[-1])
        scores = torch.mm(q_rows, keys[:seen].t()).mul_(softmax_scale)
        weights = _causal_softmax(scores.view(num_heads, stop - first, seen), metadata)
        latent = torch.mm(weights.view(-1, seen), keys[:seen, :kv_lora_rank])
        latent = latent.view(num_heads, stop - first, kv_lora_rank)
        out[first:stop] = torch.bmm(latent, w_vc).transpose(0, 1)
    return out
