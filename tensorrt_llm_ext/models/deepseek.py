# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The target: DeepSeek-V3 and the models with its architecture (Kimi-K2.x)."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tensorrt_llm_ext.configs.target import TargetConfig
from tensorrt_llm_ext.errors import ConfigError
from tensorrt_llm_ext.models.interfaces import (
    HeadModule,
    TargetBlocks,
    TargetTokenId,
    WeightSource,
)
from tensorrt_llm_ext.models.loading import load_modules


class DeepseekV3Layer(nn.Module):
    """Attention and MLP (or experts), each with its norm before it.

    Each addition to the residual stream is left to the norm that follows it, so that one op does
    both; the layer therefore takes and returns the stream as two summands.
    """

    def __init__(self, config: TargetConfig, blocks: TargetBlocks, layer_idx: int) -> None:
        super().__init__()
        name, hidden, eps = f"model.layers.{layer_idx}", config.hidden_size, config.rms_norm_eps
        self.input_layernorm = blocks.rms_norm(f"{name}.input_layernorm", hidden, eps)
        self.self_attn = blocks.mla_attention(
            f"{name}.self_attn", config.mla, layer_idx, hidden, hidden
        )
        self.post_attention_layernorm = blocks.rms_norm(
            f"{name}.post_attention_layernorm", hidden, eps
        )
        if layer_idx in config.moe_layers:
            if config.moe is None:
                raise ConfigError(
                    f"Layer {layer_idx} is listed in moe_layers, but the config has no experts. "
                    "Give n_routed_experts and its companions, or an empty moe_layers."
                )
            self.mlp = blocks.moe(f"{name}.mlp", hidden, config.moe)
        else:
            self.mlp = blocks.gated_mlp(f"{name}.mlp", hidden, config.intermediate_size)

    def load(self, source: WeightSource, prefix: str) -> None:
        """Takes every tensor of the layer below `prefix`."""
        load_modules({f"{prefix}.{name}": module for name, module in self.named_children()}, source)

    def forward(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        positions: torch.Tensor,
        ctx: Any,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Runs the layer on a residual stream given as `x + residual`.

        Args:
            x: [tokens, hidden_size].
            residual: [tokens, hidden_size]; None when `x` is the whole stream.
            positions: [tokens] int64.
            ctx: The host's context.

        Returns:
            (x, residual, before): two summands of the stream after the layer, and the stream
            before it.
        """
        if residual is None:
            before = x
            x = self.input_layernorm(x)
        else:
            x, before = self.input_layernorm(x, residual)
        attended = self.self_attn(x, positions, ctx)
        x, residual = self.post_attention_layernorm(attended, before)
        return self.mlp(x), residual, before


class DeepseekV3(nn.Module):
    """Implements `TargetModel`.

    Args:
        config: Shapes and settings.
        blocks: The host's building blocks.
    """

    def __init__(self, config: TargetConfig, blocks: TargetBlocks) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = blocks.embedding(
            "model.embed_tokens", config.vocab_size, config.hidden_size
        )
        self.layers = nn.ModuleList(
            DeepseekV3Layer(config, blocks, layer_idx) for layer_idx in range(config.num_layers)
        )
        self.norm = blocks.rms_norm("model.norm", config.hidden_size, config.rms_norm_eps)
        self.lm_head: HeadModule
        if config.tie_word_embeddings:
            self.lm_head = blocks.tied_lm_head("lm_head", self.embed_tokens)
        else:
            self.lm_head = blocks.lm_head("lm_head", config.hidden_size, config.vocab_size)

    def load_weights(self, source: WeightSource) -> None:
        """Takes every tensor of the model.

        Args:
            source: Tensors by the names of `DeepseekV3ForCausalLM`: `model.embed_tokens.weight`,
                `model.layers.{i}.*`, `model.norm.weight`, and `lm_head.weight` unless tied.

        Raises:
            CheckpointError: If a tensor is missing or has another shape.
        """
        modules: dict[str, object] = {"model.embed_tokens": self.embed_tokens}
        modules.update({f"model.layers.{i}": layer for i, layer in enumerate(self.layers)})
        modules.update({"model.norm": self.norm, "lm_head": self.lm_head})
        load_modules(modules, source)

    def forward(
        self,
        token_ids: TargetTokenId,
        positions: torch.Tensor,
        ctx: Any,
        boundaries: tuple[int, ...] = (),
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """See `TargetModel.forward`.

        Raises:
            ConfigError: If a boundary lies outside 0..num_layers.
        """
        x = self.embed_tokens(token_ids)
        residual: torch.Tensor | None = None
        captured: dict[int, torch.Tensor] = {}
        for index, layer in enumerate(self.layers):
            x, residual, before = layer(x, residual, positions, ctx)
            if index in boundaries:
                captured[index] = before
        hidden = x if residual is None else x + residual
        if not boundaries:
            return hidden, None
        captured[self.config.num_layers] = hidden
        return hidden, _concatenate(captured, boundaries, self.config.num_layers)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `TargetModel.compute_logits`."""
        return self.lm_head(self.norm(hidden))


def _concatenate(
    captured: dict[int, torch.Tensor], boundaries: tuple[int, ...], num_layers: int
) -> torch.Tensor:
    try:
        return torch.cat([captured[boundary] for boundary in boundaries], dim=-1)
    except KeyError as error:
        raise ConfigError(
            f"Boundary {error} cannot be captured: a target of {num_layers} layers has the "
            f"boundaries 0 (embeddings) to {num_layers} (after the last layer). Check the draft's "
            "captured layers."
        ) from None
