# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Mixture of experts: `moe_route` (sigmoid, noaux_tc) and `moe_experts` (gated experts).

`moe_experts_nvfp4` is `moe_experts` over weights that stay packed.
"""

from __future__ import annotations

import torch

from tensorrt_llm_ext import _triton
from tensorrt_llm_ext.errors import ShapeError
from tensorrt_llm_ext.ops.checks import check_float, check_int64, check_same_dtype, check_shape
from tensorrt_llm_ext.ops.moe import library, reference, torch_kernels  # noqa: F401  (they register)
from tensorrt_llm_ext.ops.moe.packed import PackedExperts, moe_experts_nvfp4
from tensorrt_llm_ext.ops.registry import choose, chosen

if _triton.AVAILABLE:
    from tensorrt_llm_ext.ops.moe import triton_kernels  # noqa: F401

__all__ = ["PackedExperts", "moe_experts", "moe_experts_nvfp4", "moe_route"]


def moe_route(
    logits: torch.Tensor,
    bias: torch.Tensor,
    *,
    num_groups: int,
    topk_group: int,
    top_k: int,
    norm_topk_prob: bool,
    routed_scaling_factor: float,
    kernel: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Chooses experts per token and their weights (DeepSeek-V3's bias-balanced sigmoid router).

    Args:
        logits: [num_tokens, num_experts], float32 or float64.
        bias: [num_experts], dtype of `logits`: `e_score_correction_bias`; it decides the choice
            and never enters a weight.
        num_groups: Groups that the experts are split into, in order (`n_group`).
        topk_group: Groups that a token may choose from.
        top_k: Experts per token.
        norm_topk_prob: Whether the chosen scores are divided by their sum.
        routed_scaling_factor: Multiplied into the weights.
        kernel: Name of a registered kernel; the best supported one when None.

    Returns:
        weights [num_tokens, top_k], dtype of `logits`, and expert ids [num_tokens, top_k] int64, in
        an unspecified order per token.

    Raises:
        ShapeError: If a shape, dtype or count is wrong.
        KernelNotFoundError: If no registered kernel takes these inputs.
    """
    key = (
        "moe_route",
        kernel,
        logits.dtype,
        logits.device,
        logits.shape,
        bias.dtype,
        bias.shape,
        num_groups,
        topk_group,
        top_k,
    )
    run = chosen(key)
    if run is None:
        _check_moe_route(logits, bias, num_groups, topk_group, top_k)
        run = choose(
            key,
            logits,
            bias,
            num_groups=num_groups,
            topk_group=topk_group,
            top_k=top_k,
            norm_topk_prob=norm_topk_prob,
            routed_scaling_factor=routed_scaling_factor,
        )
    result: tuple[torch.Tensor, torch.Tensor] = run(
        logits,
        bias,
        num_groups=num_groups,
        topk_group=topk_group,
        top_k=top_k,
        norm_topk_prob=norm_topk_prob,
        routed_scaling_factor=routed_scaling_factor,
    )
    return result


def moe_experts(
    x: torch.Tensor,
    w_gate_up: torch.Tensor,
    w_down: torch.Tensor,
    weights: torch.Tensor,
    expert_ids: torch.Tensor,
    *,
    kernel: str | None = None,
) -> torch.Tensor:
    """Runs each token through its experts and adds their weighted results.

    Expert e computes `w_down[e] @ (silu(gate) * up)` with `[gate | up] = w_gate_up[e] @ x`.

    Args:
        x: [num_tokens, hidden_size], float.
        w_gate_up: [num_experts, 2 * intermediate_size, hidden_size], dtype of `x`, gate rows first.
        w_down: [num_experts, hidden_size, intermediate_size], dtype of `x`.
        weights: [num_tokens, top_k], float: factor of each expert's result.
        expert_ids: [num_tokens, top_k] int64, each in 0..num_experts - 1.
        kernel: Name of a registered kernel; the best supported one when None.

    Returns:
        [num_tokens, hidden_size], dtype of `x`.

    Raises:
        ShapeError: If a shape or dtype is wrong.
        KernelNotFoundError: If no registered kernel takes these inputs.
    """
    key = (
        "moe_experts",
        kernel,
        x.dtype,
        x.device,
        x.shape,
        w_gate_up.dtype,
        w_gate_up.shape,
        w_down.dtype,
        w_down.shape,
        weights.shape,
        expert_ids.shape,
    )
    run = chosen(key)
    if run is None:
        _check_moe_experts(x, w_gate_up, w_down, weights, expert_ids)
        run = choose(key, x, w_gate_up, w_down, weights, expert_ids)
    out: torch.Tensor = run(x, w_gate_up, w_down, weights, expert_ids)
    return out


def _check_moe_route(
    logits: torch.Tensor, bias: torch.Tensor, num_groups: int, topk_group: int, top_k: int
) -> None:
    op = "moe_route"
    check_float(op, "logits", logits)
    check_shape(op, "logits", logits, (None, None), "[num_tokens, num_experts]")
    num_experts = logits.shape[1]
    check_shape(op, "bias", bias, (num_experts,), "[num_experts]")
    check_same_dtype(op, "bias", bias, logits.dtype)
    if num_groups < 1 or num_experts % num_groups:
        raise ShapeError(
            f"{op}: {num_experts} experts do not split into {num_groups} groups of equal size. "
            "Check n_group."
        )
    group_size = num_experts // num_groups
    if num_groups > 1 and group_size < 2:
        raise ShapeError(
            f"{op}: {num_groups} groups of {num_experts} experts hold {group_size} each, expected "
            "at least 2, because a group is scored by its two best experts. Check n_group."
        )
    if not 1 <= topk_group <= num_groups:
        raise ShapeError(f"{op}: topk_group is {topk_group}, expected 1..{num_groups} (n_group).")
    if not 1 <= top_k <= topk_group * group_size:
        raise ShapeError(
            f"{op}: top_k is {top_k}, expected 1..{topk_group * group_size}: topk_group "
            f"{topk_group} groups of {group_size} experts."
        )


def _check_moe_experts(
    x: torch.Tensor,
    w_gate_up: torch.Tensor,
    w_down: torch.Tensor,
    weights: torch.Tensor,
    expert_ids: torch.Tensor,
) -> None:
    op = "moe_experts"
    check_float(op, "x", x)
    check_shape(op, "x", x, (None, None), "[num_tokens, hidden_size]")
    num_tokens, hidden_size = x.shape
    check_shape(
        op,
        "w_down",
        w_down,
        (None, hidden_size, None),
        "[num_experts, hidden_size, intermediate_size]",
    )
    num_experts, _, intermediate_size = w_down.shape
    check_shape(
        op,
        "w_gate_up",
        w_gate_up,
        (num_experts, 2 * intermediate_size, hidden_size),
        "[num_experts, 2 * intermediate_size, hidden_size]",
    )
    check_same_dtype(op, "w_gate_up", w_gate_up, x.dtype)
    check_same_dtype(op, "w_down", w_down, x.dtype)
    check_shape(op, "weights", weights, (num_tokens, None), "[num_tokens, top_k]")
    check_float(op, "weights", weights)
    check_shape(op, "expert_ids", expert_ids, tuple(weights.shape), "[num_tokens, top_k]")
    check_int64(op, "expert_ids", expert_ids)


library.register(route=moe_route, experts=moe_experts, packed=moe_experts_nvfp4)
