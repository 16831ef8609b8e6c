# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""RMS norms in plain torch; half precisions compute in float32 and round once."""

from __future__ import annotations

import torch
from torch.nn import functional

from tensorrt_llm_ext.ops.nvfp4 import nvfp4_quantize
from tensorrt_llm_ext.ops.registry import Priority, register_kernel

_WIDE = (torch.float32, torch.float64)


def _norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Norms the last dimension; `weight` broadcasts against `x`."""
    wide = x if x.dtype in _WIDE else x.float()
    # One fused call yields the mean and 1 / sqrt(variance + eps), and the mean square is the
    # variance plus the mean squared. Half the time of square, mean, add and rsqrt on short rows.
    _, mean, rstd = torch.native_layer_norm(wide, (x.shape[-1],), None, None, eps)
    normed = (wide / torch.hypot(mean, rstd.reciprocal_())).mul_(weight)
    return normed if wide is x else normed.to(x.dtype)


@register_kernel("rms_norm", "torch", Priority.PORTABLE)
def rms_norm_torch(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """A handful of element-wise calls."""
    return _norm(x, weight, eps)


@register_kernel("add_rms_norm", "torch", Priority.PORTABLE)
def add_rms_norm_torch(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """One addition, then the norm."""
    total = x + residual
    return _norm(total, weight, eps), total


@register_kernel("draft_input_norm", "torch", Priority.PORTABLE)
def draft_input_norm_torch(
    token_ids: torch.Tensor,
    embedding: torch.Tensor,
    embed_weight: torch.Tensor,
    hidden: torch.Tensor,
    hidden_weight: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    """One gather, two norms, one concatenation."""
    embedded = functional.embedding(token_ids, embedding)
    return torch.cat([_norm(embedded, embed_weight, eps), _norm(hidden, hidden_weight, eps)], dim=1)


@register_kernel("draft_input_norm_nvfp4", "torch", Priority.PORTABLE)
def draft_input_norm_nvfp4_torch(
    token_ids: torch.Tensor,
    embedding: torch.Tensor,
    embed_weight: torch.Tensor,
    hidden: torch.Tensor,
    hidden_weight: torch.Tensor,
    eps: float,
    input_scale: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Norms, rounds to the stream's dtype, quantizes."""
    normed = draft_input_norm_torch(token_ids, embedding, embed_weight, hidden, hidden_weight, eps)
    return nvfp4_quantize(normed, input_scale, activation=True)


@register_kernel("fc_input_norm", "torch", Priority.PORTABLE)
def fc_input_norm_torch(captured: torch.Tensor, weights: torch.Tensor, eps: float) -> torch.Tensor:
    """One norm over a [num_tokens, L, target_hidden_size] view."""
    chunks = captured.reshape(captured.shape[0], *weights.shape)
    return _norm(chunks, weights, eps).flatten(1)


@register_kernel("latent_norm_pair", "torch", Priority.PORTABLE)
def latent_norm_pair_torch(
    first: torch.Tensor,
    second: torch.Tensor,
    first_weight: torch.Tensor,
    second_weight: torch.Tensor,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Two norms."""
    return _norm(first, first_weight, eps), _norm(second, second_weight, eps)
