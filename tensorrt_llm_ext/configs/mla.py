# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Shapes and rotary settings of multi-head latent attention (MLA)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from tensorrt_llm_ext.errors import ConfigError

MAX_POSITIONS: Final = 1 << 22  # four times what any public model of this family declares
_SMALLEST: Final = 1e-6


@dataclass(frozen=True, kw_only=True, slots=True)
class YarnConfig:
    """YaRN settings of a rotary table (arXiv 2309.00071, DeepSeek's variant).

    `mscale` and `mscale_all_dim` keep the difference between an absent key (None) and a number:
    DESIGN section 3, step 4 treats them differently.
    """

    factor: float
    original_max_position_embeddings: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None

    def __post_init__(self) -> None:
        """Refuses numbers that give no table."""
        for name in ("factor", "beta_fast", "beta_slow"):
            if not _SMALLEST <= getattr(self, name) <= 1 / _SMALLEST:
                raise ConfigError(
                    f"YaRN's {name} must be between {_SMALLEST:g} and {1 / _SMALLEST:g}, got "
                    f"{getattr(self, name):g}. Published values lie between 1 and 64."
                )


@dataclass(frozen=True, kw_only=True, slots=True)
class RopeConfig:
    """Rotary table: base frequency, table length and optional YaRN."""

    theta: float
    max_position_embeddings: int
    yarn: YarnConfig | None = None

    def __post_init__(self) -> None:
        """Refuses settings whose table has no sense, or no place in memory."""
        if not 1.0 < self.theta < math.inf:
            raise ConfigError(
                f"rope_theta must be above 1, got {self.theta:g}: it is the base of the rotary "
                "frequencies (Kimi-K2.x: 50000, DeepSeek-V3: 10000)."
            )
        if not 1 <= self.max_position_embeddings <= MAX_POSITIONS:
            raise ConfigError(
                f"max_position_embeddings must be between 1 and {MAX_POSITIONS}, got "
                f"{self.max_position_embeddings}: a rotary table has a row for each position."
            )


def yarn_mscale(scale: float, mscale: float) -> float:
    """Returns `0.1 * mscale * ln(scale) + 1` for scales above one, else 1."""
    return 0.1 * mscale * math.log(scale) + 1.0 if scale > 1 else 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class MLAConfig:
    """Shapes of one MLA layer. `q_lora_rank` None means one full-rank `q_proj`."""

    num_heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    rms_norm_eps: float
    rope: RopeConfig

    def __post_init__(self) -> None:
        """Refuses sizes that no MLA layer can have."""
        for name in ("num_heads", "kv_lora_rank", "qk_nope_head_dim", "v_head_dim"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if self.qk_rope_head_dim < 2 or self.qk_rope_head_dim % 2:
            raise ConfigError(
                f"qk_rope_head_dim must be even and positive, got {self.qk_rope_head_dim}."
            )
        try:
            finite = math.isfinite(self.softmax_scale) and math.isfinite(self.rope_magnitude)
        except (OverflowError, ZeroDivisionError):
            finite = False
        if not finite:
            raise ConfigError(
                f"The rope settings give no finite softmax scale or rotary magnitude: {self.rope}. "
                "Correct factor, mscale and mscale_all_dim in config.json; published values lie "
                "between 0.1 and 100."
            )

    @property
    def qk_head_dim(self) -> int:
        """Width of one query head: nope + rope."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def latent_size(self) -> int:
        """Width of one cached row: kv_lora_rank + qk_rope_head_dim."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def softmax_scale(self) -> float:
        """`(nope + rope)^-0.5`, times `mscale^2` when YaRN declares a non-zero mscale_all_dim."""
        scale: float = self.qk_head_dim**-0.5
        yarn = self.rope.yarn
        if yarn is not None and yarn.mscale_all_dim:
            scale *= yarn_mscale(yarn.factor, yarn.mscale_all_dim) ** 2
        return scale

    @property
    def rope_magnitude(self) -> float:
        """Factor on cos and sin: `m(factor, mscale or 1) / m(factor, mscale_all_dim or 0)`."""
        yarn = self.rope.yarn
        if yarn is None:
            return 1.0
        return yarn_mscale(yarn.factor, yarn.mscale or 1.0) / yarn_mscale(
            yarn.factor, yarn.mscale_all_dim or 0.0
        )
