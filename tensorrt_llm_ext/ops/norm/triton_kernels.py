# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Launches the Triton norms."""

from __future__ import annotations

from typing import Any

import torch

from tensorrt_llm_ext import _triton
from tensorrt_llm_ext._triton import INTERPRETING
from tensorrt_llm_ext.ops.compiling import CompileCase
from tensorrt_llm_ext.ops.norm.triton_norm import (
    chunk_norm_kernel,
    draft_input_kernel,
    draft_input_nvfp4_kernel,
    pair_norm_kernel,
    rms_norm_kernel,
)
from tensorrt_llm_ext.ops.registry import Priority, register_kernel

_PRIORITY = _triton.priority(Priority.PERFORMANT)
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_MAX_COLUMNS = 32768  # a row stays in the registers of one program


def _reason(tensor: torch.Tensor, columns: int) -> str | None:
    reason = _triton.reason_against(tensor)
    if reason is not None:
        return reason
    if tensor.dtype not in _FLOATS:
        return f"float32, float16 and bfloat16 are supported, got {tensor.dtype}"
    if columns > _MAX_COLUMNS:
        return f"{columns} columns, at most {_MAX_COLUMNS} are supported"
    return None


def _block(columns: int) -> tuple[int, int]:
    """Columns of a program, a power of two, and its warps."""
    block = 1 << max(columns - 1, 1).bit_length()
    return block, 4 if block <= 4096 else 8 if block <= 16384 else 16


def _rows(x: torch.Tensor) -> torch.Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _supports_norm(x: torch.Tensor, *_: Any, **__: Any) -> str | None:
    return _reason(x, x.shape[1])


@register_kernel("rms_norm", "triton", _PRIORITY, supports=_supports_norm)
def rms_norm_triton(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """One program per row."""
    return _norm(x, None, weight, eps)[0]


@register_kernel("add_rms_norm", "triton", _PRIORITY, supports=_supports_norm)
def add_rms_norm_triton(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum is rounded to the stream's dtype once, kept, and normed."""
    return _norm(x, residual, weight, eps)


def _norm(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    rows, size = x.shape
    out = x.new_empty(rows, size)
    total = out if residual is None else x.new_empty(rows, size)
    if not rows:
        return out, total
    x = _rows(x)
    other = x if residual is None else _rows(residual)
    block, warps = _block(size)
    rms_norm_kernel[(rows,)](
        x,
        other,
        weight.contiguous(),
        out,
        total,
        eps,
        x.stride(0),
        other.stride(0),
        SIZE=size,
        BLOCK=block,
        HAS_RESIDUAL=residual is not None,
        INTERPRET=INTERPRETING,
        num_warps=warps,
    )
    return out, total


def _supports_draft_input(
    token_ids: torch.Tensor, embedding: torch.Tensor, *_: Any, **__: Any
) -> str | None:
    if not embedding.is_contiguous():
        return f"embedding must be contiguous, got strides {embedding.stride()}"
    return _reason(embedding, embedding.shape[1])


@register_kernel("draft_input_norm", "triton", _PRIORITY, supports=_supports_draft_input)
def draft_input_norm_triton(
    token_ids: torch.Tensor,
    embedding: torch.Tensor,
    embed_weight: torch.Tensor,
    hidden: torch.Tensor,
    hidden_weight: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    """Two programs per row, one per half."""
    rows, size = token_ids.shape[0], embedding.shape[1]
    out = embedding.new_empty(rows, 2 * size)
    if not rows:
        return out
    hidden = _rows(hidden)
    block, warps = _block(size)
    draft_input_kernel[(rows, 2)](
        token_ids.contiguous(),
        embedding,
        embed_weight.contiguous(),
        hidden,
        hidden_weight.contiguous(),
        out,
        eps,
        hidden.stride(0),
        SIZE=size,
        BLOCK=block,
        INTERPRET=INTERPRETING,
        num_warps=warps,
    )
    return out


def _supports_draft_input_nvfp4(
    token_ids: torch.Tensor, embedding: torch.Tensor, *_: Any, **__: Any
) -> str | None:
    return _supports_draft_input(token_ids, embedding)


@register_kernel(
    "draft_input_norm_nvfp4", "triton", _PRIORITY, supports=_supports_draft_input_nvfp4
)
def draft_input_norm_nvfp4_triton(
    token_ids: torch.Tensor,
    embedding: torch.Tensor,
    embed_weight: torch.Tensor,
    hidden: torch.Tensor,
    hidden_weight: torch.Tensor,
    eps: float,
    input_scale: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Two programs per row, one per half; the normed row is never stored."""
    rows, size = token_ids.shape[0], embedding.shape[1]
    data = torch.empty(rows, size, dtype=torch.uint8, device=embedding.device)
    scale = torch.empty(rows, size // 8, dtype=torch.uint8, device=embedding.device)
    if rows:
        hidden = _rows(hidden)
        block, warps = _block(size)
        draft_input_nvfp4_kernel[(rows, 2)](
            token_ids.contiguous(),
            embedding,
            embed_weight.contiguous(),
            hidden,
            hidden_weight.contiguous(),
            input_scale,
            data,
            scale,
            embedding,
            eps,
            hidden.stride(0),
            SIZE=size,
            BLOCKS=max(block // 16, 1),
            INTERPRET=INTERPRETING,
            num_warps=warps,
        )
    return data, scale.view(torch.float8_e4m3fn)


def _supports_chunks(
    captured: torch.Tensor, weights: torch.Tensor, *_: Any, **__: Any
) -> str | None:
    return _reason(captured, weights.shape[1])


@register_kernel("fc_input_norm", "triton", _PRIORITY, supports=_supports_chunks)
def fc_input_norm_triton(captured: torch.Tensor, weights: torch.Tensor, eps: float) -> torch.Tensor:
    """One program per row and captured state."""
    rows = captured.shape[0]
    chunks, size = weights.shape
    out = captured.new_empty(rows, chunks * size)
    if not rows:
        return out
    captured = _rows(captured)
    block, warps = _block(size)
    chunk_norm_kernel[(rows, chunks)](
        captured,
        weights.contiguous(),
        out,
        eps,
        captured.stride(0),
        CHUNKS=chunks,
        SIZE=size,
        BLOCK=block,
        INTERPRET=INTERPRETING,
        num_warps=warps,
    )
    return out


def _supports_pair(first: torch.Tensor, second: torch.Tensor, *_: Any, **__: Any) -> str | None:
    return _reason(first, max(first.shape[1], second.shape[1]))


@register_kernel("latent_norm_pair", "triton", _PRIORITY, supports=_supports_pair)
def latent_norm_pair_triton(
    first: torch.Tensor,
    second: torch.Tensor,
    first_weight: torch.Tensor,
    second_weight: torch.Tensor,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Two programs per row, one per slice."""
    rows, sizes = first.shape[0], (first.shape[1], second.shape[1])
    outs = first.new_empty(rows, sizes[0]), first.new_empty(rows, sizes[1])
    if not rows:
        return outs
    first, second = _rows(first), _rows(second)
    block, warps = _block(max(sizes))
    pair_norm_kernel[(rows, 2)](
        first,
        second,
        first_weight.contiguous(),
        second_weight.contiguous(),
        *outs,
        eps,
        first.stride(0),
        second.stride(0),
        FIRST=sizes[0],
        SECOND=sizes[1],
        BLOCK=block,
        INTERPRET=INTERPRETING,
        num_warps=warps,
    )
    return outs


def _case(name: str, kernel: Any, pointers: str, constexprs: dict[str, Any]) -> CompileCase:
    names = pointers.split()
    signature = {n: "*i64" if n == "token_ids" else "*bf16" for n in names}
    signature["eps"] = "fp32"
    strides = [n for n in kernel.arg_names if n.endswith("_stride")]
    signature |= dict.fromkeys(strides, "i32")
    return CompileCase(
        name=name,
        kernel=kernel,
        signature=signature,
        constexprs={**constexprs, "INTERPRET": False},
        num_warps=8,
    )


_WIDE = {"SIZE": 7168, "BLOCK": 8192}
COMPILE_CASES = (
    _case(
        "rms_norm/7168",
        rms_norm_kernel,
        "x residual weight out total",
        {**_WIDE, "HAS_RESIDUAL": False},
    ),
    _case(
        "add_rms_norm/7168",
        rms_norm_kernel,
        "x residual weight out total",
        {**_WIDE, "HAS_RESIDUAL": True},
    ),
    _case(
        "draft_input_norm/7168",
        draft_input_kernel,
        "token_ids embedding embed_weight hidden hidden_weight out",
        _WIDE,
    ),
    CompileCase(
        name="draft_input_norm_nvfp4/7168",
        kernel=draft_input_nvfp4_kernel,
        signature={
            "token_ids": "*i64",
            **dict.fromkeys(("embedding", "embed_weight", "hidden", "hidden_weight"), "*bf16"),
            "input_scale": "*fp32",
            "data": "*u8",
            "block_scale": "*u8",
            "stream": "*bf16",
            "eps": "fp32",
            "hidden_stride": "i32",
        },
        constexprs={"SIZE": 7168, "BLOCKS": 512, "INTERPRET": False},
        num_warps=8,
    ),
    _case("fc_input_norm/3x7168", chunk_norm_kernel, "x weights out", {**_WIDE, "CHUNKS": 3}),
    _case(
        "latent_norm_pair/1536_512",
        pair_norm_kernel,
        "first second first_weight second_weight first_out second_out",
        {"FIRST": 1536, "SECOND": 512, "BLOCK": 2048},
    ),
)
