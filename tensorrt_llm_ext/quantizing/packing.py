# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The built-in quantizer: weights and measured inputs to the tensors that ModelOpt would export."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from tensorrt_llm_ext.configs.quant import QuantConfig
from tensorrt_llm_ext.errors import ConfigError
from tensorrt_llm_ext.ops.nvfp4.format import BLOCK_SIZE, global_scale_of
from tensorrt_llm_ext.quantization.policy import check_format
from tensorrt_llm_ext.quantization.siblings import quantize_siblings, sibling_groups
from tensorrt_llm_ext.quantization.tensors import (
    Fp8Tensor,
    Nvfp4Tensor,
    QuantTensor,
    finite_amax,
    fp8_scale_of,
    quantize_fp8,
)
from tensorrt_llm_ext.quantizing.calibration import InputStatistics
from tensorrt_llm_ext.quantizing.recipes import ModulePlan


def pack_modules(
    weights: Mapping[str, torch.Tensor],
    plans: Mapping[str, ModulePlan],
    statistics: InputStatistics | None,
) -> dict[str, QuantTensor]:
    """Quantizes what a recipe asks for, siblings under common scales.

    Args:
        weights: [out_features, in_features] float by canonical module name.
        plans: What the recipe makes of each.
        statistics: Measured inputs; None where no module's inputs must be known.

    Returns:
        By module name; modules that stay float are not in it.

    Raises:
        ConfigError: If a recipe treats siblings unequally (V23), or inputs were not measured.
        CheckpointError: If a module must not be quantized (V24), or holds NaN or infinity.
        ShapeError: If a weight's width is no multiple of 16.
    """
    wanted = [name for name, plan in plans.items() if plan.weight != "float" and name in weights]
    packed: dict[str, QuantTensor] = {}
    for group in groups_of(wanted, plans):
        for name in group:
            check_format(name, plans[name].weight)
        scale = _input_scale(group, plans, statistics)
        parts = {name: weights[name] for name in group}
        packed |= quantize_group(parts, plans[group[0]].weight, scale)
    return packed


def quantize_group(
    weights: Mapping[str, torch.Tensor], kind: str, input_scale: torch.Tensor | None
) -> dict[str, QuantTensor]:
    """Quantizes weights that share their scales.

    Args:
        weights: By module name.
        kind: "nvfp4" or "fp8".
        input_scale: [] float32, or None.
    """
    if kind == "nvfp4":
        return dict(quantize_siblings(weights, input_scale=input_scale))
    largest = [fp8_scale_of(finite_amax(weight, name)) for name, weight in weights.items()]
    scale = torch.stack(largest).amax()
    return {
        name: quantize_fp8(weight, name=name, scale=scale, input_scale=input_scale)
        for name, weight in weights.items()
    }


def groups_of(
    wanted: Sequence[str], plans: Mapping[str, ModulePlan]
) -> tuple[tuple[str, ...], ...]:
    """Splits modules into those that share scales; a module without siblings is its own group.

    Raises:
        ConfigError: If siblings are not treated alike (V23).
    """
    siblings = sibling_groups(tuple(plans))
    for group in siblings:
        kinds = {(plans[name].weight, plans[name].inputs) for name in group}
        if len(kinds) > 1:
            raise ConfigError(
                f"The recipe treats {' and '.join(group)} differently ({sorted(kinds)}), but "
                "engines run them as one product. Quantize both alike, or neither.",
                check="V23",
            )
    owner = {name: group for group in siblings for name in group}
    return tuple(dict.fromkeys(owner.get(name, (name,)) for name in wanted))


def _input_scale(
    group: Sequence[str], plans: Mapping[str, ModulePlan], statistics: InputStatistics | None
) -> torch.Tensor | None:
    plan = plans[group[0]]
    if plan.inputs == "float":
        return None
    amax = plan.constant_amax
    if amax is None:
        if statistics is None:
            raise ConfigError(
                f"The recipe measures the inputs of {group[0]}, but there are no texts. Give "
                "--prompts-file or --states, or choose a recipe with input_scale1 or w4a16."
            )
        amax = max(statistics.amax(name) for name in group)
    if not 0.0 < amax < float("inf"):
        raise ConfigError(
            f"The largest input of {group[0]} over all texts is {amax}, so it has no scale. The "
            "states are empty or damaged; capture them again."
        )
    return scale_of_amax(torch.tensor(amax), plan.inputs)


def scale_of_amax(amax: torch.Tensor, kind: str) -> torch.Tensor:
    """Returns the [] float32 scale of a tensor whose largest magnitude is `amax`."""
    return global_scale_of(amax.float()) if kind == "nvfp4" else fp8_scale_of(amax)


def quant_config_of(
    packed: Mapping[str, QuantTensor], kv_cache_algo: str | None, source: str
) -> QuantConfig:
    """Describes packed modules as ModelOpt would.

    Args:
        packed: By canonical module name.
        kv_cache_algo: "FP8" or None.
        source: Where the metadata are said to come from.
    """
    algos = {name: algo_of(tensor) for name, tensor in packed.items()}
    kinds = sorted(set(algos.values()))
    if not kinds:
        return QuantConfig(kv_cache_algo=kv_cache_algo, source=source)
    mixed = len(kinds) > 1
    return QuantConfig(
        method="modelopt",
        algo="MIXED_PRECISION" if mixed else kinds[0],
        group_size=BLOCK_SIZE if any("NVFP4" in kind for kind in kinds) else None,
        kv_cache_algo=kv_cache_algo,
        layers=algos if mixed else {},
        source=source,
    )


def algo_of(tensor: QuantTensor) -> str:
    """ModelOpt's name of a module's format."""
    if isinstance(tensor, Nvfp4Tensor):
        return "W4A16_NVFP4" if tensor.input_scale is None else "NVFP4"
    return "FP8"


def stored_tensors(
    floats: Mapping[str, torch.Tensor], packed: Mapping[str, QuantTensor]
) -> dict[str, torch.Tensor]:
    """Replaces float weights by packed ones and their scales, under canonical tensor names."""
    replaced = {f"{name}.weight" for name in packed}
    stored = {name: tensor for name, tensor in floats.items() if name not in replaced}
    for name, quantized in packed.items():
        # Siblings hold the very same scale; in a file each has its own.
        stored |= {
            key: tensor.clone() if tensor.dim() == 0 else tensor
            for key, tensor in quantized.tensors(name).items()
        }
    return stored


def packed_from(
    tensors: Mapping[str, torch.Tensor], modules: Iterable[str]
) -> dict[str, QuantTensor]:
    """Collects the packed modules among tensors of canonical names; float modules are left out."""
    packed: dict[str, QuantTensor] = {}
    for name in modules:
        weight, scale = tensors.get(f"{name}.weight"), tensors.get(f"{name}.weight_scale")
        if weight is None or scale is None:
            continue
        second = tensors.get(f"{name}.weight_scale_2")
        inputs = _scalar(tensors.get(f"{name}.input_scale"))
        if second is not None:
            packed[name] = Nvfp4Tensor(
                data=weight, block_scale=scale, global_scale=second.reshape(()), input_scale=inputs
            )
        else:
            packed[name] = Fp8Tensor(data=weight, scale=scale.reshape(()), input_scale=inputs)
    return packed


def _scalar(scale: torch.Tensor | None) -> torch.Tensor | None:
    return None if scale is None else scale.reshape(())
