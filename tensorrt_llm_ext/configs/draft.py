# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Configuration of an MLA Eagle3 draft, free of torch."""

from __future__ import annotations

from dataclasses import dataclass

from tensorrt_llm_ext.configs.mla import MLAConfig
from tensorrt_llm_ext.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class DraftConfig:
    """An MLA Eagle3 draft as the core sees it (DESIGN section 3).

    `boundaries` are the captured layers in our own convention: boundary b is the residual stream
    before 0-based target layer b. The flags carry the names that checkpoints use.
    """

    hidden_size: int
    target_hidden_size: int
    num_layers: int
    intermediate_size: int
    vocab_size: int
    draft_vocab_size: int
    rms_norm_eps: float
    mla: MLAConfig
    boundaries: tuple[int, ...]
    fc_norm: bool = False
    norm_output: bool = False
    norm_before_fc: bool = False
    norm_before_residual: bool = False
    has_fc: bool = True
    has_own_embedding: bool = False
    has_own_lm_head: bool = True
    has_d2t: bool = False
    boundaries_evidence: str = ""

    def __post_init__(self) -> None:
        """Refuses combinations that have no meaning."""
        if self.fc_norm and self.norm_before_fc:
            raise ConfigError(
                "fc_norm and norm_before_fc are mutually exclusive: a draft norms either each "
                "captured chunk or all of them together. Enable one of the two."
            )
        if not self.boundaries:
            raise ConfigError("A draft must capture at least one target boundary, got none.")
        if not self.has_fc and self.num_captured * self.target_hidden_size != self.hidden_size:
            raise ConfigError(
                f"The draft has no fc, so captured width {self.num_captured} x "
                f"{self.target_hidden_size} must equal its hidden_size {self.hidden_size}. "
                "Check that fc.weight is in the checkpoint."
            )

    @property
    def num_captured(self) -> int:
        """Number of captured target states, L."""
        return len(self.boundaries)
