# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""NVFP4 (e2m1 codes, e4m3 scale per 16, one float32 scale) in ModelOpt's exact format.

The ops are also `torch.ops.trtllm_ext.nvfp4_quantize`, `nvfp4_dequantize`, `nvfp4_fake_quantize`
and `nvfp4_linear`. None of them reads data on the host, so none of them refuses infinities: a
tensor from outside goes through `quantization.tensors`, which does.
"""

from __future__ import annotations

import torch

from tensorrt_llm_ext import _triton
from tensorrt_llm_ext.errors import ShapeError
from tensorrt_llm_ext.ops.checks import check_float, check_shape
from tensorrt_llm_ext.ops.nvfp4 import library, reference, torch_kernels  # noqa: F401  (they register)
from tensorrt_llm_ext.ops.nvfp4.format import BLOCK_SIZE
from tensorrt_llm_ext.ops.registry import choose, chosen

if _triton.AVAILABLE:
    from tensorrt_llm_ext.ops.nvfp4 import triton_kernels  # noqa: F401

__all__ = ["nvfp4_dequantize", "nvfp4_fake_quantize", "nvfp4_linear", "nvfp4_quantize"]


def nvfp4_quantize(
    x: torch.Tensor,
    global_scale: torch.Tensor,
    *,
    activation: bool = False,
    kernel: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantizes rows to NVFP4 under a given global scale.

    A weight's blocks have a scale of at least 2^-9, and 1 when they are all zero (ModelOpt's
    export). An activation's blocks may have a scale of zero (the kernels of Blackwell).

    Args:
        x: [rows, columns] float, columns a multiple of 16; float64 is rounded to float32 first.
        global_scale: [] float32, positive: `weight_scale_2`, or `input_scale` of an activation.
        activation: Whether `x` is an activation.
        kernel: Name of a registered kernel; the best supported one when None.

    Returns:
        data [rows, columns / 2] uint8, and block_scale [rows, columns / 16] float8_e4m3fn.

    Raises:
        ShapeError: If a shape or dtype is wrong.
        KernelNotFoundError: If no registered kernel takes these inputs.
    """
    key = (
        "nvfp4_quantize",
        kernel,
        x.dtype,
        x.device,
        x.shape,
        global_scale.dtype,
        global_scale.shape,
        activation,
    )
    run = chosen(key)
    if run is None:
        _check_rows("nvfp4_quantize", x, global_scale)
        run = choose(key, x, global_scale, activation=activation)
    result: tuple[torch.Tensor, torch.Tensor] = run(x, global_scale, activation=activation)
    return result


def nvfp4_dequantize(
    data: torch.Tensor,
    block_scale: torch.Tensor,
    global_scale: torch.Tensor,
    dtype: torch.dtype,
    *,
    kernel: str | None = None,
) -> torch.Tensor:
    """Returns the numbers behind the codes: a float32 product, rounded once to `dtype`.

    Args:
        data: [rows, columns / 2] uint8.
        block_scale: [rows, columns / 16] float8_e4m3fn.
        global_scale: [] float32.
        dtype: A floating-point dtype.
        kernel: Name of a registered kernel; the best supported one when None.

    Returns:
        [rows, columns], `dtype`.

    Raises:
        ShapeError: If a shape or dtype is wrong.
        KernelNotFoundError: If no registered kernel takes these inputs.
    """
    key = (
        "nvfp4_dequantize",
        kernel,
        data.dtype,
        data.device,
        data.shape,
        block_scale.dtype,
        block_scale.shape,
        global_scale.dtype,
        global_scale.shape,
        dtype,
    )
    run = chosen(key)
    if run is None:
        _check_packed("nvfp4_dequantize", data, block_scale, global_scale)
        run = choose(key, data, block_scale, global_scale, dtype)
    out: torch.Tensor = run(data, block_scale, global_scale, dtype)
    return out


def nvfp4_fake_quantize(
    x: torch.Tensor,
    global_scale: torch.Tensor,
    *,
    activation: bool = False,
    kernel: str | None = None,
) -> torch.Tensor:
    """Returns what is left of `x` after `nvfp4_quantize` and `nvfp4_dequantize`.

    For emulation and for training through quantization; no gradient flows, so training adds the
    straight-through estimator around it.

    Args:
        x: [rows, columns] float, columns a multiple of 16.
        global_scale: [] float32, positive.
        activation: Whether `x` is an activation.
        kernel: Name of a registered kernel; the best supported one when None.

    Returns:
        [rows, columns], dtype of `x`: a float32 product, rounded once.

    Raises:
        ShapeError: If a shape or dtype is wrong.
        KernelNotFoundError: If no registered kernel takes these inputs.
    """
    key = (
        "nvfp4_fake_quantize",
        kernel,
        x.dtype,
        x.device,
        x.shape,
        global_scale.dtype,
        global_scale.shape,
        activation,
    )
    run = chosen(key)
    if run is None:
        _check_rows("nvfp4_fake_quantize", x, global_scale)
        run = choose(key, x, global_scale, activation=activation)
    out: torch.Tensor = run(x, global_scale, activation=activation)
    return out


def nvfp4_linear(
    x: torch.Tensor,
    data: torch.Tensor,
    block_scale: torch.Tensor,
    global_scale: torch.Tensor,
    input_scale: torch.Tensor | None = None,
    *,
    kernel: str | None = None,
) -> torch.Tensor:
    """Multiplies rows by a packed weight, `x W^T`.

    Without `input_scale` the weight is dequantized to the dtype of `x` (W4A16). With it, `x` is
    quantized first, and the product is what FP4 tensor cores compute, but for the order of their
    float32 sums (W4A4).

    Args:
        x: [rows, in_features] float.
        data: [out_features, in_features / 2] uint8.
        block_scale: [out_features, in_features / 16] float8_e4m3fn.
        global_scale: [] float32.
        input_scale: [] float32: the checkpoint's `input_scale`, for W4A4; None for W4A16.
        kernel: Name of a registered kernel; the best supported one when None.

    Returns:
        [rows, out_features], dtype of `x`.

    Raises:
        ShapeError: If a shape or dtype is wrong.
        KernelNotFoundError: If no registered kernel takes these inputs.
    """
    key = (
        "nvfp4_linear",
        kernel,
        x.dtype,
        x.device,
        x.shape,
        data.dtype,
        data.shape,
        block_scale.dtype,
        block_scale.shape,
        global_scale.dtype,
        global_scale.shape,
        None if input_scale is None else (input_scale.dtype, input_scale.shape),
    )
    run = chosen(key)
    if run is None:
        op = "nvfp4_linear"
        check_float(op, "x", x)
        _check_packed(op, data, block_scale, global_scale)
        check_shape(op, "x", x, (None, 2 * data.shape[1]), "[rows, in_features]")
        if input_scale is not None:
            _check_scalar(op, "input_scale", input_scale)
        run = choose(key, x, data, block_scale, global_scale, input_scale)
    out: torch.Tensor = run(x, data, block_scale, global_scale, input_scale)
    return out


library.register(
    quantize=nvfp4_quantize,
    dequantize=nvfp4_dequantize,
    fake_quantize=nvfp4_fake_quantize,
    linear=nvfp4_linear,
)


def _check_rows(op: str, x: torch.Tensor, global_scale: torch.Tensor) -> None:
    check_float(op, "x", x)
    check_shape(op, "x", x, (None, None), "[rows, columns]")
    _check_columns(op, "x", x.shape[1])
    _check_scalar(op, "global_scale", global_scale)


def _check_columns(op: str, name: str, columns: int) -> None:
    if columns % BLOCK_SIZE:
        raise ShapeError(
            f"{op}: {name} has {columns} columns, expected a multiple of {BLOCK_SIZE}, because "
            f"{BLOCK_SIZE} values along a row share a scale. Leave this module unquantized."
        )


def _check_scalar(op: str, name: str, scale: torch.Tensor) -> None:
    check_shape(op, name, scale, (), "one number")
    if scale.dtype != torch.float32:
        raise ShapeError(
            f"{op}: {name} has dtype {scale.dtype}, expected torch.float32, as checkpoints store "
            "it: a rounded scale changes every weight."
        )


def _check_packed(
    op: str, data: torch.Tensor, block_scale: torch.Tensor, global_scale: torch.Tensor
) -> None:
    check_shape(op, "data", data, (None, None), "[out_features, in_features / 2]")
    if data.dtype != torch.uint8:
        raise ShapeError(
            f"{op}: data has dtype {data.dtype}, expected torch.uint8: two e2m1 codes per byte."
        )
    rows, columns = data.shape[0], 2 * data.shape[1]
    _check_columns(op, "the weight", columns)
    check_shape(
        op,
        "block_scale",
        block_scale,
        (rows, columns // BLOCK_SIZE),
        "[out_features, in_features / 16], in the order of the weight (not swizzled)",
    )
    if block_scale.dtype != torch.float8_e4m3fn:
        raise ShapeError(
            f"{op}: block_scale has dtype {block_scale.dtype}, expected torch.float8_e4m3fn."
        )
    _check_scalar(op, "global_scale", global_scale)
