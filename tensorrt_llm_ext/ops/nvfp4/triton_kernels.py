# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Launches the Triton kernels of NVFP4."""

from __future__ import annotations

import functools
from typing import Any

import torch

from tensorrt_llm_ext import _triton
from tensorrt_llm_ext._triton import INTERPRETING
from tensorrt_llm_ext.devices import probe
from tensorrt_llm_ext.ops.compiling import ARCHITECTURES, CompileCase
from tensorrt_llm_ext.ops.nvfp4.format import BLOCK_SIZE
from tensorrt_llm_ext.ops.nvfp4.triton_nvfp4 import (
    linear_kernel,
    quantize_kernel,
    scaled_kernel,
    sum_kernel,
)
from tensorrt_llm_ext.ops.registry import Priority, register_kernel

_PRIORITY = _triton.priority(Priority.PERFORMANT)
_HALVES = (torch.float16, torch.bfloat16)
# More rows are better served by unpacking the weight once and multiplying it as bf16: unpacking
# writes and reads two bytes per weight, which so many rows pay for.
_MAX_ROWS = 256
_FEW_ROWS = 16
_FP4_SINCE = 100
_INTERPRETED_PROCESSORS = 4


def _supports_quantize(x: torch.Tensor, *_: Any, **__: Any) -> str | None:
    return _triton.reason_against(x)


@register_kernel("nvfp4_quantize", "triton", _PRIORITY, supports=_supports_quantize)
def nvfp4_quantize_triton(
    x: torch.Tensor, global_scale: torch.Tensor, *, activation: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """One launch over blocks of 16."""
    rows, columns = x.shape
    data = torch.empty(rows, columns // 2, dtype=torch.uint8, device=x.device)
    scale = torch.empty(rows, columns // BLOCK_SIZE, dtype=torch.uint8, device=x.device)
    blocks = scale.numel()
    if blocks:
        x = x if x.stride(1) == 1 else x.contiguous()
        size = 128
        quantize_kernel[(-(-blocks // size),)](
            x,
            global_scale,
            data,
            scale,
            blocks,
            x.stride(0),
            BLOCKS_PER_ROW=columns // BLOCK_SIZE,
            IS_ACTIVATION=activation,
            BLOCK=size,
            INTERPRET=INTERPRETING,
            num_warps=4,
        )
    return data, scale.view(torch.float8_e4m3fn)


def _supports_linear(
    x: torch.Tensor,
    data: torch.Tensor,
    block_scale: torch.Tensor,
    global_scale: torch.Tensor,
    input_scale: torch.Tensor | None = None,
    **_: Any,
) -> str | None:
    reason = _triton.reason_against(x)
    if reason is not None:
        return reason
    if x.dtype not in _HALVES and not (INTERPRETING and x.dtype == torch.float32):
        return f"float16 and bfloat16 are supported, got {x.dtype}"
    if input_scale is not None:
        if not INTERPRETING and (probe(x.device).sm or 0) < _FP4_SINCE:
            return "W4A4 needs FP4 tensor cores (compute capability 10.0)"
        return None
    if x.shape[0] > _MAX_ROWS:
        return f"{x.shape[0]} rows; over {_MAX_ROWS} the weight is better unpacked once"
    return None


@register_kernel("nvfp4_linear", "triton", _PRIORITY, supports=_supports_linear)
def nvfp4_linear_triton(
    x: torch.Tensor,
    data: torch.Tensor,
    block_scale: torch.Tensor,
    global_scale: torch.Tensor,
    input_scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """W4A16 in tiles of 16 or 64 rows, W4A4 in FP4 tensor cores."""
    rows, columns = x.shape[0], data.shape[0]
    out = x.new_empty(rows, columns)
    if not rows:
        return out
    data, block_scale = data.contiguous(), block_scale.contiguous()
    if input_scale is not None:
        return _scaled(x, data, block_scale, global_scale, input_scale, out)
    x = x if x.stride(1) == 1 else x.contiguous()
    tile = _tile(rows)
    size = x.shape[1]
    grid = (-(-columns // tile["BLOCK_N"]), -(-rows // tile["BLOCK_M"]))
    splits, split_size = _splits(grid[0] * grid[1], size, tile["BLOCK_K"], _processors(x.device))
    to = out if splits == 1 else x.new_empty(splits, rows, columns, dtype=torch.float32)
    linear_kernel[(grid[0], grid[1], splits)](
        x,
        data,
        block_scale,
        global_scale,
        to,
        rows,
        columns,
        x.stride(0),
        SIZE=size,
        SPLIT_SIZE=split_size,
        INTERPRET=INTERPRETING,
        **tile,
    )
    if splits > 1:
        block = 1024
        sum_kernel[(-(-out.numel() // block),)](
            to, out, out.numel(), SPLITS=splits, BLOCK=block, INTERPRET=INTERPRETING
        )
    return out


def _tile(rows: int) -> dict[str, int]:
    if rows <= _FEW_ROWS:
        return {"BLOCK_M": 16, "BLOCK_N": 32, "BLOCK_K": 256, "num_warps": 4, "num_stages": 3}
    return {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 128, "num_warps": 4, "num_stages": 3}


@functools.cache
def _processors(device: torch.device) -> int:
    if device.type != "cuda":
        return _INTERPRETED_PROCESSORS
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count


def _splits(programs: int, size: int, block_k: int, processors: int) -> tuple[int, int]:
    """How many programs share a row of the weight, and how many columns each takes.

    Two programs per processor hide each other's loads; a split is at least four tiles.
    """
    tiles = -(-size // block_k)
    wanted = max(1, min(8, 2 * processors // programs, tiles // 4))
    per_split = -(-tiles // wanted)
    return -(-tiles // per_split), per_split * block_k


def _scaled(
    x: torch.Tensor,
    data: torch.Tensor,
    block_scale: torch.Tensor,
    global_scale: torch.Tensor,
    input_scale: torch.Tensor,
    out: torch.Tensor,
) -> torch.Tensor:
    x_data, x_scale = nvfp4_quantize_triton(x, input_scale, activation=True)
    rows, columns = out.shape
    scaled_kernel[(-(-columns // 128), -(-rows // 128))](
        x_data,
        x_scale,
        data,
        block_scale,
        input_scale,
        global_scale,
        out,
        rows,
        columns,
        SIZE=x.shape[1],
        INTERPRET=INTERPRETING,
        **_SCALED_TILE,
    )
    return out


_SCALED_TILE = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 256, "num_warps": 4, "num_stages": 3}
_PACKED = {"data": "*u8", "block_scale": "*fp8e4nv", "global_scale": "*fp32"}


def _case(name: str, kernel: Any, types: dict[str, str], sizes: dict[str, Any]) -> CompileCase:
    sizes = dict(sizes)
    warps, stages = sizes.pop("num_warps", 4), sizes.pop("num_stages", 3)
    constexprs = {n: v for n, v in sizes.items() if n in kernel.arg_names}
    constexprs["INTERPRET"] = False
    return CompileCase(
        name=name,
        kernel=kernel,
        signature={n: types.get(n, "i32") for n in kernel.arg_names if n not in constexprs},
        constexprs=constexprs,
        unaligned=tuple(n for n in ("num_rows", "num_blocks", "size") if n in kernel.arg_names),
        num_warps=warps,
        num_stages=stages,
        architectures=("sm_100a", "sm_103a") if kernel is scaled_kernel else tuple(ARCHITECTURES),
    )


_LINEAR = {"x": "*bf16", "out": "*bf16", **_PACKED}
COMPILE_CASES = (
    *(
        _case(
            f"nvfp4_quantize/{name}",
            quantize_kernel,
            {"x": "*bf16", **_PACKED, "block_scale": "*u8"},
            {"BLOCKS_PER_ROW": 448, "IS_ACTIVATION": name == "activation", "BLOCK": 128},
        )
        for name in ("weight", "activation")
    ),
    *(
        _case(
            f"nvfp4_linear/rows{rows}",
            linear_kernel,
            _LINEAR,
            {"SIZE": 14336, "SPLIT_SIZE": 14336, **_tile(rows)},
        )
        for rows in (16, 64)
    ),
    _case(
        "nvfp4_linear/rows16_split",
        linear_kernel,
        {**_LINEAR, "out": "*fp32"},
        {"SIZE": 14336, "SPLIT_SIZE": 3584, **_tile(16)},
    ),
    _case(
        "nvfp4_linear/sum_4",
        sum_kernel,
        {"parts": "*fp32", "out": "*bf16"},
        {"SPLITS": 4, "BLOCK": 1024},
    ),
    _case(
        "nvfp4_linear/w4a4",
        scaled_kernel,
        {**_LINEAR, "x_data": "*u8", "x_scale": "*fp8e4nv", "input_scale": "*fp32"},
        {"SIZE": 14336, **_SCALED_TILE},
    ),
)
