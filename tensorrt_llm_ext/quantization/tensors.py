# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Weights in the two formats that this package runs: NVFP4 and per-tensor FP8."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

import torch

from tensorrt_llm_ext.errors import CheckpointError, ShapeError
from tensorrt_llm_ext.ops.nvfp4 import nvfp4_dequantize, nvfp4_quantize
from tensorrt_llm_ext.ops.nvfp4.format import BLOCK_SIZE, E4M3_MAX, global_scale_of

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
FP8 = torch.float8_e4m3fn


@dataclass(frozen=True, kw_only=True, eq=False)
class Nvfp4Tensor:
    """A weight in ModelOpt's NVFP4.

    Attributes:
        data: [out_features, in_features / 2] uint8, two e2m1 codes per byte (`weight`).
        block_scale: [out_features, in_features / 16] float8_e4m3fn (`weight_scale`).
        global_scale: [] float32 (`weight_scale_2`).
        input_scale: [] float32, the global scale of the activations; None in a W4A16 checkpoint.
    """

    data: torch.Tensor
    block_scale: torch.Tensor
    global_scale: torch.Tensor
    input_scale: torch.Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """(out_features, in_features)."""
        return self.data.shape[0], 2 * self.data.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes of all stored tensors: 0.5625 per weight and at most eight more."""
        return sum(tensor.nbytes for tensor in self.tensors("").values())

    def dequantize(self, dtype: torch.dtype) -> torch.Tensor:
        """Returns the weight, [out_features, in_features] `dtype`."""
        return nvfp4_dequantize(self.data, self.block_scale, self.global_scale, dtype)

    def rows(self, begin: int, end: int) -> Nvfp4Tensor:
        """Returns a range of rows, over the same memory."""
        return replace(self, data=self.data[begin:end], block_scale=self.block_scale[begin:end])

    def to(self, device: torch.device) -> Nvfp4Tensor:
        """Returns the same weight on a device."""
        return Nvfp4Tensor(
            data=self.data.to(device),
            block_scale=self.block_scale.to(device),
            global_scale=self.global_scale.to(device),
            input_scale=None if self.input_scale is None else self.input_scale.to(device),
        )

    def with_input_scale(self, input_scale: torch.Tensor | None) -> Nvfp4Tensor:
        """Returns the same weight with another scale of its activations."""
        return replace(self, input_scale=input_scale)

    def tensors(self, name: str) -> dict[str, torch.Tensor]:
        """Returns the tensors of module `name` under the names that ModelOpt stores them by."""
        stored = {
            f"{name}.weight": self.data,
            f"{name}.weight_scale": self.block_scale,
            f"{name}.weight_scale_2": self.global_scale,
        }
        return stored if self.input_scale is None else _with_input(stored, name, self.input_scale)


@dataclass(frozen=True, kw_only=True, eq=False)
class Fp8Tensor:
    """A weight in FP8 with one scale.

    Attributes:
        data: [out_features, in_features] float8_e4m3fn (`weight`).
        scale: [] float32 (`weight_scale`).
        input_scale: [] float32, the static scale of the activations; None in a W8A16 checkpoint.
    """

    data: torch.Tensor
    scale: torch.Tensor
    input_scale: torch.Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """(out_features, in_features)."""
        return self.data.shape[0], self.data.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes of all stored tensors: one per weight and at most eight more."""
        return sum(tensor.nbytes for tensor in self.tensors("").values())

    def dequantize(self, dtype: torch.dtype) -> torch.Tensor:
        """Returns the weight, [out_features, in_features] `dtype`: a float32 product, rounded."""
        return (self.data.float() * self.scale).to(dtype)

    def rows(self, begin: int, end: int) -> Fp8Tensor:
        """Returns a range of rows, over the same memory."""
        return replace(self, data=self.data[begin:end])

    def to(self, device: torch.device) -> Fp8Tensor:
        """Returns the same weight on a device."""
        return Fp8Tensor(
            data=self.data.to(device),
            scale=self.scale.to(device),
            input_scale=None if self.input_scale is None else self.input_scale.to(device),
        )

    def with_input_scale(self, input_scale: torch.Tensor | None) -> Fp8Tensor:
        """Returns the same weight with another scale of its activations."""
        return replace(self, input_scale=input_scale)

    def tensors(self, name: str) -> dict[str, torch.Tensor]:
        """Returns the tensors of module `name` under the names that ModelOpt stores them by."""
        stored = {f"{name}.weight": self.data, f"{name}.weight_scale": self.scale}
        return stored if self.input_scale is None else _with_input(stored, name, self.input_scale)


QuantTensor: TypeAlias = Nvfp4Tensor | Fp8Tensor
Weight: TypeAlias = torch.Tensor | Nvfp4Tensor | Fp8Tensor


def _with_input(
    stored: dict[str, torch.Tensor], name: str, input_scale: torch.Tensor
) -> dict[str, torch.Tensor]:
    return stored | {f"{name}.input_scale": input_scale}


def quantize_nvfp4(
    weight: torch.Tensor,
    *,
    name: str = "weight",
    global_scale: torch.Tensor | None = None,
    input_scale: torch.Tensor | None = None,
) -> Nvfp4Tensor:
    """Quantizes a weight as ModelOpt's `NVFP4QTensor` does, bit for bit.

    Args:
        weight: [out_features, in_features], float; in_features a multiple of 16.
        name: What errors call the weight.
        global_scale: [] float32, at least that of `weight`, for siblings that share one; that of
            `weight` when None.
        input_scale: [] float32, kept as it is.

    Raises:
        ShapeError: If the shape or dtype cannot be stored in NVFP4.
        CheckpointError: If the weight holds NaN or an infinity.
    """
    amax = finite_amax(weight, name)
    if weight.shape[1] % BLOCK_SIZE:
        raise ShapeError(
            f"{name} has shape {list(weight.shape)}, expected in_features to be a multiple of "
            f"{BLOCK_SIZE}, because {BLOCK_SIZE} values along a row share a scale. Leave this "
            "module unquantized, or give it FP8."
        )
    if global_scale is None:
        global_scale = global_scale_of(amax)
    data, block_scale = nvfp4_quantize(weight, global_scale)
    return Nvfp4Tensor(
        data=data, block_scale=block_scale, global_scale=global_scale, input_scale=input_scale
    )


def quantize_fp8(
    weight: torch.Tensor,
    *,
    name: str = "weight",
    scale: torch.Tensor | None = None,
    input_scale: torch.Tensor | None = None,
) -> Fp8Tensor:
    """Quantizes a weight to FP8 with the scale `amax / 448`, as ModelOpt's exporter does.

    Args:
        weight: [out_features, in_features], float.
        name: What errors call the weight.
        scale: [] float32, at least that of `weight`, for siblings that share one; that of `weight`
            when None.
        input_scale: [] float32, kept as it is.

    Raises:
        ShapeError: If the weight is not a float matrix.
        CheckpointError: If the weight holds NaN or an infinity.
    """
    amax = finite_amax(weight, name)
    if scale is None:
        scale = fp8_scale_of(amax)
    # The quotient is rounded to the weight's dtype before it becomes FP8, as in ModelOpt.
    data = (weight / scale).clamp_(-E4M3_MAX, E4M3_MAX).to(FP8)
    return Fp8Tensor(data=data, scale=scale, input_scale=input_scale)


def fp8_scale_of(amax: torch.Tensor) -> torch.Tensor:
    """Returns `amax / 448` in float32, and 1 where that is zero."""
    scale = amax.float() / E4M3_MAX
    return torch.where(scale == 0, 1.0, scale)


def finite_amax(weight: torch.Tensor, name: str) -> torch.Tensor:
    """Returns the largest magnitude of a weight, [] in its dtype.

    Raises:
        ShapeError: If the weight is not a float matrix with at least one element.
        CheckpointError: If it holds NaN or an infinity; the message names the first row.
    """
    if weight.dim() != 2 or not weight.numel() or weight.dtype not in FLOATS:
        raise ShapeError(
            f"{name} is {weight.dtype} {list(weight.shape)}, expected a float matrix "
            "[out_features, in_features]. Quantize stacked experts one by one."
        )
    low, high = torch.aminmax(weight)  # both are NaN when any element is
    amax = torch.maximum(-low, high)
    if not bool(torch.isfinite(amax)):
        row = int((~torch.isfinite(weight).all(dim=1)).nonzero()[0])
        raise CheckpointError(
            f"{name} cannot be quantized: it holds NaN or infinity, first in row {row}. The "
            "checkpoint is damaged, or training diverged; take an earlier one."
        )
    return amax
