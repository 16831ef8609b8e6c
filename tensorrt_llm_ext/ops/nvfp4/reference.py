# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

r"""The meaning of NVFP4, as NVIDIA ModelOpt writes it and as Blackwell multiplies it.

With the global scale g, a block b of 16 values along the last dimension, and all arithmetic in
float32, a weight is stored as

    s_b = e4m3(clip(max_i |x_i| / (6 g), 2^-9, 448)),    1 for a quotient of zero
    c_i = e2m1(x_i / (s_b g))            nearest of 0, .5, 1, 1.5, 2, 3, 4, 6; ties: the even code
    x_i ~ value(c_i) * (s_b g)

An activation is quantized at run time with `g = input_scale`. Its scales have no floor: a block
whose scale rounds to zero is a block of zeros, which is what NVIDIA's kernels do.

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


def _block_scale(block: torch.Tensor, global_scale: torch.Tensor, activation: bool) -> torch.Tensor:
    """Returns the e4m3 scale of one block of 16 float32 numbers."""
    scale = block.abs().max() / (E2M1_MAX * global_scale)
    if activation:
        return scale.clamp(max=E4M3_MAX).to(torch.float8_e4m3fn)
    if scale == 0:
        scale = torch.ones_like(scale)
    return scale.clamp(E4M3_TINY, E4M3_MAX).to(torch.float8_e4m3fn)


@register_kernel("nvfp4_quantize", "reference", Priority.REFERENCE)
def nvfp4_quantize_reference(
    x: torch.Tensor, global_scale: torch.Tensor, *, activation: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Loops over rows, blocks and values."""
    rows, columns = x.shape
    data = torch.zeros(rows, columns // 2, dtype=torch.uint8)
    scales = torch.zeros(rows, columns // BLOCK_SIZE, dtype=torch.float32)
    for i in range(rows):
        for b in range(columns // BLOCK_SIZE):
            block = x[i, b * BLOCK_SIZE : (b + 1) * BLOCK_SIZE].float()
            scales[i, b] = _block_scale(block, global_scale, activation).float()
            step = scales[i, b].to(x.device) * global_scale
            is_zero = activation and bool(step == 0)
            quotients = torch.zeros_like(block) if is_zero else block / step
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
