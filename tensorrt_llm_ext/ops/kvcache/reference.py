# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

r"""The meaning of the cache writes of MLA.

Interleaved rotary embedding (GPT-J's pairing; Su et al., arXiv 2104.09864, section 3.2): dimensions
2j and 2j+1 of a row at position p form a pair that turns by the angle `p * theta_j`:

    y[2j]   = x[2j] * cos_j - x[2j+1] * sin_j
    y[2j+1] = x[2j] * sin_j + x[2j+1] * cos_j

`rope_rows` holds (cos_j, sin_j) for the row's own position, times the table's magnitude. The cache
row is `[latent | rotated k_pe]`; slot s is row `s % block_size` of block `s // block_size`. In an
fp8 cache it is divided by `latent_scale`, held within +-448 and rounded to e4m3.
"""

from __future__ import annotations

import torch

from tensorrt_llm_ext.ops.registry import Priority, register_kernel


def _rotate(vector: torch.Tensor, rope_row: torch.Tensor) -> torch.Tensor:
    """Rotates one [qk_rope_head_dim] vector by one [qk_rope_head_dim / 2, 2] row, in float64."""
    rotated = torch.empty(vector.shape, dtype=torch.float64, device=vector.device)
    for j in range(vector.shape[0] // 2):
        even, odd = vector[2 * j].double(), vector[2 * j + 1].double()
        cos, sin = rope_row[j, 0].double(), rope_row[j, 1].double()
        rotated[2 * j] = even * cos - odd * sin
        rotated[2 * j + 1] = even * sin + odd * cos
    return rotated


@register_kernel("mla_rope_append", "reference", Priority.REFERENCE)
def mla_rope_append_reference(
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
    """Loops over rows, heads and pairs, in float64."""
    block_size = latent_cache.shape[1]
    rotated = torch.empty(q_pe.shape, dtype=q_pe.dtype, device=q_pe.device)
    for i, slot in enumerate(slot_mapping.tolist()):
        for h in range(q_pe.shape[1]):
            rotated[i, h] = _rotate(q_pe[i, h], rope_rows[i])
        if slot >= 0:
            row = torch.cat([latent[i].double(), _rotate(k_pe[i], rope_rows[i])])
            if latent_scale is not None:
                row = (row / latent_scale.double()).clamp(-448.0, 448.0)
            latent_cache[slot // block_size, slot % block_size] = row.to(latent_cache.dtype)
    return rotated


@register_kernel("gather_latent", "reference", Priority.REFERENCE)
def gather_latent_reference(latent_cache: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """Loops over rows."""
    block_size, latent_size = latent_cache.shape[1:]
    rows = latent_cache.new_empty(slots.shape[0], latent_size)
    for i, slot in enumerate(slots.tolist()):
        rows[i] = latent_cache[slot // block_size, slot % block_size]
    return rows
