# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The embedded host's building blocks: plain torch modules over the package's ops."""

from __future__ import annotations

import torch
from torch import nn

from tensorrt_llm_ext.configs.mla import MLAConfig, RopeConfig
from tensorrt_llm_ext.configs.target import MoEConfig
from tensorrt_llm_ext.errors import UnsupportedError
from tensorrt_llm_ext.models.layers import (
    CapturedNorm,
    DraftInput,
    Embedding,
    GatedMLP,
    Linear,
    LMHead,
    RMSNorm,
    TiedLMHead,
)
from tensorrt_llm_ext.models.mla import MLAAttention
from tensorrt_llm_ext.models.moe import MoE
from tensorrt_llm_ext.models.rotary import rotary_table


class TorchBlocks:
    """Implements `TargetBlocks` on one device; `parallel` hints have no meaning here.

    Attention layers with the same rotary settings share one table, also across a target and a
    draft built from the same blocks.

    Args:
        device: Where weights live.
        dtype: Dtype of weights and activations.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.device = device
        self.dtype = dtype
        self._rope_tables: dict[tuple[RopeConfig, int], torch.Tensor] = {}

    def embedding(self, name: str, num_embeddings: int, hidden_size: int) -> Embedding:
        """See `Blocks.embedding`."""
        return Embedding(num_embeddings, hidden_size, device=self.device, dtype=self.dtype)

    def linear(
        self, name: str, in_features: int, out_features: int, parallel: str = "replicated"
    ) -> Linear:
        """See `Blocks.linear`."""
        return Linear(in_features, out_features, device=self.device, dtype=self.dtype)

    def rms_norm(self, name: str, hidden_size: int, eps: float) -> RMSNorm:
        """See `Blocks.rms_norm`."""
        return RMSNorm(hidden_size, eps, device=self.device, dtype=self.dtype)

    def mla_attention(
        self, name: str, config: MLAConfig, layer_idx: int, in_features: int, hidden_size: int
    ) -> MLAAttention:
        """See `Blocks.mla_attention`."""
        return MLAAttention(
            config,
            layer_idx,
            in_features,
            hidden_size,
            self._rope_table(config),
            device=self.device,
            dtype=self.dtype,
        )

    def gated_mlp(self, name: str, hidden_size: int, intermediate_size: int) -> GatedMLP:
        """See `Blocks.gated_mlp`."""
        return GatedMLP(hidden_size, intermediate_size, device=self.device, dtype=self.dtype)

    def lm_head(self, name: str, hidden_size: int, vocab_size: int) -> LMHead:
        """See `Blocks.lm_head`."""
        return LMHead(hidden_size, vocab_size, device=self.device, dtype=self.dtype)

    def draft_input(self, name: str, hidden_size: int, eps: float) -> DraftInput:
        """See `Blocks.draft_input`."""
        return DraftInput(hidden_size, eps, device=self.device, dtype=self.dtype)

    def captured_norm(
        self, name: str, num_captured: int, hidden_size: int, eps: float
    ) -> CapturedNorm:
        """See `Blocks.captured_norm`."""
        return CapturedNorm(num_captured, hidden_size, eps, device=self.device, dtype=self.dtype)

    def moe(self, name: str, hidden_size: int, config: MoEConfig) -> MoE:
        """See `TargetBlocks.moe`."""
        return MoE(hidden_size, config, device=self.device, dtype=self.dtype)

    def tied_lm_head(self, name: str, embedding: nn.Module) -> TiedLMHead:
        """See `TargetBlocks.tied_lm_head`; the embedding must come from these blocks."""
        if not isinstance(embedding, Embedding):
            raise UnsupportedError(
                f"{name} is to be tied to a {type(embedding).__name__}, expected an Embedding: "
                "build both from the same blocks."
            )
        return TiedLMHead(embedding)

    def _rope_table(self, config: MLAConfig) -> torch.Tensor:
        key = (config.rope, config.qk_rope_head_dim)
        if key not in self._rope_tables:
            self._rope_tables[key] = rotary_table(config, dtype=self.dtype, device=self.device)
        return self._rope_tables[key]
