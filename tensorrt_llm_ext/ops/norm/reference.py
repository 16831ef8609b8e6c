# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

r"""The meaning of the norms (Zhang and Sennrich, arXiv 1910.07467).

    rms_norm(x)_i = x_i / sqrt(mean_j x_j^2 + eps) * weight_i

`draft_input_norm` and `fc_input_norm` are the inputs of an Eagle3 draft (arXiv 2503.01840; DESIGN
section 3, steps 1 and 3): the embedding half comes first, and each captured state is normed alone.
"""

from __future__ import annotations

import torch

from tensorrt_llm_ext.ops.nvfp4.reference import nvfp4_quantize_reference
from tensorrt_llm_ext.ops.registry import Priority, register_kernel


def _norm_row(row: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Norms one [hidden_size] row in float64."""
    row = row.double()
    mean_square = (row * row).sum() / row.shape[0]
    return row / torch.sqrt(mean_square + eps) * weight.double()


@register_kernel("rms_norm", "reference", Priority.REFERENCE)
def rms_norm_reference(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Loops over rows, in float64."""
    out = x.new_empty(x.shape)
    for i in range(x.shape[0]):
        out[i] = _norm_row(x[i], weight, eps).to(x.dtype)
    return out


@register_kernel("add_rms_norm", "reference", Priority.REFERENCE)
def add_rms_norm_reference(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rounds the sum to the dtype of the stream, then norms what was kept."""
    total = x + residual
    return rms_norm_reference(total, weight, eps), total


@register_kernel("draft_input_norm", "reference", Priority.REFERENCE)
def draft_input_norm_reference(
    token_ids: torch.Tensor,
    embedding: torch.Tensor,
    embed_weight: torch.Tensor,
    hidden: torch.Tensor,
    hidden_weight: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    """Loops over rows, in float64."""
    hidden_size = embedding.shape[1]
    out = embedding.new_empty(token_ids.shape[0], 2 * hidden_size)
    for i, token_id in enumerate(token_ids.tolist()):
        out[i, :hidden_size] = _norm_row(embedding[token_id], embed_weight, eps).to(out.dtype)
        out[i, hidden_size:] = _norm_row(hidden[i], hidden_weight, eps).to(out.dtype)
    return out


@register_kernel("draft_input_norm_nvfp4", "reference", Priority.REFERENCE)
def draft_input_norm_nvfp4_reference(
    token_ids: torch.Tensor,
    embedding: torch.Tensor,
    embed_weight: torch.Tensor,
    hidden: torch.Tensor,
    hidden_weight: torch.Tensor,
    eps: float,
    input_scale: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Norms, rounds to the stream's dtype, quantizes."""
    normed = draft_input_norm_reference(
        token_ids, embedding, embed_weight, hidden, hidden_weight, eps
    )
    return nvfp4_quantize_reference(normed, input_scale, activation=True)


@register_kernel("fc_input_norm", "reference", Priority.REFERENCE)
def fc_input_norm_reference(
    captured: torch.Tensor, weights: torch.Tensor, eps: float
) -> torch.Tensor:
    """Loops over rows and captured states, in float64."""
    num_captured, size = weights.shape
    out = captured.new_empty(captured.shape)
    for i in range(captured.shape[0]):
        for j in range(num_captured):
            chunk = slice(j * size, (j + 1) * size)
            out[i, chunk] = _norm_row(captured[i, chunk], weights[j], eps).to(out.dtype)
    return out


@register_kernel("latent_norm_pair", "reference", Priority.REFERENCE)
def latent_norm_pair_reference(
    first: torch.Tensor,
    second: torch.Tensor,
    first_weight: torch.Tensor,
    second_weight: torch.Tensor,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Norms each slice by itself."""
    return (
        rms_norm_reference(first, first_weight, eps),
        rms_norm_reference(second, second_weight, eps),
    )
