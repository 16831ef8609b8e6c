# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

r"""The meaning of MLA attention (DeepSeek-V2, arXiv 2405.04434, section 2.1 and appendix C).

Position t caches one latent row `[c_t | k^R_t]`, shared by all heads: the normed compressed
key-value vector `c_t` (`kv_lora_rank` wide) and the rotated key part `k^R_t`. With `W^K_h`
[nope, kv_lora_rank] and `W^V_h` [kv_lora_rank, v] the two halves of `kv_b_proj`, head h of a query
row at position p computes

    score_t = scale * (q^N_h . W^K_h c_t + q^R_h . k^R_t)        for t = 0..p
    a = softmax(score)
    out_h = sum_t a_t (c_t W^V_h)

which is `mla_prefill`. `mla_decode` is the same with the two projections moved out of the loop over
keys ("absorbed"): its query is `[q^N_h W^K_h | q^R_h]`, its keys are the latent rows as they are,
its values are the `c_t`, and the caller applies `W^V_h` to its result. `lse` is
`log sum_t exp(score_t)`. A row of a tree (see `DecodeMetadata`) sees the positions before the tree
and its ancestors in place of 0..p. With `latent_scale` the cached rows are multiplied by it first.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from tensorrt_llm_ext.ops.attention.metadata import DecodeMetadata, PrefillMetadata
from tensorrt_llm_ext.ops.registry import Priority, register_kernel


def _latent_rows(
    latent_cache: torch.Tensor, block_table: torch.Tensor, seen: Iterable[int], block_size: int
) -> torch.Tensor:
    """Returns [num_keys, latent_size] float64: the cached rows of the positions `seen`."""
    blocks = block_table.tolist()
    rows = [latent_cache[blocks[t // block_size], t % block_size].double() for t in seen]
    return torch.stack(rows)


def _seen(metadata: DecodeMetadata, sequence: int, row: int) -> list[int]:
    """Returns the positions that a row of the decode grid attends to."""
    if metadata.starts is None or metadata.ancestors is None:
        return list(range(int(metadata.positions[sequence, row]) + 1))
    start, bits = int(metadata.starts[sequence]), int(metadata.ancestors[sequence, row])
    nodes = [start + j for j in range(metadata.query_len) if bits >> j & 1]
    return [*range(start), *nodes]


def _unscaled(rows: torch.Tensor, latent_scale: torch.Tensor | None) -> torch.Tensor:
    return rows if latent_scale is None else rows * latent_scale.double()


@register_kernel("mla_decode", "reference", Priority.REFERENCE)
def mla_decode_reference(
    q: torch.Tensor,
    latent_cache: torch.Tensor,
    metadata: DecodeMetadata,
    *,
    kv_lora_rank: int,
    softmax_scale: float,
    return_lse: bool = False,
    latent_scale: torch.Tensor | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Loops over sequences, rows and heads, in float64."""
    batch_size, query_len, num_heads, _ = q.shape
    out = torch.zeros(
        batch_size, query_len, num_heads, kv_lora_rank, dtype=torch.float64, device=q.device
    )
    lse = torch.zeros(batch_size, query_len, num_heads, dtype=torch.float64, device=q.device)
    for b in range(batch_size):
        for i in range(query_len):
            seen = _seen(metadata, b, i)
            keys = _latent_rows(latent_cache, metadata.block_table[b], seen, metadata.block_size)
            keys = _unscaled(keys, latent_scale)
            for h in range(num_heads):
                scores = softmax_scale * (keys @ q[b, i, h].double())
                lse[b, i, h] = torch.logsumexp(scores, dim=0)
                out[b, i, h] = torch.softmax(scores, dim=0) @ keys[:, :kv_lora_rank]
    if return_lse:
        return out.to(q.dtype), lse.to(torch.promote_types(q.dtype, torch.float32))
    return out.to(q.dtype)


@register_kernel("mla_prefill", "reference", Priority.REFERENCE)
def mla_prefill_reference(
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
    """Loops over rows and heads, in float64, with keys and values expanded per head."""
    num_tokens, num_heads, _ = q_nope.shape
    kv_lora_rank = w_kc.shape[2]
    keys = range(metadata.num_keys)
    rows = _latent_rows(latent_cache, metadata.block_table, keys, metadata.block_size)
    rows = _unscaled(rows, latent_scale)
    compressed, k_pe = rows[:, :kv_lora_rank], rows[:, kv_lora_rank:]
    out = torch.zeros(
        num_tokens, num_heads, w_vc.shape[2], dtype=torch.float64, device=q_nope.device
    )
    for h in range(num_heads):
        k_nope = compressed @ w_kc[h].double().T  # [num_keys, qk_nope_head_dim]
        values = compressed @ w_vc[h].double()  # [num_keys, v_head_dim]
        for i in range(num_tokens):
            seen = metadata.start + i + 1
            scores = k_nope[:seen] @ q_nope[i, h].double() + k_pe[:seen] @ q_pe[i, h].double()
            out[i, h] = torch.softmax(softmax_scale * scores, dim=0) @ values[:seen]
    return out.to(q_nope.dtype)
