# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Hostile inputs for the mixture of experts: idle experts, all tokens on one, every grouping."""

from __future__ import annotations

from typing import Any

import torch

from tensorrt_llm_ext.ops.moe import PackedExperts, moe_experts, moe_experts_nvfp4, moe_route
from tensorrt_llm_ext.ops.nvfp4 import nvfp4_quantize
from tensorrt_llm_ext.ops.nvfp4.format import global_scale_of
from tensorrt_llm_ext.ops.testing import OpCase, Outputs, randn


def _by_expert_id(outputs: Outputs) -> Outputs:
    """Sorts each token's experts, whose order is unspecified."""
    weights, expert_ids = outputs["result 0"], outputs["result 1"]
    expert_ids, order = expert_ids.sort(dim=-1)
    return {"weights": weights.gather(1, order), "expert_ids": expert_ids}


def _route(
    name: str,
    *,
    num_tokens: int = 9,
    num_experts: int = 32,
    num_groups: int = 1,
    topk_group: int = 1,
    top_k: int = 2,
    norm_topk_prob: bool = True,
    logit_scale: float = 1.0,
    bias_shift: float = 0.0,
) -> OpCase:
    def build(
        generator: torch.Generator, dtype: torch.dtype, device: torch.device
    ) -> dict[str, Any]:
        bias = randn(generator, num_experts, dtype=dtype, device=device)
        return {
            "logits": randn(generator, num_tokens, num_experts, dtype=dtype, device=device)
            * logit_scale,
            "bias": bias * 0.1 + bias_shift,
            "num_groups": num_groups,
            "topk_group": topk_group,
            "top_k": top_k,
            "norm_topk_prob": norm_topk_prob,
            "routed_scaling_factor": 2.5,
        }

    return OpCase(fn=moe_route, name=name, build=build, canonical=_by_expert_id)


def _experts(
    name: str,
    *,
    num_tokens: int,
    num_experts: int = 8,
    top_k: int = 2,
    hidden_size: int = 24,
    intermediate_size: int = 16,
    only_expert: int | None = None,
) -> OpCase:
    def build(
        generator: torch.Generator, dtype: torch.dtype, device: torch.device
    ) -> dict[str, Any]:
        def numbers(*sizes: int) -> torch.Tensor:
            return randn(generator, *sizes, dtype=dtype, device=device)

        order = torch.rand(num_tokens, num_experts, generator=generator).argsort(dim=1)
        ids = order[:, :top_k].contiguous()
        if only_expert is not None:
            ids = torch.full_like(ids, only_expert)
        w_gate_up = numbers(num_experts, 2 * intermediate_size, hidden_size)
        return {
            "x": numbers(num_tokens, hidden_size),
            "w_gate_up": w_gate_up * hidden_size**-0.5,
            "w_down": numbers(num_experts, hidden_size, intermediate_size)
            * intermediate_size**-0.5,
            "weights": numbers(num_tokens, top_k).abs(),
            "expert_ids": ids.to(device),
        }

    return OpCase(fn=moe_experts, name=name, build=build)


def _packed(
    name: str,
    *,
    num_tokens: int,
    num_experts: int = 5,
    top_k: int = 2,
    only_expert: int | None = None,
    is_w4a4: bool = False,
) -> OpCase:
    hidden_size, intermediate_size = 48, 32

    def build(
        generator: torch.Generator, dtype: torch.dtype, device: torch.device
    ) -> dict[str, Any]:
        def numbers(*sizes: int) -> torch.Tensor:
            return randn(generator, *sizes, dtype=torch.float32, device=device)

        def stack(rows: int, columns: int, amax: float) -> PackedExperts:
            # Magnitudes differ between experts, and so do their scales.
            weights = numbers(num_experts, rows, columns) * columns**-0.5
            weights *= 1 + torch.arange(num_experts, device=device)[:, None, None] / num_experts
            scales = global_scale_of(weights.abs().amax(dim=(1, 2)))
            packed = [nvfp4_quantize(w, s) for w, s in zip(weights, scales, strict=True)]
            block_scale = torch.stack([scale.view(torch.uint8) for _, scale in packed])
            input_scale = global_scale_of(torch.tensor(amax, device=device))
            return PackedExperts(
                data=torch.stack([data for data, _ in packed]),
                block_scale=block_scale.view(torch.float8_e4m3fn),
                global_scale=scales,
                input_scale=input_scale if is_w4a4 else None,
            )

        order = torch.rand(num_tokens, num_experts, generator=generator).argsort(dim=1)
        ids = order[:, :top_k].contiguous()
        if only_expert is not None:
            ids = torch.full_like(ids, only_expert)
        x = randn(generator, num_tokens, hidden_size, dtype=dtype, device=device)
        return {
            "x": x,
            "gate_up": stack(2 * intermediate_size, hidden_size, 4.0),
            "down": stack(hidden_size, intermediate_size, 12.0),
            # The results are of about unit size.
            "weights": randn(generator, num_tokens, top_k, dtype=dtype, device=device).abs() / 4,
            "expert_ids": ids.to(device),
        }

    return OpCase(fn=moe_experts_nvfp4, name=name, build=build)


ROUTE_CASES = (
    _route("kimi_one_group", num_experts=48, top_k=8),
    _route("deepseek_8_groups_of_4", num_groups=8, topk_group=4, top_k=8),
    _route("one_of_two_groups", num_experts=8, num_groups=2, topk_group=1, top_k=4),
    _route("every_group_allowed", num_experts=8, num_groups=4, topk_group=4),
    _route("negative_bias", num_groups=4, topk_group=2, bias_shift=-3.0),
    _route("not_normalised", norm_topk_prob=False),
    _route("saturated_scores", logit_scale=30.0, num_tokens=3, bias_shift=0.5),
    _route("all_experts", num_experts=4, top_k=4),
    _route("one_token", num_tokens=1, num_experts=8),
    _route("no_tokens", num_tokens=0, num_experts=8),
)
EXPERT_CASES = (
    _experts("one_token", num_tokens=1),
    _experts("one_token_all_experts", num_tokens=1, num_experts=3, top_k=3),
    _experts("four_tokens", num_tokens=4),
    _experts("many_tokens", num_tokens=63),
    _experts("many_experts_few_tokens", num_tokens=3, num_experts=40, top_k=6),
    _experts("all_on_the_last_expert", num_tokens=7, top_k=1, only_expert=7),
    _experts("same_expert_twice", num_tokens=5, only_expert=2),
    _experts("odd_sizes", num_tokens=6, num_experts=5, hidden_size=23, intermediate_size=10),
    _experts("tiny_kimi_sizes", num_tokens=4, hidden_size=256, intermediate_size=128),
    _experts("no_tokens", num_tokens=0),
)
PACKED_CASES = (
    _packed("one_token", num_tokens=1),
    _packed("many_tokens", num_tokens=13),
    _packed("many_experts_few_tokens", num_tokens=2, num_experts=24),
    _packed("all_on_the_last_expert", num_tokens=4, top_k=1, only_expert=4),
    _packed("same_expert_twice", num_tokens=3, only_expert=2),
    _packed("no_tokens", num_tokens=0),
    _packed("w4a4", num_tokens=5, is_w4a4=True),
    _packed("w4a4_no_tokens", num_tokens=0, is_w4a4=True),
)
CASES = ROUTE_CASES + EXPERT_CASES + PACKED_CASES
