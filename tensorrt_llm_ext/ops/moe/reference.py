# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

r"""The meaning of the mixture of experts (DeepSeek-V3, arXiv 2412.19437, section 2.1.2).

Router "noaux_tc": with scores `s_e = sigmoid(logit_e)` and biased scores `b_e = s_e + bias_e`,

    score of a group  = sum of the two largest b_e in it
    allowed           = experts of the topk_group best groups
    chosen            = the top_k largest b_e among the allowed
    weight_e          = scale * s_e / (sum of s over the chosen + 1e-20)    (norm_topk_prob)
    weight_e          = scale * s_e                                        (otherwise)

The bias balances load and enters no weight. Experts are SwiGLU:

    y = sum_{e chosen} weight_e * W^down_e (silu(W^gate_e x) * (W^up_e x))

Packed experts compute the same with the products of `nvfp4_linear`, whose results, like the gated
states between them, are rounded to the dtype of x: in W4A4 the rounded states are quantized.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from tensorrt_llm_ext.ops.moe.packed import PackedExperts
from tensorrt_llm_ext.ops.nvfp4.reference import nvfp4_linear_reference
from tensorrt_llm_ext.ops.registry import Priority, register_kernel


def _allowed_experts(biased: list[float], num_groups: int, topk_group: int) -> list[int]:
    """Returns the experts of the best groups, by the sum of each group's two best."""
    size = len(biased) // num_groups
    groups = [list(range(g * size, (g + 1) * size)) for g in range(num_groups)]
    best = sorted(
        groups, key=lambda group: -sum(sorted((biased[e] for e in group), reverse=True)[:2])
    )
    return [expert for group in best[:topk_group] for expert in group]


@register_kernel("moe_route", "reference", Priority.REFERENCE)
def moe_route_reference(
    logits: torch.Tensor,
    bias: torch.Tensor,
    *,
    num_groups: int,
    topk_group: int,
    top_k: int,
    norm_topk_prob: bool,
    routed_scaling_factor: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Loops over tokens, in float64."""
    weights = logits.new_empty(logits.shape[0], top_k)
    expert_ids = torch.empty(logits.shape[0], top_k, dtype=torch.int64, device=logits.device)
    for i in range(logits.shape[0]):
        scores = torch.sigmoid(logits[i].double())
        biased = (scores + bias.double()).tolist()
        allowed = _allowed_experts(biased, num_groups, topk_group)
        best = sorted(allowed, key=lambda expert: (-biased[expert], expert))[:top_k]
        ids = torch.tensor(best, device=logits.device)
        row = scores[ids]
        if norm_topk_prob:
            row = row / (row.sum() + 1e-20)
        weights[i] = (row * routed_scaling_factor).to(weights.dtype)
        expert_ids[i] = ids
    return weights, expert_ids


@register_kernel("moe_experts", "reference", Priority.REFERENCE)
def moe_experts_reference(
    x: torch.Tensor,
    w_gate_up: torch.Tensor,
    w_down: torch.Tensor,
    weights: torch.Tensor,
    expert_ids: torch.Tensor,
) -> torch.Tensor:
    """Loops over tokens and their experts, in float64."""
    intermediate_size = w_down.shape[2]
    out = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    for i, row_ids in enumerate(expert_ids.tolist()):
        for j, expert in enumerate(row_ids):
            gate_up = w_gate_up[expert].double() @ x[i].double()
            gate, up = gate_up[:intermediate_size], gate_up[intermediate_size:]
            hidden = gate * torch.sigmoid(gate) * up
            out[i] += weights[i, j].double() * (w_down[expert].double() @ hidden)
    return out.to(x.dtype)


@register_kernel("moe_experts_nvfp4", "reference", Priority.REFERENCE)
def moe_experts_nvfp4_reference(
    x: torch.Tensor,
    gate_up: PackedExperts,
    down: PackedExperts,
    weights: torch.Tensor,
    expert_ids: torch.Tensor,
) -> torch.Tensor:
    """Loops over tokens and their experts."""
    out = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    for i, row_ids in enumerate(expert_ids.tolist()):
        for j, expert in enumerate(row_ids):
            states = nvfp4_linear_reference(x[i : i + 1], *gate_up.expert(expert))
            gate, up = states.chunk(2, dim=-1)
            hidden = functional.silu(gate) * up
            result = nvfp4_linear_reference(hidden, *down.expert(expert))
            out[i] += weights[i, j].double() * result[0].double()
    return out.to(x.dtype)
