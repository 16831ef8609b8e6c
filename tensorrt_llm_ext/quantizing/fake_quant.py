# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Linear layers that round as a quantized engine does, with straight-through gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn
from torch.nn import functional

from tensorrt_llm_ext.models.eagle3 import Eagle3Draft
from tensorrt_llm_ext.ops.nvfp4 import nvfp4_dequantize, nvfp4_quantize
from tensorrt_llm_ext.ops.nvfp4.format import E4M3_MAX
from tensorrt_llm_ext.quantization.policy import Format
from tensorrt_llm_ext.quantization.tensors import FP8, QuantTensor
from tensorrt_llm_ext.quantizing.dense import replace_module
from tensorrt_llm_ext.quantizing.packing import groups_of, scale_of_amax
from tensorrt_llm_ext.quantizing.recipes import ModulePlan


def rounded(
    x: torch.Tensor, scale: torch.Tensor, kind: Format, *, activation: bool = False
) -> torch.Tensor:
    """Rounds to a format and back; the gradient passes as if nothing had happened.

    Args:
        x: [..., columns] float; columns a multiple of 16 for NVFP4.
        scale: [] float32, the scale of the whole tensor.
        kind: "nvfp4" or "fp8"; "float" returns `x`.
        activation: Whether `x` is an activation.

    Returns:
        The same shape and dtype.
    """
    if kind == "float":
        return x
    flat = x.detach().reshape(-1, x.shape[-1])
    if kind == "nvfp4":
        data, block_scale = nvfp4_quantize(flat, scale, activation=activation)
        near = nvfp4_dequantize(data, block_scale, scale, x.dtype)
    else:
        units = (flat.float() / scale).clamp(-E4M3_MAX, E4M3_MAX).to(FP8)
        near = (units.float() * scale).to(x.dtype)
    return x + (near.view_as(x) - x).detach()


class FakeQuantLinear(nn.Linear):
    """A float linear layer that multiplies rounded numbers.

    The weight's scale follows the weights of all siblings, which is what export gives them.

    Attributes:
        plan: Formats of weight and inputs.
        input_scale: [] float32, or None where inputs stay float.
        siblings: Layers whose weights share one scale, itself among them.
    """

    def __init__(
        self, weight: nn.Parameter, plan: ModulePlan, input_scale: torch.Tensor | None
    ) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = weight.shape[1], weight.shape[0]
        self.weight = weight
        self.register_parameter("bias", None)
        self.plan = plan
        self.input_scale = input_scale
        self.siblings: tuple[FakeQuantLinear, ...] = ()

    def weight_scale(self) -> torch.Tensor:
        """[] float32: the scale of all siblings' weights together."""
        amax = torch.stack([layer.weight.detach().abs().amax() for layer in self.siblings]).amax()
        return scale_of_amax(amax, self.plan.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[rows, in_features] -> [rows, out_features]."""
        weight = rounded(self.weight, self.weight_scale(), self.plan.weight)
        if self.input_scale is not None:
            x = rounded(x, self.input_scale, self.plan.inputs, activation=True)
        return functional.linear(x, weight)


def insert_fake_quant(
    tree: nn.Module,
    core: Eagle3Draft,
    plans: Mapping[str, ModulePlan],
    packed: Mapping[str, QuantTensor],
) -> None:
    """Replaces the linear layers that a recipe quantizes.

    Args:
        tree: The draft's modules.
        core: The draft that runs them.
        plans: What the recipe makes of each module.
        packed: The result of calibration, which has the inputs' scales.
    """
    layers: dict[str, FakeQuantLinear] = {}
    for name, quantized in packed.items():
        weight = tree.get_submodule(name).weight
        assert isinstance(weight, nn.Parameter)
        layers[name] = FakeQuantLinear(weight, plans[name], quantized.input_scale)
    for group in groups_of(tuple(packed), plans):
        _introduce([layers[name] for name in group])
    for name, layer in layers.items():
        replace_module(tree, core, name, layer)


def _introduce(layers: Sequence[FakeQuantLinear]) -> None:
    for layer in layers:
        # Beside the tree: a sibling below a sibling would be listed twice.
        layer.__dict__["siblings"] = tuple(layers)
