# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Scales of linear layers that engines fuse into one product.

`q_a_proj` and `kv_a_proj_with_mqa` (`q_proj` in its place without a query rank), and `gate_proj`
and `up_proj`, read the same input. An engine that stacks their rows has one `weight_scale_2` and
one `input_scale` for all of them, so both must be equal in the checkpoint: TensorRT-LLM's loader
asserts it, or shares the larger one and requantizes the other part.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import torch

from tensorrt_llm_ext.errors import ShapeError
from tensorrt_llm_ext.ops.nvfp4.format import global_scale_of
from tensorrt_llm_ext.quantization.tensors import (
    Fp8Tensor,
    Nvfp4Tensor,
    Weight,
    finite_amax,
    quantize_fp8,
    quantize_nvfp4,
)

# Last components of the names of modules below one parent.
SIBLINGS: tuple[tuple[str, ...], ...] = (
    ("q_a_proj", "kv_a_proj_with_mqa"),
    ("q_proj", "kv_a_proj_with_mqa"),
    ("gate_proj", "up_proj"),
)


def sibling_groups(modules: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Returns the groups of modules that engines fuse, in the order of `modules`.

    Args:
        modules: Canonical module names, for instance `layers.0.self_attn.q_a_proj`.
    """
    known = set(modules)
    groups = []
    for module in modules:
        parent, _, last = module.rpartition(".")
        for family in SIBLINGS:
            names = tuple(f"{parent}.{name}" if parent else name for name in family)
            if last == family[0] and known.issuperset(names):
                groups.append(names)
    return tuple(groups)


def larger(scales: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    """Returns the largest of several scalar scales; None when any is missing."""
    present = [scale for scale in scales if scale is not None]
    return torch.stack(present).amax() if len(present) == len(scales) else None


def quantize_siblings(
    weights: Mapping[str, torch.Tensor], *, input_scale: torch.Tensor | None = None
) -> dict[str, Nvfp4Tensor]:
    """Quantizes weights under one global scale: that of all their rows together.

    Args:
        weights: By name, each [rows, in_features] float with the same in_features.
        input_scale: [] float32: the scale of the activations that all of them read.

    Raises:
        ShapeError: If a weight cannot be stored in NVFP4.
        CheckpointError: If a weight holds NaN or an infinity.
    """
    amax = torch.stack([finite_amax(weight, name).float() for name, weight in weights.items()])
    scale = global_scale_of(amax.amax())
    return {
        name: quantize_nvfp4(weight, name=name, global_scale=scale, input_scale=input_scale)
        for name, weight in weights.items()
    }


def share_nvfp4_scales(parts: Sequence[Nvfp4Tensor]) -> tuple[Nvfp4Tensor, ...]:
    """Gives all parts the same global scale and the same input scale.

    Parts whose global scale is already the largest keep every bit; the others are dequantized and
    quantized again, which costs precision once. `input_scale` becomes the largest, so that nothing
    clips that did not clip before; it becomes None when a part has none.

    Raises:
        ShapeError: If the parts have different in_features.
    """
    _check_same_input(parts)
    scale = torch.stack([part.global_scale for part in parts]).amax()
    input_scale = larger([part.input_scale for part in parts])
    shared = []
    for part in parts:
        if not torch.equal(part.global_scale, scale):
            dense = part.dequantize(torch.float32)
            part = quantize_nvfp4(dense, global_scale=scale)
        shared.append(part.with_input_scale(input_scale))
    return tuple(shared)


def share_fp8_scales(parts: Sequence[Fp8Tensor]) -> tuple[Fp8Tensor, ...]:
    """Does for FP8 what `share_nvfp4_scales` does for NVFP4."""
    _check_same_input(parts)
    scale = torch.stack([part.scale for part in parts]).amax()
    input_scale = larger([part.input_scale for part in parts])
    shared = []
    for part in parts:
        if not torch.equal(part.scale, scale):
            part = quantize_fp8(part.dequantize(torch.float32), scale=scale)
        shared.append(part.with_input_scale(input_scale))
    return tuple(shared)


def share_scales(weights: Sequence[Weight]) -> tuple[Weight, ...]:
    """Gives neighbours in the same quantized format the same scales; float weights stay.

    This is what every mode of a fused layer runs on, so that all give the numbers of a host that
    fuses it.

    Args:
        weights: The parts of one fused layer, in order.

    Raises:
        ShapeError: If the parts have different in_features.
    """
    shared: list[Weight] = []
    for _, group in itertools.groupby(weights, key=type):
        run = list(group)
        nvfp4 = [weight for weight in run if isinstance(weight, Nvfp4Tensor)]
        fp8 = [weight for weight in run if isinstance(weight, Fp8Tensor)]
        if len(run) == 1 or not (nvfp4 or fp8):
            shared.extend(run)
        else:
            shared.extend(share_nvfp4_scales(nvfp4) if nvfp4 else share_fp8_scales(fp8))
    return tuple(shared)


def _check_same_input(parts: Sequence[Nvfp4Tensor] | Sequence[Fp8Tensor]) -> None:
    widths = [part.shape[1] for part in parts]
    if len(set(widths)) != 1:
        raise ShapeError(
            f"Siblings have in_features {widths}, expected one width: layers share scales because "
            "they read the same input."
        )
