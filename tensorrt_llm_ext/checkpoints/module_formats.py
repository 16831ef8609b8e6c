# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""How each module of a checkpoint is stored, by its tensors and nothing else.

A `weight` of bytes with a scale per 16 values is NVFP4 whatever config.json declares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

Stored = Mapping[str, tuple[str, tuple[int, ...]]]

SCALE_SUFFIXES: Final = (
    "weight_scale",
    "weight_scale_2",
    "weight_scale_inv",
    "input_scale",
    "weight_zero_point",
    "weight_packed",
    "weight_shape",
    "weight_g_idx",
    "weight_global_scale",
    "input_global_scale",
    "pre_quant_scale",
    "k_scale",
    "v_scale",
    "q_scale",
    "output_scale",
    "qweight",
    "qzeros",
    "scales",
    "g_idx",
)
_FLOATS: Final = ("F64", "F32", "F16", "BF16")
_FP8: Final = ("F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ")
_BYTES: Final = ("U8", "I8", "F4")
_NVFP4_BLOCK: Final = 16
_FP8_BLOCK: Final = 128


@dataclass(frozen=True, kw_only=True, slots=True)
class ModuleFormat:
    """How one module's weight is stored.

    Attributes:
        kind: "float", "nvfp4", "fp8" (one scale, or one per output row), "fp8_block", "int4" or
            "unknown".
        dtype: dtype name of the stored weight.
        shape: Shape of the weight in values, [out_features, in_features] for a linear module.
        group_size: Values along K that share a scale; None when there is one per row or tensor.
        scales: Names of the tensors beside the weight, without the module's name.
        problems: What is inconsistent about them, in words; empty when they fit.
    """

    kind: str
    dtype: str
    shape: tuple[int, ...]
    group_size: int | None = None
    scales: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def module_formats(tensors: Stored) -> dict[str, ModuleFormat]:
    """Decides, for every module with a weight, how it is stored.

    Args:
        tensors: dtype name and shape by canonical name.

    Returns:
        The format by module name (`layers.0.mlp.up_proj`, `fc`, `norm`), problems included;
        modules that hold scales but no weight are of kind "unknown".
    """
    modules: dict[str, dict[str, tuple[str, tuple[int, ...]]]] = {}
    for name, entry in tensors.items():
        module, dot, kind = name.rpartition(".")
        if dot and (kind in ("weight", "bias") or kind in SCALE_SUFFIXES):
            modules.setdefault(module, {})[kind] = entry
    return {
        module: _module_format(parts)
        for module, parts in modules.items()
        if parts.keys() - {"bias", "k_scale", "v_scale", "q_scale"}
    }


def logical_shapes(tensors: Stored) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every tensor as if nothing were quantized.

    Packed weights count in values and are called `X.weight`; scales are left out.

    Args:
        tensors: dtype name and shape by canonical name.
    """
    shapes = {
        name: tuple(shape)
        for name, (_, shape) in tensors.items()
        if name.rpartition(".")[2] not in SCALE_SUFFIXES
    }
    for module, form in module_formats(tensors).items():
        if form.kind != "float" and form.shape:
            shapes[f"{module}.weight"] = form.shape
    return shapes


def _module_format(parts: Mapping[str, tuple[str, tuple[int, ...]]]) -> ModuleFormat:
    scales = tuple(sorted(kind for kind in parts if kind in SCALE_SUFFIXES))
    packed = parts.get("weight_packed")
    if packed is not None:
        dtype, shape = packed
        if dtype in _BYTES:  # compressed-tensors' NVFP4
            return _nvfp4(parts, packed, scales, packed_name="weight_packed")
        return ModuleFormat(kind="int4", dtype=dtype, shape=_times(shape, 8), scales=scales)
    if "qweight" in parts:
        dtype, shape = parts["qweight"]
        return ModuleFormat(kind="int4", dtype=dtype, shape=(), scales=scales)
    weight = parts.get("weight")
    if weight is None:
        problem = f"has {', '.join(scales)} but no weight"
        return ModuleFormat(kind="unknown", dtype="", shape=(), scales=scales, problems=(problem,))
    dtype, shape = weight
    if dtype in _FLOATS:
        return _float(dtype, shape, scales)
    if dtype in _FP8:
        return _fp8(parts, weight, scales)
    if dtype in _BYTES and "weight_scale" in parts:
        return _nvfp4(parts, weight, scales)
    problem = f"is stored as {dtype} without weight_scale"
    return ModuleFormat(
        kind="unknown", dtype=dtype, shape=shape, scales=scales, problems=(problem,)
    )


def _times(shape: tuple[int, ...], factor: int) -> tuple[int, ...]:
    return (*shape[:-1], shape[-1] * factor) if shape else shape


def _float(dtype: str, shape: tuple[int, ...], scales: tuple[str, ...]) -> ModuleFormat:
    weight_scales = [name for name in scales if name.startswith("weight_")]
    problems = (
        (f"is {dtype}, but has {', '.join(weight_scales)}: a float weight has no scale",)
        if weight_scales
        else ()
    )
    return ModuleFormat(kind="float", dtype=dtype, shape=shape, scales=scales, problems=problems)


def _nvfp4(
    parts: Mapping[str, tuple[str, tuple[int, ...]]],
    weight: tuple[str, tuple[int, ...]],
    scales: tuple[str, ...],
    packed_name: str = "weight",
) -> ModuleFormat:
    dtype, shape = weight
    logical = _times(shape, 1 if dtype == "F4" else 2)
    problems = []
    scale = parts.get("weight_scale")
    group = _NVFP4_BLOCK
    if scale is None:
        problems.append(f"has a packed {packed_name} but no weight_scale")
    elif len(logical) != 2 or len(scale[1]) != 2 or scale[1][0] != logical[0] or not scale[1][1]:
        problems.append(
            f"has a weight_scale of shape {list(scale[1])} for a weight of {list(logical)} values; "
            f"expected [out, in/{_NVFP4_BLOCK}], not swizzled"
        )
    else:
        group = logical[1] // scale[1][1]
        if logical[1] % scale[1][1] or group not in (_NVFP4_BLOCK, 32):
            problems.append(
                f"has {scale[1][1]} scales for {logical[1]} values per row, expected one per "
                f"{_NVFP4_BLOCK}"
            )
        if scale[0] not in _FP8[:1] and scale[0] not in ("U8", "F8_E8M0"):
            problems.append(f"has a weight_scale of dtype {scale[0]}, expected F8_E4M3")
    if packed_name == "weight" and "weight_scale_2" not in parts:
        problems.append("has no weight_scale_2, the scale of the whole tensor")
    kind = "unknown" if scale is not None and scale[0] == "F8_E8M0" else "nvfp4"
    return ModuleFormat(
        kind=kind,
        dtype=dtype,
        shape=logical,
        group_size=group,
        scales=scales,
        problems=tuple(problems),
    )


def _fp8(
    parts: Mapping[str, tuple[str, tuple[int, ...]]],
    weight: tuple[str, tuple[int, ...]],
    scales: tuple[str, ...],
) -> ModuleFormat:
    dtype, shape = weight
    scale = parts.get("weight_scale_inv") or parts.get("weight_scale")
    if scale is None:
        problem = "is FP8, but has neither weight_scale nor weight_scale_inv"
        return ModuleFormat(
            kind="fp8", dtype=dtype, shape=shape, scales=scales, problems=(problem,)
        )
    rows = shape[0] if shape else 0
    if scale[0] in ("U8", "F8_E8M0"):  # MXFP8: a power of two per 32 values
        return ModuleFormat(kind="unknown", dtype=dtype, shape=shape, group_size=32, scales=scales)
    if scale[1] in ((), (1,), (rows,), (rows, 1)):
        return ModuleFormat(kind="fp8", dtype=dtype, shape=shape, scales=scales)
    blocks = tuple(-(-size // _FP8_BLOCK) for size in shape)
    problems: tuple[str, ...] = ()
    if scale[1] != blocks:
        problems = (
            f"has scales of shape {list(scale[1])} for a weight of {list(shape)}; expected one, "
            f"one per row, or one per {_FP8_BLOCK} x {_FP8_BLOCK} block, {list(blocks)}",
        )
    return ModuleFormat(
        kind="fp8_block",
        dtype=dtype,
        shape=shape,
        group_size=_FP8_BLOCK,
        scales=scales,
        problems=problems,
    )
