# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Rotary tables: what they are made from, and how a config says it."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import Any

import torch


class RotaryScalingType(enum.IntEnum):
    """Kinds of scaled rope."""

    none = 0
    linear = 1
    dynamic = 2
    yarn = 5


class PositionEmbeddingType(enum.IntEnum):
    """Kinds of position embedding."""

    rope_gptj = 1
    rope_gpt_neox = 2
    yarn = 6

    def is_rope(self) -> bool:
        return True


def yarn_get_mscale(scale: float = 1.0, mscale: float = 1.0) -> float:
    """As the reference implementation of DeepSeek."""
    return 1.0 if scale <= 1 else 0.1 * mscale * math.log(scale) + 1.0


@dataclass
class RopeParams:
    """What a rotary table is made from."""

    dim: int = 0
    theta: float = 10000.0
    alpha: float = 1.0
    scale_type: RotaryScalingType = RotaryScalingType.none
    scale: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    short_m_scale: float = 1.0
    long_m_scale: float = 1.0
    max_positions: int = 1024
    original_max_positions: int = 1024
    beta_fast: int = 32
    beta_slow: int = 1
    mscale: float = 1.0
    mscale_all_dim: float = 0.0
    short_factor: tuple[float, ...] | None = None
    long_factor: tuple[float, ...] | None = None
    max_seq_len: int | None = None
    duplicate_data: bool = True

    @staticmethod
    def from_config(config: Any) -> RopeParams:
        """Reads a pretrained config as the host does."""
        scaling = getattr(config, "rope_scaling", None) or {}
        kind = scaling.get("type", scaling.get("rope_type"))
        params = RopeParams(
            dim=config.qk_rope_head_dim,
            theta=getattr(config, "rope_theta", 10000.0),
            max_positions=config.max_position_embeddings,
            # Models without scaling get a table of this layout by hand.
            scale_type=RotaryScalingType.yarn,
        )
        if kind in ("yarn", "deepseek_yarn"):
            params.scale_type = RotaryScalingType.yarn
            params.scale = scaling.get("factor", 1.0)
            params.original_max_positions = scaling.get("original_max_position_embeddings", 1024)
            params.beta_fast = scaling.get("beta_fast", 32)
            params.beta_slow = scaling.get("beta_slow", 1)
            params.mscale = scaling.get("mscale", 1.0)
            params.mscale_all_dim = scaling.get("mscale_all_dim", 0.0)
        return params

    def table(self, num_positions: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin, [positions, dim / 2], in the interleaved order."""
        dim = self.dim
        base = self.theta ** (torch.arange(0, dim, 2, dtype=torch.float64) / dim)
        inverse, magnitude = 1.0 / base, 1.0
        if self.scale_type is RotaryScalingType.yarn and self.scale > 1:
            low, high = (
                dim
                * math.log(self.original_max_positions / (beta * 2 * math.pi))
                / (2 * math.log(self.theta))
                for beta in (self.beta_fast, self.beta_slow)
            )
            low, high = max(math.floor(low), 0), min(math.ceil(high), dim - 1)
            ramp = (torch.arange(dim // 2, dtype=torch.float64) - low) / max(high - low, 0.001)
            keep = 1.0 - ramp.clamp(0, 1)
            inverse = inverse / self.scale * (1 - keep) + inverse * keep
            magnitude = yarn_get_mscale(self.scale, self.mscale) / yarn_get_mscale(
                self.scale, self.mscale_all_dim
            )
        positions = torch.arange(num_positions, dtype=torch.float64)[:, None]
        if self.scale_type is not RotaryScalingType.yarn:
            # The kernels of MLA read a table that has every pair twice, as YaRN's does; in one
            # without duplicates they find other rows and other frequencies.
            index = torch.arange(0, dim, 2)
            positions = 2 * positions + (index >= dim // 2)
            inverse = inverse[index % (dim // 2)]
        angles = positions * inverse
        wide = torch.promote_types(dtype, torch.float32)
        return (angles.cos() * magnitude).to(wide), (angles.sin() * magnitude).to(wide)


@dataclass(kw_only=True)
class PositionalEmbeddingParams:
    """How positions enter attention."""

    type: PositionEmbeddingType
    embedder: Any = None
    rope: RopeParams | None = None
    is_neox: bool = True
    mrope_section: list[int] | None = None
    mrope_interleaved: bool = False
