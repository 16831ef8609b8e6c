# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The MLA Eagle3 draft, written once over the building blocks of a host (DESIGN section 3).

Canonical tensor names: `fc.weight`; `fc_norm.{i}.weight` or `input_norm.weight`; `layers.0.` with
`hidden_norm`, `input_layernorm` (of the embedding), `self_attn.*`, `post_attention_layernorm` and
`mlp.*`; `layers.{i}.` for i >= 1 the same without `hidden_norm`, where `input_layernorm` norms the
residual stream; `norm.weight`; `embed_tokens.weight`, `lm_head.weight` and `d2t` where the draft
has its own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tensorrt_llm_ext.configs.draft import DraftConfig
from tensorrt_llm_ext.errors import ConfigError
from tensorrt_llm_ext.models.interfaces import (
    Blocks,
    DraftTokenId,
    HeadModule,
    TargetModel,
    TargetTokenId,
    WeightSource,
)
from tensorrt_llm_ext.models.loading import load_modules


class _LayerBody(nn.Module):
    """What all layers of a draft have in common: MLA and a dense SwiGLU after the input norm."""

    def __init__(
        self, config: DraftConfig, blocks: Blocks, name: str, layer_idx: int, in_features: int
    ) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.self_attn = blocks.mla_attention(
            f"{name}.self_attn", config.mla, layer_idx, in_features, hidden
        )
        self.post_attention_layernorm = blocks.rms_norm(
            f"{name}.post_attention_layernorm", hidden, config.rms_norm_eps
        )
        self.mlp = blocks.gated_mlp(f"{name}.mlp", hidden, config.intermediate_size)

    def _run(
        self, x: torch.Tensor, residual: torch.Tensor, positions: torch.Tensor, ctx: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        attended = self.self_attn(x, positions, ctx)
        x, residual = self.post_attention_layernorm(attended, residual)
        return self.mlp(x), residual


class Eagle3FirstLayer(_LayerBody):
    """The layer that reads the embedding and the state side by side, twice as wide."""

    def __init__(self, config: DraftConfig, blocks: Blocks, layer_idx: int) -> None:
        super().__init__(config, blocks, "layers.0", layer_idx, 2 * config.hidden_size)
        self.draft_input = blocks.draft_input("layers.0", config.hidden_size, config.rms_norm_eps)
        self.norm_before_residual = config.norm_before_residual

    def load(self, source: WeightSource, prefix: str) -> None:
        """Takes every tensor of the layer below `prefix`."""
        load_modules({prefix: self.draft_input}, source)
        _load_body(self, source, prefix)

    def forward(
        self,
        token_ids: TargetTokenId,
        hidden: torch.Tensor,
        embedding: nn.Module,
        positions: torch.Tensor,
        ctx: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns two summands of the residual stream after the layer, [rows, hidden_size]."""
        x = self.draft_input(token_ids, hidden, embedding)
        # The second half of the input is the normed state.
        residual = x[:, hidden.shape[1] :] if self.norm_before_residual else hidden
        return self._run(x, residual, positions, ctx)


class Eagle3Layer(_LayerBody):
    """A later layer, which reads the residual stream as a target's layer does."""

    def __init__(self, config: DraftConfig, blocks: Blocks, index: int, layer_idx: int) -> None:
        name = f"layers.{index}"
        super().__init__(config, blocks, name, layer_idx, config.hidden_size)
        self.input_layernorm = blocks.rms_norm(
            f"{name}.input_layernorm", config.hidden_size, config.rms_norm_eps
        )

    def load(self, source: WeightSource, prefix: str) -> None:
        """Takes every tensor of the layer below `prefix`."""
        load_modules({f"{prefix}.input_layernorm": self.input_layernorm}, source)
        _load_body(self, source, prefix)

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor, positions: torch.Tensor, ctx: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Takes and returns two summands of the residual stream, [rows, hidden_size]."""
        x, residual = self.input_layernorm(x, residual)
        return self._run(x, residual, positions, ctx)


class Eagle3Draft(nn.Module):
    """Implements `DraftModel`.

    Args:
        config: Shapes and flags.
        blocks: The host's building blocks.
        first_layer_idx: Cache layer of the draft's first layer: the target's number of layers.

    Raises:
        ConfigError: If the draft must borrow the target's embedding or head, but is of another
            width.
    """

    def __init__(self, config: DraftConfig, blocks: Blocks, first_layer_idx: int) -> None:
        super().__init__()
        _check_sharing(config)
        self.config = config
        hidden, eps = config.hidden_size, config.rms_norm_eps
        captured, num_captured = config.target_hidden_size, config.num_captured
        self.embed_tokens: nn.Module | None = None
        if config.has_own_embedding:
            self.embed_tokens = blocks.embedding("embed_tokens", config.vocab_size, hidden)
        self.captured_norm: nn.Module | None = None
        if config.fc_norm:
            self.captured_norm = blocks.captured_norm("fc_norm", num_captured, captured, eps)
        elif config.norm_before_fc:
            self.captured_norm = blocks.rms_norm("input_norm", num_captured * captured, eps)
        self.fc: nn.Module | None = None
        if config.has_fc:
            self.fc = blocks.linear("fc", num_captured * captured, hidden)
        self.first_layer = Eagle3FirstLayer(config, blocks, first_layer_idx)
        self.later_layers = nn.ModuleList(
            Eagle3Layer(config, blocks, index, first_layer_idx + index)
            for index in range(1, config.num_layers)
        )
        self.norm = blocks.rms_norm("norm", hidden, eps)
        self.lm_head: HeadModule | None = None
        if config.has_own_lm_head:
            self.lm_head = blocks.lm_head("lm_head", hidden, config.draft_vocab_size)
        self.d2t: torch.Tensor | None
        self.register_buffer("d2t", None)
        if config.has_d2t:
            self.d2t = torch.empty(config.draft_vocab_size, dtype=torch.int64, device=blocks.device)

    def load_weights(self, source: WeightSource) -> None:
        """Takes every tensor of the draft, by the canonical names of this module's docstring.

        Raises:
            CheckpointError: If a tensor is missing or has another shape.
        """
        modules: dict[str, object | None] = {
            "embed_tokens": self.embed_tokens if self.config.has_own_embedding else None,
            "fc_norm" if self.config.fc_norm else "input_norm": self.captured_norm,
            "fc": self.fc,
            "layers.0": self.first_layer,
            **{f"layers.{i}": layer for i, layer in enumerate(self.later_layers, start=1)},
            "norm": self.norm,
            "lm_head": self.lm_head if self.config.has_own_lm_head else None,
        }
        load_modules(
            {name: module for name, module in modules.items() if module is not None}, source
        )
        if self.d2t is not None:
            self.d2t.copy_(source.take("d2t", tuple(self.d2t.shape)))

    def share_with(self, target: TargetModel) -> None:
        """Borrows the target's embedding and head where the draft has none of its own.

        Raises:
            ConfigError: If the target is of another width or vocabulary than the draft is for.
        """
        wanted, got = self.config, target.config
        for name, expected, found in (
            ("hidden_size", wanted.target_hidden_size, got.hidden_size),
            ("vocab_size", wanted.vocab_size, got.vocab_size),
        ):
            if expected != found:
                raise ConfigError(
                    f"The draft is for a target with {name} {expected}, but the target's {name} is "
                    f"{found}. Pair the draft with the target that it was trained for."
                )
        if not wanted.has_own_embedding:
            self.embed_tokens = target.embed_tokens
        if not wanted.has_own_lm_head:
            self.lm_head = target.lm_head

    def combine(self, captured: torch.Tensor) -> torch.Tensor:
        """See `DraftModel.combine`."""
        if self.captured_norm is not None:
            captured = self.captured_norm(captured)
        return captured if self.fc is None else self.fc(captured)

    def forward(
        self, hidden: torch.Tensor, token_ids: TargetTokenId, positions: torch.Tensor, ctx: Any
    ) -> torch.Tensor:
        """See `DraftModel.forward`."""
        if self.embed_tokens is None:
            raise _not_shared("embedding")
        x, residual = self.first_layer(token_ids, hidden, self.embed_tokens, positions, ctx)
        for layer in self.later_layers:
            x, residual = layer(x, residual, positions, ctx)
        if self.config.norm_output:
            post: torch.Tensor = self.norm(x, residual)[0]
            return post
        pre: torch.Tensor = residual + x
        return pre

    def compute_logits(self, state: torch.Tensor) -> torch.Tensor:
        """See `DraftModel.compute_logits`."""
        return self._head()(self.normed(state))

    def propose(self, state: torch.Tensor) -> tuple[DraftTokenId, TargetTokenId]:
        """See `DraftModel.propose`."""
        return self._head().argmax(self.normed(state), self.d2t)

    def normed(self, state: torch.Tensor) -> torch.Tensor:
        """[rows, hidden_size] recurrent state -> what the head reads, the same shape."""
        return state if self.config.norm_output else self.norm(state)

    def _head(self) -> HeadModule:
        if self.lm_head is None:
            raise _not_shared("lm_head")
        return self.lm_head


def _load_body(layer: _LayerBody, source: WeightSource, prefix: str) -> None:
    load_modules(
        {
            f"{prefix}.self_attn": layer.self_attn,
            f"{prefix}.post_attention_layernorm": layer.post_attention_layernorm,
            f"{prefix}.mlp": layer.mlp,
        },
        source,
    )


def _check_sharing(config: DraftConfig) -> None:
    """Refuses drafts that would borrow modules that cannot fit them."""
    borrowed = [
        name
        for name, owned in (
            ("embed_tokens", config.has_own_embedding),
            ("lm_head", config.has_own_lm_head),
        )
        if not owned
    ]
    if borrowed and config.hidden_size != config.target_hidden_size:
        raise ConfigError(
            f"The draft has hidden_size {config.hidden_size} and its target "
            f"{config.target_hidden_size}, so it cannot use the target's {' and '.join(borrowed)}: "
            "its checkpoint must have its own."
        )
    if not config.has_own_lm_head and config.draft_vocab_size != config.vocab_size:
        raise ConfigError(
            f"The draft has no lm_head, so draft_vocab_size {config.draft_vocab_size} must equal "
            f"vocab_size {config.vocab_size}. Check that lm_head.weight is in its checkpoint."
        )


def _not_shared(name: str) -> ConfigError:
    return ConfigError(
        f"The draft has no {name} of its own and borrowed none: call share_with(target) first."
    )
