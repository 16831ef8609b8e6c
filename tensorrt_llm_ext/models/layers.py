# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Building blocks of the embedded host that are not attention, experts or plain linear layers.

Weights are created empty, without gradients, and must be loaded: each module takes its own
checkpoint tensors from a `WeightSource`.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from tensorrt_llm_ext.errors import CheckpointError
from tensorrt_llm_ext.models.interfaces import WeightSource
from tensorrt_llm_ext.models.linears import Linears, LMHead, take_into
from tensorrt_llm_ext.models.loading import load_modules
from tensorrt_llm_ext.ops.layout import empty_parameter
from tensorrt_llm_ext.ops.norm import add_rms_norm, draft_input_norm, fc_input_norm, rms_norm


class Embedding(nn.Module):
    """Rows of a table."""

    def __init__(
        self, num_embeddings: int, hidden_size: int, *, device: torch.device, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.weight = empty_parameter((num_embeddings, hidden_size), device, dtype)

    def load(self, source: WeightSource, prefix: str) -> None:
        """Takes `{prefix}.weight`, [num_embeddings, hidden_size]."""
        take_into(self.weight, source, f"{prefix}.weight")

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        """[tokens] int64 -> [tokens, hidden_size]."""
        return functional.embedding(token_ids, self.weight)


class RMSNorm(nn.Module):
    """`x / rms(x) * weight`, optionally of a sum that is returned as well."""

    def __init__(
        self, hidden_size: int, eps: float, *, device: torch.device, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.weight = empty_parameter((hidden_size,), device, dtype)
        self.eps = eps

    def load(self, source: WeightSource, prefix: str) -> None:
        """Takes `{prefix}.weight`, [hidden_size]."""
        take_into(self.weight, source, f"{prefix}.weight")

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Returns `norm(x)`, or `(norm(x + residual), x + residual)` when a residual is given."""
        if residual is None:
            return rms_norm(x, self.weight, self.eps)
        return add_rms_norm(x, residual, self.weight, self.eps)


class GatedMLP(nn.Module):
    """SwiGLU with gate and up in one matmul."""

    def __init__(
        self, name: str, hidden_size: int, intermediate_size: int, linears: Linears
    ) -> None:
        super().__init__()
        parts = (("gate_proj", intermediate_size), ("up_proj", intermediate_size))
        self.gate_up_proj = linears.fused(name, hidden_size, parts)
        self.down_proj = linears.one(f"{name}.down_proj", intermediate_size, hidden_size)

    def load(self, source: WeightSource, prefix: str) -> None:
        """Takes gate_proj, up_proj and down_proj below `prefix`."""
        load_modules({prefix: self.gate_up_proj, f"{prefix}.down_proj": self.down_proj}, source)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[tokens, hidden_size] -> the same: `down(silu(gate(x)) * up(x))`."""
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        down: torch.Tensor = self.down_proj(functional.silu(gate) * up)
        return down


class TiedLMHead(LMHead):
    """Head over the table of an embedding, which must be loaded first."""

    def __init__(self, embedding: Embedding) -> None:
        nn.Module.__init__(self)
        self.weight = embedding.weight

    def load(self, source: WeightSource, prefix: str) -> None:
        """Consumes `{prefix}.weight` where a checkpoint stores the tied head a second time.

        Raises:
            CheckpointError: If the stored head differs from the embedding.
        """
        name = f"{prefix}.weight"
        if not source.has(name):
            return
        stored = source.take(name, tuple(self.weight.shape))
        if not torch.equal(stored.to(self.weight), self.weight):
            raise CheckpointError(
                f"{name} differs from the embedding although the config says tie_word_embeddings. "
                "Set tie_word_embeddings to false to use the stored head."
            )


class DraftInput(nn.Module):
    """Input of a draft's first layer: the two normed halves side by side, in one op."""

    def __init__(
        self, hidden_size: int, eps: float, *, device: torch.device, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(hidden_size, eps, device=device, dtype=dtype)
        self.hidden_norm = RMSNorm(hidden_size, eps, device=device, dtype=dtype)

    def load(self, source: WeightSource, prefix: str) -> None:
        """Takes input_layernorm (of the embedding) and hidden_norm below `prefix`."""
        self.input_layernorm.load(source, f"{prefix}.input_layernorm")
        self.hidden_norm.load(source, f"{prefix}.hidden_norm")

    def forward(
        self, token_ids: torch.Tensor, hidden: torch.Tensor, embedding: Embedding
    ) -> torch.Tensor:
        """[rows] int64 ids and [rows, hidden_size] states -> [rows, 2 * hidden_size]."""
        return draft_input_norm(
            token_ids,
            embedding.weight,
            self.input_layernorm.weight,
            hidden,
            self.hidden_norm.weight,
            self.input_layernorm.eps,
        )


class CapturedNorm(nn.Module):
    """One RMS norm per captured state (`fc_norm` of EAGLE-3.1)."""

    def __init__(
        self,
        num_captured: int,
        hidden_size: int,
        eps: float,
        *,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.weights = empty_parameter((num_captured, hidden_size), device, dtype)
        self.eps = eps

    def load(self, source: WeightSource, prefix: str) -> None:
        """Takes `{prefix}.{i}.weight`, [hidden_size], of each captured state."""
        for index, weight in enumerate(self.weights):
            take_into(weight, source, f"{prefix}.{index}.weight")

    def forward(self, captured: torch.Tensor) -> torch.Tensor:
        """[rows, num_captured * hidden_size] -> the same, each chunk normed on its own."""
        return fc_input_norm(captured, self.weights, self.eps)
