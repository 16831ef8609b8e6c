# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""What the core assumes of models, of the building blocks of a host, and of a weight source."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NewType, Protocol, runtime_checkable

import torch
from torch import nn

from tensorrt_llm_ext.configs.draft import DraftConfig
from tensorrt_llm_ext.configs.mla import MLAConfig
from tensorrt_llm_ext.configs.target import MoEConfig, TargetConfig
from tensorrt_llm_ext.ops.attention.metadata import MLAMetadata

# A draft may speak a reduced vocabulary; `target = draft + d2t[draft]`. Two types keep the two
# kinds of tensors of ids apart in signatures.
DraftTokenId = NewType("DraftTokenId", torch.Tensor)
TargetTokenId = NewType("TargetTokenId", torch.Tensor)


@dataclass
class ForwardContext:
    """The embedded host's `ctx`: caches and row metadata of one forward pass.

    Attributes:
        latent_caches: Per layer [num_blocks, block_size, latent_size]; the draft's layers follow
            the target's.
        metadata: Where the rows of this pass live.
        rope_rows: Memo of the rotary rows gathered for this pass, by rotary table identity: layers
            with the same table share one gather.
    """

    latent_caches: tuple[torch.Tensor, ...]
    metadata: MLAMetadata
    rope_rows: dict[int, torch.Tensor] = field(default_factory=dict)


class WeightSource(Protocol):
    """Hands out each checkpoint tensor exactly once, by canonical name."""

    def has(self, name: str) -> bool:
        """Whether a tensor of this name exists."""
        ...

    def take(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """Returns the tensor and marks it consumed; CheckpointError when missing or misshapen."""
        ...


@runtime_checkable
class Loadable(Protocol):
    """A module that fetches its own checkpoint tensors; every block of the embedded host is one."""

    def load(self, source: WeightSource, prefix: str) -> None:
        """Takes every tensor of the module, whose canonical names start with `prefix`."""
        ...


class HeadModule(Protocol):
    """A vocabulary head: `lm_head` modules of every host."""

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """[rows, hidden_size] -> [rows, vocab_size]."""
        ...

    def argmax(
        self, hidden: torch.Tensor, d2t: torch.Tensor | None
    ) -> tuple[DraftTokenId, TargetTokenId]:
        """Row-wise argmax (ties: the lowest id), [rows] int64, and the same ids through `d2t`."""
        ...


class Blocks(Protocol):
    """Factories of the modules that a model is built from; each host supplies its own.

    The forward of an attention module is `forward(x, positions, ctx)` with `ctx` opaque to the
    models. `rms_norm` modules are `forward(x, residual=None)`: with a residual they return
    `(norm(x + residual), x + residual)`, so that a host can fuse the addition.

    Attributes:
        device: Where the modules' weights live.
    """

    device: torch.device

    def embedding(self, name: str, num_embeddings: int, hidden_size: int) -> nn.Module:
        """[tokens] int64 -> [tokens, hidden_size]."""
        ...

    def linear(
        self, name: str, in_features: int, out_features: int, parallel: str = "replicated"
    ) -> nn.Module:
        """[tokens, in] -> [tokens, out], no bias; parallel: replicated, column or row."""
        ...

    def rms_norm(self, name: str, hidden_size: int, eps: float) -> nn.Module:
        """RMS norm with a weight."""
        ...

    def mla_attention(
        self, name: str, config: MLAConfig, layer_idx: int, in_features: int, hidden_size: int
    ) -> nn.Module:
        """MLA whose input is `in_features` wide and whose output is `hidden_size` wide."""
        ...

    def gated_mlp(self, name: str, hidden_size: int, intermediate_size: int) -> nn.Module:
        """SwiGLU: `down(silu(gate(x)) * up(x))`."""
        ...

    def lm_head(self, name: str, hidden_size: int, vocab_size: int) -> HeadModule:
        """[rows, hidden_size] -> [rows, vocab_size]; an nn.Module."""
        ...

    def draft_input(self, name: str, hidden_size: int, eps: float) -> nn.Module:
        """Input of a draft's first layer: `forward(token_ids, hidden, embedding)`.

        Returns [rows, 2 * hidden_size]: `input_layernorm(embedding(token_ids))`, then
        `hidden_norm(hidden)`. `name` is the layer's; the two norms are its children.
        """
        ...

    def captured_norm(
        self, name: str, num_captured: int, hidden_size: int, eps: float
    ) -> nn.Module:
        """One RMS norm per captured state: [rows, L * hidden_size] -> the same shape."""
        ...


class TargetBlocks(Blocks, Protocol):
    """What a target needs on top of a draft."""

    def tied_lm_head(self, name: str, embedding: nn.Module) -> HeadModule:
        """A head over the embedding's own table (`tie_word_embeddings`)."""
        ...

    def moe(self, name: str, hidden_size: int, config: MoEConfig) -> nn.Module:
        """Routed and shared experts, [tokens, hidden_size] -> [tokens, hidden_size]."""
        ...


class TargetModel(Protocol):
    """The verified model. Drafts without an own embedding or head use the target's modules."""

    config: TargetConfig
    embed_tokens: nn.Module
    lm_head: HeadModule

    def forward(
        self,
        token_ids: TargetTokenId,
        positions: torch.Tensor,
        ctx: Any,
        boundaries: tuple[int, ...],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Runs all layers.

        Args:
            token_ids: [num_tokens] int64.
            positions: [num_tokens] int64.
            ctx: The host's context.
            boundaries: Residual-stream boundaries to capture, in the order of the draft's fc
                columns; empty captures nothing.

        Returns:
            hidden [num_tokens, hidden_size], the residual stream after the last layer and before
            the final norm; and the captured states [num_tokens, len(boundaries) * hidden_size],
            or None.
        """
        ...

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[rows, hidden_size] (before the final norm) -> [rows, vocab_size]."""
        ...


class DraftModel(Protocol):
    """The proposing model."""

    config: DraftConfig

    def combine(self, captured: torch.Tensor) -> torch.Tensor:
        """[rows, L * target_hidden_size] captured states -> [rows, hidden_size] (`fc`)."""
        ...

    def forward(
        self, hidden: torch.Tensor, token_ids: TargetTokenId, positions: torch.Tensor, ctx: Any
    ) -> torch.Tensor:
        """Runs the draft's layers.

        Args:
            hidden: [rows, hidden_size]: combined states (extend), or the recurrent state (chain).
            token_ids: [rows] int64: the successor of each row's position.
            positions: [rows] int64: RoPE position and cache position of each row.
            ctx: The host's context.

        Returns:
            [rows, hidden_size] recurrent state: `post` with `norm_output`, else `pre`.
        """
        ...

    def compute_logits(self, state: torch.Tensor) -> torch.Tensor:
        """[rows, hidden_size] recurrent state -> [rows, draft_vocab_size]."""
        ...

    def propose(self, state: torch.Tensor) -> tuple[DraftTokenId, TargetTokenId]:
        """Greedy proposal from the recurrent state: draft ids and their target ids, [rows]."""
        ...
