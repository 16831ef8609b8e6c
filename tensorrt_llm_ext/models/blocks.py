# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The embedded host's building blocks: plain torch modules over the package's ops."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from tensorrt_llm_ext.configs.mla import MLAConfig, RopeConfig
from tensorrt_llm_ext.configs.target import MoEConfig
from tensorrt_llm_ext.errors import UnsupportedError
from tensorrt_llm_ext.models.interfaces import HeadModule
from tensorrt_llm_ext.models.layers import (
    CapturedNorm,
    DraftInput,
    Embedding,
    GatedMLP,
    RMSNorm,
    TiedLMHead,
)
from tensorrt_llm_ext.models.linears import Linears
from tensorrt_llm_ext.models.mla import MLAAttention
from tensorrt_llm_ext.models.moe import MoE
from tensorrt_llm_ext.models.rotary import rotary_table
from tensorrt_llm_ext.quantization.linear import Mode


class TorchBlocks:
    """Implements `TargetBlocks` on one device; `parallel` hints have no meaning here.

    Attention layers with the same rotary settings share one table, also across a target and a
    draft built from the same blocks.

    Args:
        device: Where weights live.
        dtype: Dtype of weights and activations.
        formats: How the checkpoint to be loaded stores each module, by canonical name, where that
            is not in floating point ("nvfp4", "fp8"). Not needed for the mode "dequantized", which
            loads every format.
        mode: What becomes of quantized weights, see `quantization.linear.QuantLinear`.
    """

    def __init__(
        self,
        device: torch.device,
        dtype: torch.dtype,
        *,
        formats: Mapping[str, str] | None = None,
        mode: Mode = "dequantized",
    ) -> None:
        self.device = device
        self.dtype = dtype
        self._linears = Linears(device, dtype, formats=formats, mode=mode)
        self._rope_tables: dict[tuple[RopeConfig, int], torch.Tensor] = {}

    def embedding(self, name: str, num_embeddings: int, hidden_size: int) -> Embedding:
        """See `Blocks.embedding`."""
        return Embedding(num_embeddings, hidden_size, device=self.device, dtype=self.dtype)

    def linear(
        self, name: str, in_features: int, out_features: int, parallel: str = "replicated"
    ) -> nn.Module:
        """See `Blocks.linear`."""
        return self._linears.one(name, in_features, out_features)

    def rms_norm(self, name: str, hidden_size: int, eps: float) -> RMSNorm:
        """See `Blocks.rms_norm`."""
        return RMSNorm(hidden_size, eps, device=self.device, dtype=self.dtype)

    def mla_attention(
        self, name: str, config: MLAConfig, layer_idx: int, in_features: int, hidden_size: int
    ) -> MLAAttention:
        """See `Blocks.mla_attention`."""
        return MLAAttention(
            name,
            config,
            layer_idx,
            in_features,
            hidden_size,
            self._rope_table(config),
            self._linears,
        )

    def gated_mlp(self, name: str, hidden_size: int, intermediate_size: int) -> GatedMLP:
        """See `Blocks.gated_mlp`."""
        return GatedMLP(name, hidden_size, intermediate_size, self._linears)

    def lm_head(self, name: str, hidden_size: int, vocab_size: int) -> HeadModule:
        """See `Blocks.lm_head`."""
        return self._linears.head(name, hidden_size, vocab_size)

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
        return MoE(name, hidden_size, config, self._linears)

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
