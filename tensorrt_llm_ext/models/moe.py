# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""DeepSeek's mixture of experts: sigmoid `noaux_tc` routing, grouped experts, shared experts."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from tensorrt_llm_ext.configs.target import MoEConfig
from tensorrt_llm_ext.errors import CheckpointError, UnsupportedError
from tensorrt_llm_ext.models.interfaces import WeightSource
from tensorrt_llm_ext.models.layers import GatedMLP
from tensorrt_llm_ext.models.linears import Linears, take_into
from tensorrt_llm_ext.ops.layout import empty_matrix, empty_parameter
from tensorrt_llm_ext.ops.moe import moe_experts, moe_route
from tensorrt_llm_ext.quantization.experts import QuantExperts
from tensorrt_llm_ext.quantization.loading import copy_dense, take_weight
from tensorrt_llm_ext.quantization.loading import take_into as take_weight_into
from tensorrt_llm_ext.quantization.siblings import share_scales

_PARTS = ("gate", "up", "down")


class MoE(nn.Module):
    """The router, the routed experts, and the shared experts as one wide MLP.

    The router works in float32 at least: scores of near-equal experts decide which one runs.
    Experts stay packed when `linears` keeps quantized weights and all of them are in NVFP4; other
    quantized experts are dequantized at load.

    Args:
        name: Canonical name, by which `linears` knows the experts.
        hidden_size: Width of input and output.
        config: Counts and settings of the router.
        linears: Makes the shared experts, and says how the checkpoint stores the others.

    Raises:
        UnsupportedError: If activations are to be quantized, and the experts are not all NVFP4.
    """

    def __init__(self, name: str, hidden_size: int, config: MoEConfig, linears: Linears) -> None:
        super().__init__()
        self.config = config
        device, dtype = linears.device, linears.dtype
        count, width = config.num_experts, config.intermediate_size
        self.router_dtype = torch.promote_types(dtype, torch.float32)
        self.gate_weight = empty_matrix((count, hidden_size), device, self.router_dtype)
        self.e_score_correction_bias = empty_parameter((count,), device, self.router_dtype)
        self.packed: QuantExperts | None = None
        if _stay_packed(f"{name}.experts", count, linears):
            is_emulated = linears.mode == "emulated"
            self.packed = QuantExperts(
                count, hidden_size, width, is_emulated=is_emulated, device=device
            )
        else:
            self.w_gate_up = empty_matrix((count, 2 * width, hidden_size), device, dtype)
            self.w_down = empty_matrix((count, hidden_size, width), device, dtype)
        self.shared_experts: GatedMLP | None = None
        if config.num_shared_experts:
            shared_width = config.num_shared_experts * width
            self.shared_experts = GatedMLP(
                f"{name}.shared_experts", hidden_size, shared_width, linears
            )

    def load(self, source: WeightSource, prefix: str) -> None:
        """Takes the router, every routed expert and the shared experts below `prefix`.

        Raises:
            CheckpointError: If a tensor of an expert is missing; the message names it.
        """
        take_into(self.gate_weight, source, f"{prefix}.gate.weight")
        bias_name = f"{prefix}.gate.e_score_correction_bias"
        take_into(self.e_score_correction_bias, source, bias_name)
        for index in range(self.config.num_experts):
            for part in _PARTS:
                name = f"{prefix}.experts.{index}.{part}_proj.weight"
                if not source.has(name):
                    raise CheckpointError(
                        f"Expert {index} of {self.config.num_experts} is incomplete: {name} is not "
                        "in the checkpoint. Check that every shard is there and that the config's "
                        "n_routed_experts is right."
                    )
        if self.packed is not None:
            self.packed.load(source, f"{prefix}.experts")
        else:
            self._load_float(source, f"{prefix}.experts")
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
        routed: torch.Tensor
        if self.packed is not None:
            routed = self.packed(x, weights, expert_ids)
        else:
            routed = moe_experts(x, self.w_gate_up, self.w_down, weights, expert_ids)
        if self.shared_experts is None:
            return routed
        shared: torch.Tensor = self.shared_experts(x)
        return routed + shared

    def _load_float(self, source: WeightSource, prefix: str) -> None:
        width, hidden_size = self.config.intermediate_size, self.w_down.shape[1]
        for index in range(self.config.num_experts):
            name = f"{prefix}.{index}"
            gate_up = [
                take_weight(source, f"{name}.{part}_proj", (width, hidden_size))
                for part in ("gate", "up")
            ]
            halves = torch.split(self.w_gate_up[index], width)
            for destination, weight in zip(halves, share_scales(gate_up), strict=True):
                copy_dense(destination, weight)
            take_weight_into(self.w_down[index], source, f"{name}.down_proj")


def _stay_packed(prefix: str, num_experts: int, linears: Linears) -> bool:
    """Whether all experts are in NVFP4 and the mode keeps them so."""
    names = [f"{prefix}.{e}.{part}_proj" for e in range(num_experts) for part in _PARTS]
    kinds = linears.kinds(names)
    if linears.mode == "emulated" and kinds not in ({"float"}, {"nvfp4"}):
        raise UnsupportedError(
            f"The experts below {prefix} are stored as {' and '.join(sorted(kinds))}; activations "
            "are quantized for experts that are all in NVFP4. Use mode 'packed' or 'dequantized'."
        )
    return kinds == {"nvfp4"}
