# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""DeepSeek's mixture of experts: sigmoid `noaux_tc` routing, grouped experts, shared experts."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from tensorrt_llm_ext.configs.target import MoEConfig
from tensorrt_llm_ext.errors import CheckpointError
from tensorrt_llm_ext.models.interfaces import WeightSource
from tensorrt_llm_ext.models.layers import GatedMLP, take_into
from tensorrt_llm_ext.ops.layout import empty_matrix, empty_parameter
from tensorrt_llm_ext.ops.moe import moe_experts, moe_route


class MoE(nn.Module):
    """Routed experts as two stacked weights, and the shared experts as one wide MLP.

    The router works in float32 at least: scores of near-equal experts decide which one runs.
    """

    def __init__(
        self, hidden_size: int, config: MoEConfig, *, device: torch.device, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.config = config
        experts, width = config.num_experts, config.intermediate_size
        self.router_dtype = torch.promote_types(dtype, torch.float32)
        self.gate_weight = empty_matrix((experts, hidden_size), device, self.router_dtype)
        self.e_score_correction_bias = empty_parameter((experts,), device, self.router_dtype)
        self.w_gate_up = empty_matrix((experts, 2 * width, hidden_size), device, dtype)
        self.w_down = empty_matrix((experts, hidden_size, width), device, dtype)
        self.shared_experts: GatedMLP | None = None
        if config.num_shared_experts:
            shared_width = config.num_shared_experts * width
            self.shared_experts = GatedMLP(hidden_size, shared_width, device=device, dtype=dtype)

    def load(self, source: WeightSource, prefix: str) -> None:
        """Takes the router, every routed expert and the shared experts below `prefix`.

        Raises:
            CheckpointError: If a tensor of an expert is missing; the message names it.
        """
        take_into(self.gate_weight, source, f"{prefix}.gate.weight")
        bias_name = f"{prefix}.gate.e_score_correction_bias"
        take_into(self.e_score_correction_bias, source, bias_name)
        width = self.config.intermediate_size
        for index in range(self.config.num_experts):
            gate, up = torch.split(self.w_gate_up[index], width)
            for part, weight in (("gate", gate), ("up", up), ("down", self.w_down[index])):
                name = f"{prefix}.experts.{index}.{part}_proj.weight"
                if not source.has(name):
                    raise CheckpointError(
                        f"Expert {index} of {self.config.num_experts} is incomplete: {name} is not "
                        "in the checkpoint. Check that every shard is there and that the config's "
                        "n_routed_experts is right."
                    )
                take_into(weight, source, name)
        if self.shared_experts is not None:
            self.shared_experts.load(source, f"{prefix}.shared_experts")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[tokens, hidden_size] -> the same."""
        config = self.config
        routed_input = x if x.dtype == self.router_dtype else x.to(self.router_dtype)
        weights, expert_ids = moe_route(
            functional.linear(routed_input, self.gate_weight),
            self.e_score_correction_bias,
            num_groups=config.num_groups,
            topk_group=config.topk_group,
            top_k=config.num_experts_per_tok,
            norm_topk_prob=config.norm_topk_prob,
            routed_scaling_factor=config.routed_scaling_factor,
        )
        routed = moe_experts(x, self.w_gate_up, self.w_down, weights, expert_ids)
        if self.shared_experts is None:
            return routed
        shared: torch.Tensor = self.shared_experts(x)
        return routed + shared
