# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Hostile inputs for NVFP4: ties, zero blocks, both ends of every range, odd counts of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tensorrt_llm_ext.ops.nvfp4 import (
    nvfp4_dequantize,
    nvfp4_fake_quantize,
    nvfp4_linear,
    nvfp4_quantize,
)
from tensorrt_llm_ext.ops.nvfp4.format import BLOCK_SIZE, E2M1_MAX, global_scale_of
from tensorrt_llm_ext.ops.testing import OpCase, Outputs, randn

_MIDPOINTS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
_Rows = Callable[[torch.Generator], torch.Tensor]


def _bits(outputs: Outputs) -> Outputs:
    """Compares e4m3 numbers as bytes: equal bits, not near ones."""
    return {
        name: value.view(torch.uint8) if value.dtype == torch.float8_e4m3fn else value
        for name, value in outputs.items()
    }


def normal(rows: int, columns: int, scale: float = 1.0) -> _Rows:
    """Normal numbers in float64."""

    def make(generator: torch.Generator) -> torch.Tensor:
        return scale * torch.randn(rows, columns, generator=generator, dtype=torch.float64)

    return make


def ties(generator: torch.Generator) -> torch.Tensor:
    """Every midpoint between two codes and its neighbours, at several block scales.

    Each block's largest magnitude is 6 s with s a power of two, so that the block's scale is s
    times a constant and quotients land exactly on the midpoints.
    """
    middle = torch.tensor(_MIDPOINTS, dtype=torch.float32)
    below = torch.nextafter(middle, torch.zeros(7))
    above = torch.nextafter(middle, torch.full((7,), 9.0))
    numbers = torch.cat((middle, below, above, torch.tensor([0.0, -0.0, 5e-8])))
    numbers = torch.cat((numbers, -numbers)).double()
    order = torch.randperm(48, generator=generator)
    numbers = torch.cat((numbers, numbers[:12]))[torch.cat((order, torch.arange(12)))]
    blocks = torch.cat((numbers.view(4, 15), torch.full((4, 1), E2M1_MAX).double()), dim=1)
    scales = torch.tensor([1.0, 2.0**-8, 2.0**3, 448.0]).double()
    return (blocks[:, None] * scales[None, :, None]).flatten(1)


def zero_blocks(generator: torch.Generator) -> torch.Tensor:
    """Rows with zero blocks of both signs beside ordinary ones."""
    x = normal(4, 4 * BLOCK_SIZE)(generator)
    x[:, BLOCK_SIZE : 2 * BLOCK_SIZE] = 0.0
    x[1, :BLOCK_SIZE] = -0.0
    x[2] = 0.0
    return x


def wide_range(generator: torch.Generator) -> torch.Tensor:
    """Blocks from far above to far below what the block scale can follow."""
    x = normal(6, 4 * BLOCK_SIZE)(generator)
    exponents = torch.linspace(4, -12, 24, dtype=torch.float64).view(6, 4)
    return x * (10.0**exponents).repeat_interleave(BLOCK_SIZE, dim=1)


_ROWS: tuple[tuple[str, _Rows], ...] = (
    ("one_row", normal(1, BLOCK_SIZE)),
    ("odd_rows", normal(7, 3 * BLOCK_SIZE)),
    ("ties", ties),
    ("zero_blocks", zero_blocks),
    ("all_zero", lambda _: torch.zeros(3, 2 * BLOCK_SIZE, dtype=torch.float64)),
    ("wide_range", wide_range),
    ("small", normal(3, 2 * BLOCK_SIZE, 1e-4)),
    ("large", normal(3, 2 * BLOCK_SIZE, 1e4)),
    ("no_rows", normal(0, 2 * BLOCK_SIZE)),
)


def _amax(x: torch.Tensor) -> torch.Tensor:
    return x.abs().amax() if x.numel() else x.new_zeros(())


def _quantize(name: str, rows: _Rows, *, activation: bool, shrink: float = 1.0) -> OpCase:
    """`shrink` below 1 makes an activation clip, as one does that calibration never saw."""

    def build(
        generator: torch.Generator, dtype: torch.dtype, device: torch.device
    ) -> dict[str, Any]:
        x = rows(generator).to(device=device, dtype=dtype)
        scale = global_scale_of(_amax(x)) * shrink
        return {"x": x, "global_scale": scale, "activation": activation}

    return OpCase(fn=nvfp4_quantize, name=name, build=build, canonical=_bits)


def _packed(weight: torch.Tensor, device: torch.device) -> dict[str, torch.Tensor]:
    weight = weight.float().to(device)
    scale = global_scale_of(_amax(weight))
    data, block_scale = nvfp4_quantize(weight, scale)
    return {"data": data, "block_scale": block_scale, "global_scale": scale}


def _dequantize(name: str, rows: _Rows) -> OpCase:
    def build(
        generator: torch.Generator, dtype: torch.dtype, device: torch.device
    ) -> dict[str, Any]:
        return {**_packed(rows(generator), device), "dtype": dtype}

    return OpCase(fn=nvfp4_dequantize, name=name, build=build)


def _every_code(generator: torch.Generator) -> dict[str, torch.Tensor]:
    """All 256 bytes, under finite scales of every size."""
    data = torch.arange(256, dtype=torch.uint8).view(8, 32)
    block_scale = torch.randint(0, 0x7F, (8, 4), generator=generator, dtype=torch.uint8)
    return {"data": data, "block_scale": block_scale}


def _dequantize_every_code() -> OpCase:
    def build(
        generator: torch.Generator, dtype: torch.dtype, device: torch.device
    ) -> dict[str, Any]:
        packed = {name: value.to(device) for name, value in _every_code(generator).items()}
        packed["block_scale"] = packed["block_scale"].view(torch.float8_e4m3fn)
        scale = torch.tensor(0.0123, device=device)
        return {**packed, "global_scale": scale, "dtype": dtype}

    return OpCase(fn=nvfp4_dequantize, name="every_byte", build=build)


def _linear(
    name: str, num_tokens: int, out_features: int, in_features: int, *, w4a4: bool
) -> OpCase:
    def build(
        generator: torch.Generator, dtype: torch.dtype, device: torch.device
    ) -> dict[str, Any]:
        x = randn(generator, num_tokens, in_features, dtype=dtype, device=device)
        weight = normal(out_features, in_features, in_features**-0.5)(generator)
        input_scale = global_scale_of(_amax(x)) if w4a4 else None
        return {"x": x, **_packed(weight, device), "input_scale": input_scale}

    return OpCase(fn=nvfp4_linear, name=name, build=build)


QUANTIZE_CASES = (
    *(_quantize(f"weight_{name}", rows, activation=False) for name, rows in _ROWS),
    *(_quantize(f"activation_{name}", rows, activation=True) for name, rows in _ROWS),
    _quantize("activation_clipped", normal(4, 32), activation=True, shrink=0.1),
)
DEQUANTIZE_CASES = (
    *(_dequantize(name, rows) for name, rows in _ROWS),
    _dequantize_every_code(),
)
LINEAR_CASES = tuple(
    _linear(f"{kind}_{name}", *sizes, w4a4=kind == "w4a4")
    for kind in ("w4a16", "w4a4")
    for name, sizes in (
        ("one_token", (1, 24, 64)),
        ("many_tokens", (19, 7, 32)),
        ("one_row", (3, 1, 16)),
        ("no_tokens", (0, 8, 16)),
    )
)
FAKE_QUANTIZE_CASES = tuple(
    OpCase(fn=nvfp4_fake_quantize, name=case.name, build=case.build) for case in QUANTIZE_CASES
)
CASES = QUANTIZE_CASES + DEQUANTIZE_CASES + FAKE_QUANTIZE_CASES + LINEAR_CASES
