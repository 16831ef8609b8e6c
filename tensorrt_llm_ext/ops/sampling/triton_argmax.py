# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Launches the Triton kernels of the vocabulary head."""

from __future__ import annotations

from typing import Any

import torch

from tensorrt_llm_ext import _triton
from tensorrt_llm_ext._triton import INTERPRETING
from tensorrt_llm_ext.ops.compiling import CompileCase
from tensorrt_llm_ext.ops.registry import Priority, register_kernel
from tensorrt_llm_ext.ops.sampling.triton_head import head_kernel, winner_kernel

_PRIORITY = _triton.priority(Priority.PERFORMANT)
_HALVES = (torch.float16, torch.bfloat16)
# More rows are a matrix product like any other, which cuBLAS does better; their logits fit.
_MAX_ROWS = 256


def _reason(hidden: torch.Tensor) -> str | None:
    reason = _triton.reason_against(hidden)
    if reason is not None:
        return reason
    if hidden.dtype not in _HALVES and not (INTERPRETING and hidden.dtype == torch.float32):
        return f"float16 and bfloat16 are supported, got {hidden.dtype}"
    if hidden.shape[0] > _MAX_ROWS:
        return f"{hidden.shape[0]} rows, at most {_MAX_ROWS} are supported"
    return None


def _supports(hidden: torch.Tensor, *_: Any, **__: Any) -> str | None:
    return _reason(hidden)


def _tile(rows: int, is_packed: bool) -> dict[str, int]:
    if rows <= 16:
        depth = 256 if is_packed else 128
        return {"BLOCK_M": 16, "BLOCK_N": 64, "BLOCK_K": depth, "num_warps": 4, "num_stages": 3}
    if is_packed:
        return {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 128, "num_warps": 4, "num_stages": 3}
    return {"BLOCK_M": 64, "BLOCK_N": 128, "BLOCK_K": 64, "num_warps": 8, "num_stages": 3}


def _run(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    d2t: torch.Tensor | None,
    block_scale: torch.Tensor | None,
    global_scale: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rows, vocab_size = hidden.shape[0], weight.shape[0]
    values = hidden.new_empty(rows, dtype=torch.float32)
    draft_ids = hidden.new_empty(rows, dtype=torch.int64)
    target_ids = draft_ids if d2t is None else torch.empty_like(draft_ids)
    if not rows:
        return values, draft_ids, target_ids
    hidden = hidden if hidden.stride(1) == 1 else hidden.contiguous()
    weight = weight.contiguous()
    is_packed = block_scale is not None
    tile = _tile(rows, is_packed)
    tiles = -(-vocab_size // tile["BLOCK_N"])
    maxima = values.new_empty(rows, tiles)
    best = values.new_empty(rows, tiles, dtype=torch.int32)
    head_kernel[(tiles, -(-rows // tile["BLOCK_M"]))](
        hidden,
        weight,
        weight if block_scale is None else block_scale.contiguous(),
        weight if global_scale is None else global_scale,
        maxima,
        best,
        rows,
        vocab_size,
        hidden.stride(0),
        SIZE=hidden.shape[1],
        IS_PACKED=is_packed,
        INTERPRET=INTERPRETING,
        **tile,
    )
    winner_kernel[(rows,)](
        maxima,
        best,
        draft_ids if d2t is None else d2t.contiguous(),
        values,
        draft_ids,
        target_ids,
        tiles,
        vocab_size,
        BLOCK=1024,
        HAS_D2T=d2t is not None,
    )
    return values, draft_ids, target_ids


@register_kernel("lm_head_argmax", "triton", _PRIORITY, supports=_supports)
def lm_head_argmax_triton(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    d2t: torch.Tensor | None,
    block_scale: torch.Tensor | None = None,
    global_scale: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """A tile's best logit never leaves its program but as one number and its id."""
    _, draft_ids, target_ids = _run(hidden, weight, d2t, block_scale, global_scale)
    return draft_ids, target_ids


@register_kernel("lm_head_max", "triton", _PRIORITY, supports=_supports)
def lm_head_max_triton(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    block_scale: torch.Tensor | None = None,
    global_scale: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same for one shard."""
    values, ids, _ = _run(hidden, weight, None, block_scale, global_scale)
    return values, ids


def _case(name: str, rows: int, is_packed: bool) -> CompileCase:
    tile = _tile(rows, is_packed)
    warps, stages = tile.pop("num_warps"), tile.pop("num_stages")
    packed = {"weight": "*u8", "block_scale": "*fp8e4nv", "global_scale": "*fp32"}
    plain = dict.fromkeys(packed, "*bf16")
    return CompileCase(
        name=name,
        kernel=head_kernel,
        signature={
            "hidden": "*bf16",
            **(packed if is_packed else plain),
            "maxima": "*fp32",
            "best": "*i32",
            **dict.fromkeys(("num_rows", "vocab_size", "row_stride"), "i32"),
        },
        constexprs={"SIZE": 7168, **tile, "IS_PACKED": is_packed, "INTERPRET": False},
        unaligned=("num_rows",),
        num_warps=warps,
        num_stages=stages,
    )


COMPILE_CASES = (
    _case("lm_head_argmax/rows16_bf16", 16, False),
    _case("lm_head_argmax/rows64_bf16", 64, False),
    _case("lm_head_argmax/rows16_nvfp4", 16, True),
    _case("lm_head_argmax/rows64_nvfp4", 64, True),
    CompileCase(
        name="lm_head_argmax/winner",
        kernel=winner_kernel,
        signature={
            **dict.fromkeys(("maxima", "values"), "*fp32"),
            "best": "*i32",
            **dict.fromkeys(("d2t", "draft_ids", "target_ids"), "*i64"),
            **dict.fromkeys(("num_tiles", "vocab_size"), "i32"),
        },
        constexprs={"BLOCK": 1024, "HAS_D2T": True},
        unaligned=("num_tiles",),
    ),
)
