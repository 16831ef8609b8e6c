# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Takes the weights of modules in whatever format a checkpoint stores them in."""

from __future__ import annotations

from typing import Protocol

import torch

from tensorrt_llm_ext.errors import CheckpointError, ShapeError, UnsupportedError
from tensorrt_llm_ext.ops.nvfp4.format import BLOCK_SIZE
from tensorrt_llm_ext.quantization.policy import Format, check_format
from tensorrt_llm_ext.quantization.tensors import FLOATS, FP8, Fp8Tensor, Nvfp4Tensor, Weight

# Tensors that only a format which is not supported here has, and the name of that format.
_FOREIGN: tuple[tuple[str, str], ...] = (
    ("pre_quant_scale", "NVFP4 or INT4 with AWQ (activations are scaled per channel first)"),
    ("weight_packed", "compressed-tensors packed INT4 or FP4"),
    ("weight_scale_inv", "FP8 in blocks (DeepSeek)"),
    ("qweight", "GPTQ or AWQ INT4"),
    ("weight_zero_point", "integer quantization with zero points"),
)

_COPIED_AT_ONCE = 1 << 22  # weights: a few megabytes, which stay in a cache


class TensorSource(Protocol):
    """What is needed of `models.interfaces.WeightSource`.

    Quantized tensors must come in the dtypes that they are stored in: a float32 scale that was
    rounded on the way is another scale.
    """

    def has(self, name: str) -> bool:
        """Whether a tensor of this name exists."""
        ...

    def take(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """Returns the tensor and marks it consumed; CheckpointError when missing or misshapen."""
        ...


def stored_format(source: TensorSource, module: str) -> Format:
    """Returns the format of a module's weight, judged by which tensors exist.

    Args:
        source: Where the tensors come from.
        module: Canonical name, for instance `layers.0.mlp.down_proj`.

    Raises:
        UnsupportedError: If the weight is in a format that this package does not run; the message
            names it.
    """
    for suffix, label in _FOREIGN:
        if source.has(f"{module}.{suffix}"):
            raise UnsupportedError(
                f"{module} has a tensor {suffix}, so it is quantized as {label}. Supported are "
                "NVFP4 (ModelOpt) and FP8 with one scale per tensor. Load the unquantized "
                "checkpoint, and quantize it with `trtllm-ext quantize` if it is a draft."
            )
    if source.has(f"{module}.weight_scale_2"):
        return "nvfp4"
    return "fp8" if source.has(f"{module}.weight_scale") else "float"


def take_weight(source: TensorSource, module: str, shape: tuple[int, int]) -> Weight:
    """Takes a module's weight with all its scales.

    Args:
        source: Where the tensors come from.
        module: Canonical name.
        shape: (out_features, in_features).

    Returns:
        A float matrix as the source hands it out, an `Nvfp4Tensor` or an `Fp8Tensor`.

    Raises:
        CheckpointError: If a tensor is missing, misshapen or damaged, or if the module must not be
            quantized (check "V24").
        UnsupportedError: See `stored_format`.
    """
    kind = stored_format(source, module)
    check_format(module, kind)
    if kind == "float":
        return _take_float(source, f"{module}.weight", shape)
    return (
        _take_nvfp4(source, module, shape) if kind == "nvfp4" else _take_fp8(source, module, shape)
    )


def take_float(source: TensorSource, module: str, shape: tuple[int, int]) -> torch.Tensor:
    """Takes a weight that must be in floating point, for instance `kv_b_proj`.

    Raises:
        CheckpointError: If the weight is missing, misshapen or quantized; the message says why it
            must not be quantized (check "V24").
        UnsupportedError: See `stored_format`.
    """
    weight = take_weight(source, module, shape)
    if not isinstance(weight, torch.Tensor):
        kind = "nvfp4" if isinstance(weight, Nvfp4Tensor) else "fp8"
        raise CheckpointError(
            f"{module} is stored in {kind}, expected floating point. Quantize the checkpoint again "
            "without it.",
            check="V24",
        )
    return weight


def take_into(destination: torch.Tensor, source: TensorSource, module: str) -> None:
    """Takes a weight of any format into a float matrix, dequantizing it when it must.

    Args:
        destination: [out_features, in_features], float: a parameter or a view into one.
        source: Where the tensors come from.
        module: Canonical name of the module (without `.weight`).

    Raises:
        CheckpointError: See `take_weight`.
        UnsupportedError: See `stored_format`.
    """
    rows, columns = destination.shape
    copy_dense(destination, take_weight(source, module, (rows, columns)))


def copy_dense(destination: torch.Tensor, weight: Weight) -> None:
    """Copies a weight into a float matrix; a packed one is never whole beside it.

    Args:
        destination: [out_features, in_features], float: a parameter or a view into one.
        weight: The same shape.
    """
    step = max(1, _COPIED_AT_ONCE // weight.shape[1])
    with torch.no_grad():
        for begin in range(0, weight.shape[0], step):
            rows = slice(begin, begin + step)
            if isinstance(weight, torch.Tensor):  # faster than at once where layouts differ
                destination[rows].copy_(weight[rows])
            else:
                part = weight.rows(begin, begin + step)
                destination[rows].copy_(part.dequantize(destination.dtype))


def dense(weight: Weight, dtype: torch.dtype) -> torch.Tensor:
    """Returns a weight as a float matrix; a float one in the dtype that it has."""
    return weight if isinstance(weight, torch.Tensor) else weight.dequantize(dtype)


def _take_float(source: TensorSource, name: str, shape: tuple[int, int]) -> torch.Tensor:
    weight = source.take(name, shape)
    if weight.dtype not in FLOATS:
        raise CheckpointError(
            f"{name} has dtype {weight.dtype} and no scale beside it, expected floating point, or "
            "a tensor weight_scale: the checkpoint is incomplete. Download or export it again."
        )
    return weight


def _take_nvfp4(source: TensorSource, module: str, shape: tuple[int, int]) -> Nvfp4Tensor:
    rows, columns = shape
    if columns % BLOCK_SIZE:
        raise ShapeError(
            f"{module} is stored in NVFP4, but its {columns} inputs are no multiple of "
            f"{BLOCK_SIZE}. Config and tensors belong to different models."
        )
    data = source.take(f"{module}.weight", (rows, columns // 2))
    if data.dtype != torch.uint8:
        raise CheckpointError(
            f"{module}.weight has dtype {data.dtype}, expected torch.uint8 (two e2m1 codes per "
            f"byte), because {module}.weight_scale_2 says that it is NVFP4."
        )
    scales = source.take(f"{module}.weight_scale", (rows, columns // BLOCK_SIZE))
    return Nvfp4Tensor(
        data=data,
        block_scale=_e4m3_scales(scales, f"{module}.weight_scale"),
        global_scale=_take_scale(source, f"{module}.weight_scale_2"),
        input_scale=_take_input_scale(source, module),
    )


def _take_fp8(source: TensorSource, module: str, shape: tuple[int, int]) -> Fp8Tensor:
    data = source.take(f"{module}.weight", shape)
    if data.dtype != FP8:
        raise CheckpointError(
            f"{module}.weight has dtype {data.dtype}, expected {FP8}, because "
            f"{module}.weight_scale says that it is FP8."
        )
    scale = _take_scale(source, f"{module}.weight_scale")
    return Fp8Tensor(data=data, scale=scale, input_scale=_take_input_scale(source, module))


def _take_input_scale(source: TensorSource, module: str) -> torch.Tensor | None:
    name = f"{module}.input_scale"
    return _take_scale(source, name) if source.has(name) else None


def _take_scale(source: TensorSource, name: str) -> torch.Tensor:
    scale = source.take(name, ())
    if scale.dtype != torch.float32:
        raise CheckpointError(
            f"{name} has dtype {scale.dtype}, expected torch.float32, as exporters store it. A "
            "rounded scale changes every weight: read it in the dtype of the file."
        )
    value = scale.item()
    if not 0.0 < value < float("inf"):
        raise CheckpointError(
            f"{name} is {value}, expected a positive number. Calibration saw no data for this "
            "module, or the export went wrong: quantize the checkpoint again."
        )
    return scale


def _e4m3_scales(scales: torch.Tensor, name: str) -> torch.Tensor:
    if scales.dtype != FP8:
        raise CheckpointError(
            f"{name} has dtype {scales.dtype}, expected {FP8}, one per {BLOCK_SIZE} weights. Read "
            "it in the dtype of the file; other block formats are not supported."
        )
    is_bad = scales.contiguous().view(torch.uint8) >= 0x7F  # NaN, or a sign
    if bool(is_bad.any()):
        row = int(is_bad.any(dim=1).nonzero()[0])
        raise CheckpointError(
            f"{name} holds NaN or a negative scale, first in row {row}: the weight was all zero or "
            "not finite when it was quantized. Quantize the checkpoint again."
        )
    return scales
