# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

r"""The meaning of NVFP4, as NVIDIA ModelOpt writes it and as Blackwell multiplies it.

With the global scale g, a block b of 16 values along the last dimension, and all arithmetic in
float32, a weight is stored as

    s_b = e4m3(clip(max_i |x_i| / (6 g), 2^-9, 448)),    1 for a quotient of zero
    c_i = e2m1(x_i / (s_b g))            nearest of 0, .5, 1, 1.5, 2, 3, 4, 6; ties: the even code
    x_i ~ value(c_i) * (s_b g)

An activation is quantized at run time with `g = input_scale`, in the order of NVIDIA's kernels,
which multiply by reciprocals (theirs are approximate, so ties may fall otherwise on a GPU):

    s_b = e4m3(min((1 / g) * (max_i |x_i| * (1 / 6)), 448))
    c_i = e2m1(x_i * (1 / (s_b * (1 / (1 / g))))),    0 when s_b is 0

    nvfp4_linear(x) = x W^T,                       W dequantized to the dtype of x    (W4A16)
    nvfp4_linear(x) = (g_x g_w) * (u_x u_w^T),     u = value(c) * s                   (W4A4)

Byte i of a row of `data` holds code 2i in its low and code 2i+1 in its high half.
"""

from __future__ import annotations

import torch

from tensorrt_llm_ext.ops.nvfp4.format import (
    BLOCK_SIZE,
    E2M1_MAX,
    E2M1_VALUES,
    E4M3_MAX,
    E4M3_TINY,
)
from tensorrt_llm_ext.ops.registry import Priority, register_kernel


def _code(value: float) -> int:
    """Returns the code nearest to a float32 number; among two equally near ones the even one."""
    if value != value:  # 0 / 0, where a scale underflowed
        return 7
    magnitude = min(abs(value), E2M1_MAX)
    code = min(range(8), key=lambda c: (abs(E2M1_VALUES[c] - magnitude), c % 2))
    return code + 8 if value < 0 else code


def _weight_block(
    block: torch.Tensor, global_scale: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the e4m3 scale of 16 float32 numbers and their quotients."""
    scale = block.abs().max() / (E2M1_MAX * global_scale)
    if scale == 0:
        scale = torch.ones_like(scale)
    scale = scale.clamp(E4M3_TINY, E4M3_MAX).to(torch.float8_e4m3fn)
    return scale, block / (scale.float() * global_scale)


def _activation_block(
    block: torch.Tensor, global_scale: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Does for an activation what `_weight_block` does for a weight."""
    inverse = 1.0 / global_scale
    scale = inverse * (block.abs().max() * (1.0 / E2M1_MAX))
    scale = scale.clamp(max=E4M3_MAX).to(torch.float8_e4m3fn)
    if scale.float() == 0:
        return scale, torch.zeros_like(block)
    return scale, block * (1.0 / (scale.float() * (1.0 / inverse)))


@register_kernel("nvfp4_quantize", "reference", Priority.REFERENCE)
def nvfp4_quantize_reference(
    x: torch.Tensor, global_scale: torch.Tensor, *, activation: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Loops over rows, blocks and values."""
    quantized = _activation_block if activation else _weight_block
    rows, columns = x.shape
    data = torch.zeros(rows, columns // 2, dtype=torch.uint8)
    scales = torch.zeros(rows, columns // BLOCK_SIZE, dtype=torch.float32)
    for i in range(rows):
        for b in range(columns // BLOCK_SIZE):
            block = x[i, b * BLOCK_SIZE : (b + 1) * BLOCK_SIZE].float()
            scale, quotients = quantized(block, global_scale)
            scales[i, b] = scale.float()
            codes = [_code(quotient) for quotient in quotients.tolist()]
            for j in range(0, BLOCK_SIZE, 2):
                data[i, (b * BLOCK_SIZE + j) // 2] = codes[j] | codes[j + 1] << 4
    return data.to(x.device), scales.to(torch.float8_e4m3fn).to(x.device)


def _values(data: torch.Tensor) -> torch.Tensor:
    """Returns the values of the codes of [rows, columns / 2] bytes, [rows, columns] float32."""
    out = torch.zeros(data.shape[0], 2 * data.shape[1])
    for i, row in enumerate(data.tolist()):
        for j, byte in enumerate(row):
            for half, code in enumerate((byte & 15, byte >> 4)):
                value = E2M1_VALUES[code & 7]
                out[i, 2 * j + half] = -value if code & 8 else value
    return out.to(data.device)


def _per_value(block_scale: torch.Tensor) -> torch.Tensor:
    return block_scale.float().repeat_interleave(BLOCK_SIZE, dim=1)


@register_kernel("nvfp4_dequantize", "reference", Priority.REFERENCE)
def nvfp4_dequantize_reference(
    data: torch.Tensor, block_scale: torch.Tensor, global_scale: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """Looks up each code, in float32."""
    return (_values(data) * (_per_value(block_scale) * global_scale)).to(dtype)


@register_kernel("nvfp4_fake_quantize", "reference", Priority.REFERENCE)
def nvfp4_fake_quantize_reference(
    x: torch.Tensor, global_scale: torch.Tensor, *, activation: bool = False
) -> torch.Tensor:
    """Packs and unpacks."""
    packed = nvfp4_quantize_reference(x, global_scale, activation=activation)
    return nvfp4_dequantize_reference(*packed, global_scale, x.dtype)


@register_kernel("nvfp4_linear", "reference", Priority.REFERENCE)
def nvfp4_linear_reference(
    x: torch.Tensor,
    data: torch.Tensor,
    block_scale: torch.Tensor,
    global_scale: torch.Tensor,
    input_scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """Sums in float64 over whole dequantized matrices."""
    if input_scale is None:
        weight = nvfp4_dequantize_reference(data, block_scale, global_scale, x.dtype)
        return (x.double() @ weight.double().T).to(x.dtype)
    x_data, x_scale = nvfp4_quantize_reference(x, input_scale, activation=True)
    x_units = _values(x_data) * _per_value(x_scale)
    units = _values(data) * _per_value(block_scale)
    alpha = (input_scale * global_scale).double()
    return (alpha * (x_units.double() @ units.double().T)).to(x.dtype)
