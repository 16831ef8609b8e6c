# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Rotary tables: interleaved RoPE with DeepSeek's YaRN (arXiv 2104.09864, 2309.00071)."""

from __future__ import annotations

import math

import torch

from tensorrt_llm_ext.configs.mla import MLAConfig, RopeConfig, YarnConfig


def rotary_frequencies(rope: RopeConfig, rotary_dim: int) -> torch.Tensor:
    """Computes the angle per position of each rotated pair.

    Plain RoPE has `theta^(-2i/R)` for pair i. YaRN keeps pairs that turn often within the original
    context, divides by `factor` those that turn rarely, and blends linearly in between.

    Args:
        rope: Base frequency and optional YaRN settings.
        rotary_dim: Rotated width R, even.

    Returns:
        [rotary_dim / 2] float64, radians per position.
    """
    pairs = torch.arange(rotary_dim // 2, dtype=torch.float64)
    frequencies = torch.pow(rope.theta, -2.0 * pairs / rotary_dim)
    if rope.yarn is None:
        return frequencies
    low, high = _blend_range(rope.theta, rope.yarn, rotary_dim)
    interpolated = ((pairs - low) / (high - low)).clamp(0.0, 1.0)  # share taken from f / factor
    return frequencies * (1.0 - interpolated) + frequencies / rope.yarn.factor * interpolated


def rotary_table(
    config: MLAConfig, *, dtype: torch.dtype, device: torch.device | None = None
) -> torch.Tensor:
    """Builds the cos/sin table of an MLA layer.

    Args:
        config: Rotated width and rotary settings.
        dtype: The model's dtype; the table has at least float32, because cos and sin of large
            angles do not survive fewer bits.
        device: Where the table lives.

    Returns:
        [max_position_embeddings, qk_rope_head_dim / 2, 2], (cos, sin) of each pair.
    """
    rope = config.rope
    positions = torch.arange(rope.max_position_embeddings, dtype=torch.float64)
    angles = torch.outer(positions, rotary_frequencies(rope, config.qk_rope_head_dim))
    table = torch.stack((angles.cos(), angles.sin()), dim=-1) * config.rope_magnitude
    return table.to(device=device, dtype=torch.promote_types(dtype, torch.float32))


def _blend_range(theta: float, yarn: YarnConfig, rotary_dim: int) -> tuple[float, float]:
    """Returns the pairs between which YaRN blends, rounded outward to whole pairs."""

    def pair_with_rotations(rotations: float) -> float:
        # Pair i turns `context / (2 pi theta^(2i/R))` times in the original context; solved for i.
        turns = yarn.original_max_position_embeddings / (rotations * 2.0 * math.pi)
        return rotary_dim * math.log(turns) / (2.0 * math.log(theta))

    low = max(math.floor(pair_with_rotations(yarn.beta_fast)), 0)
    high = min(math.ceil(pair_with_rotations(yarn.beta_slow)), rotary_dim - 1)
    return low, high if high != low else low + 0.001  # an empty range is a step, not 0 / 0
