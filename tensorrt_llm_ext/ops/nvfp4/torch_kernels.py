# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""NVFP4 in plain torch: no constants to copy to a device, no table, no read by the host.

Both directions work by tiles of rows, so that a matrix of a billion weights needs a few megabytes
beside its input and its result.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.nn import functional

from tensorrt_llm_ext.ops.nvfp4.format import BLOCK_SIZE, E2M1_MAX, E4M3_MAX, E4M3_TINY
from tensorrt_llm_ext.ops.registry import Priority, register_kernel

# Weights per tile: 1 MiB in float32, so that what one step of a tile writes the next one finds in
# a core's cache. On a GPU a tile must fill the device instead.
_CPU_TILE = 1 << 18
_CUDA_TILE = 1 << 24


def _tiles(rows: int, columns: int, device: torch.device, *, at_least: int = 1) -> Iterator[slice]:
    """Yields ranges of rows, at least so many when there are so many rows."""
    budget = _CPU_TILE if device.type == "cpu" else _CUDA_TILE
    step = max(1, min(budget // max(columns, 1), -(-rows // at_least)))
    for begin in range(0, rows, step):
        yield slice(begin, min(begin + step, rows))


def _codes(quotients: torch.Tensor) -> torch.Tensor:
    """Returns the e2m1 code of each float32 number as uint8; NaN becomes 7, as in ModelOpt."""
    a = quotients.abs()
    # Counting the thresholds that a number does not pass sends NaN to the largest code. The
    # comparison decides ties: `<=` keeps one at the lower code, `<` at the upper, the even of both.
    below = (a <= 0.25).to(torch.uint8)
    below += a < 0.75
    below += a <= 1.25
    below += a < 1.75
    below += a <= 2.5
    below += a < 3.5
    below += a <= 5.0
    return (7 - below) | ((quotients < 0).to(torch.uint8) << 3)


def _quotients(
    x: torch.Tensor, global_scale: torch.Tensor, activation: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns [rows, blocks, 16] float32 numbers to be rounded, and the scales of the blocks."""
    blocks = x.float().reshape(x.shape[0], x.shape[1] // BLOCK_SIZE, BLOCK_SIZE)
    amax = blocks.abs().amax(dim=-1)
    if activation:
        inverse = global_scale.reciprocal()
        scale = amax.mul_(1.0 / E2M1_MAX).mul_(inverse).clamp_max_(E4M3_MAX)
        block_scale = scale.to(torch.float8_e4m3fn)
        scale = block_scale.float()
        factor = (scale * inverse.reciprocal()).reciprocal_().masked_fill_(scale == 0, 0.0)
        return blocks * factor.unsqueeze(-1), block_scale
    scale = amax / (global_scale * E2M1_MAX)
    scale = torch.where(scale == 0, 1.0, scale).clamp_(E4M3_TINY, E4M3_MAX)
    block_scale = scale.to(torch.float8_e4m3fn)
    return blocks / (block_scale.float() * global_scale).unsqueeze(-1), block_scale


def _quantize_tile(
    x: torch.Tensor, global_scale: torch.Tensor, activation: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    quotients, block_scale = _quotients(x, global_scale, activation)
    codes = _codes(quotients).flatten(-2)
    return codes[..., 0::2] | (codes[..., 1::2] << 4), block_scale


@register_kernel("nvfp4_quantize", "torch", Priority.PORTABLE)
def nvfp4_quantize_torch(
    x: torch.Tensor, global_scale: torch.Tensor, *, activation: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Comparisons with the seven thresholds, by tiles of rows."""
    rows, columns = x.shape
    if x.numel() <= _CPU_TILE:
        return _quantize_tile(x, global_scale, activation)
    data = torch.empty(rows, columns // 2, dtype=torch.uint8, device=x.device)
    scales = torch.empty(rows, columns // BLOCK_SIZE, dtype=torch.uint8, device=x.device)
    block_scale = scales.view(torch.float8_e4m3fn)
    for tile in _tiles(rows, columns, x.device):
        data[tile], block_scale[tile] = _quantize_tile(x[tile], global_scale, activation)
    return data, block_scale


def _rounded(quotients: torch.Tensor) -> torch.Tensor:
    """Rounds float32 numbers to the values of codes, without the codes.

    Values are multiples of 0.5 up to 2, of 1 up to 4 and of 2 up to 6. Halves between two multiples
    go to the even one, which has the even code.
    """
    a = quotients.abs().clamp_max_(E2M1_MAX)
    spacing = torch.where(a < 2.0, 0.5, torch.where(a < 4.0, 1.0, 2.0))
    return a.div_(spacing).round_().mul_(spacing).copysign_(quotients)


@register_kernel("nvfp4_fake_quantize", "torch", Priority.PORTABLE)
def nvfp4_fake_quantize_torch(
    x: torch.Tensor, global_scale: torch.Tensor, *, activation: bool = False
) -> torch.Tensor:
    """Rounds in place of packing and unpacking: a third of the calls."""
    quotients, block_scale = _quotients(x, global_scale, activation)
    step = (block_scale.float() * global_scale).unsqueeze(-1)
    rounded = _rounded(quotients).mul_(step)
    if not activation:  # 0 / 0, where a scale underflowed
        rounded = rounded.masked_fill_(step == 0, 0.0)
    return rounded.view(x.shape).to(x.dtype)


def _values(data: torch.Tensor) -> torch.Tensor:
    """Returns the values of [..., columns / 2] bytes, [..., columns] float32.

    The three low bits of a code are exponent and mantissa; moved to the same fields of a float16,
    they are the value times 2^-14. One word holds both halves of a byte: a product with two powers
    of two copies the byte to two places (bits 9 and 21 for magnitudes, 12 and 24 for signs), and a
    mask keeps one code's bits of each. The lower half comes first on little-endian machines.
    """
    words = data.to(torch.int32)
    bits = (words * 0x0020_0200).bitwise_and_(0x0E00_0E00)
    bits |= words.mul_(0x0100_1000).bitwise_and_(0x8000_8000 - (1 << 32))
    return bits.view(torch.float16).float().mul_(2.0**14)


def _scaled(data: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Multiplies each block of values by its number of `scale`, [rows, columns] float32."""
    blocks = _values(data).view(*scale.shape, BLOCK_SIZE)
    return blocks.mul_(scale.unsqueeze(-1)).flatten(-2)


def _dequantize_tile(
    data: torch.Tensor, block_scale: torch.Tensor, global_scale: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    return _scaled(data, block_scale.float() * global_scale).to(dtype)


@register_kernel("nvfp4_dequantize", "torch", Priority.PORTABLE)
def nvfp4_dequantize_torch(
    data: torch.Tensor, block_scale: torch.Tensor, global_scale: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """Shifts the bits of each code into a float16, by tiles of rows."""
    rows, columns = data.shape[0], 2 * data.shape[1]
    if rows * columns <= _CPU_TILE:
        return _dequantize_tile(data, block_scale, global_scale, dtype)
    out = torch.empty(rows, columns, dtype=dtype, device=data.device)
    for tile in _tiles(rows, columns, data.device):
        out[tile] = _dequantize_tile(data[tile], block_scale[tile], global_scale, dtype)
    return out


@register_kernel("nvfp4_linear", "torch", Priority.PORTABLE)
def nvfp4_linear_torch(
    x: torch.Tensor,
    data: torch.Tensor,
    block_scale: torch.Tensor,
    global_scale: torch.Tensor,
    input_scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """One product per tile of dequantized rows; the whole matrix never exists."""
    if input_scale is not None:
        return _linear_w4a4(x, data, block_scale, global_scale, input_scale)
    out = x.new_empty(x.shape[0], data.shape[0])
    for tile in _tiles(data.shape[0], 2 * data.shape[1], x.device, at_least=2):
        weight = _dequantize_tile(data[tile], block_scale[tile], global_scale, x.dtype)
        out[:, tile] = functional.linear(x, weight)
    return out


def _linear_w4a4(
    x: torch.Tensor,
    data: torch.Tensor,
    block_scale: torch.Tensor,
    global_scale: torch.Tensor,
    input_scale: torch.Tensor,
) -> torch.Tensor:
    """Products of values times block scales, which float32 holds exactly; scaled at the end.

    A tensor core adds up the same products in float32, in another order.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    x_data, x_scale = _quantize_tile(x, input_scale, True)
    x_units = _scaled(x_data, x_scale.float()).to(wide)
    alpha = input_scale * global_scale
    out = x.new_empty(x.shape[0], data.shape[0])
    for tile in _tiles(data.shape[0], 2 * data.shape[1], x.device, at_least=2):
        units = _scaled(data[tile], block_scale[tile].float()).to(wide)
        out[:, tile] = functional.linear(x_units, units).mul_(alpha)
    return out
