# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Launches the Triton kernel of the cache writes."""

from __future__ import annotations

from typing import Any

import torch

from tensorrt_llm_ext import _triton
from tensorrt_llm_ext._triton import INTERPRETING
from tensorrt_llm_ext.ops.compiling import CompileCase
from tensorrt_llm_ext.ops.kvcache.triton_rope import rope_append_kernel
from tensorrt_llm_ext.ops.registry import Priority, register_kernel

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_MAX_TURNED = 16384  # numbers of q_pe that a program turns at a time


def _supports(
    q_pe: torch.Tensor,
    k_pe: torch.Tensor,
    latent: torch.Tensor,
    rope_rows: torch.Tensor,
    slot_mapping: torch.Tensor,
    latent_cache: torch.Tensor,
    **_: Any,
) -> str | None:
    reason = _triton.reason_against(q_pe)
    if reason is not None:
        return reason
    if q_pe.dtype not in _FLOATS:
        return f"float32, float16 and bfloat16 are supported, got {q_pe.dtype}"
    if not latent_cache.is_contiguous():
        return f"latent_cache must be contiguous, got strides {latent_cache.stride()}"
    if q_pe.shape[1] * q_pe.shape[2] > _MAX_TURNED:
        return f"{q_pe.shape[1]} heads of {q_pe.shape[2]}, at most {_MAX_TURNED} numbers are turned"
    return None


def _power(size: int) -> int:
    return 1 << max(size - 1, 1).bit_length()


@register_kernel(
    "mla_rope_append", "triton", _triton.priority(Priority.PERFORMANT), supports=_supports
)
def mla_rope_append_triton(
    q_pe: torch.Tensor,
    k_pe: torch.Tensor,
    latent: torch.Tensor,
    rope_rows: torch.Tensor,
    slot_mapping: torch.Tensor,
    latent_cache: torch.Tensor,
    *,
    has_padding: bool,
    latent_scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """One program per row; padding rows write nothing."""
    rows, heads, rope = q_pe.shape
    out = q_pe.new_empty(q_pe.shape)
    if not rows:
        return out
    q_pe, k_pe, latent = (x if x.stride(-1) == 1 else x.contiguous() for x in (q_pe, k_pe, latent))
    is_fp8 = latent_scale is not None
    rope_append_kernel[(rows,)](
        q_pe,
        k_pe,
        latent,
        rope_rows.contiguous(),
        slot_mapping.contiguous(),
        latent_cache.view(torch.uint8) if is_fp8 else latent_cache,
        latent_scale if is_fp8 else latent,
        out,
        q_pe.stride(0),
        q_pe.stride(1),
        k_pe.stride(0),
        latent.stride(0),
        HEADS=heads,
        HEADS_BLOCK=_power(heads),
        HALF=rope // 2,
        HALF_BLOCK=_power(rope // 2),
        RANK=latent.shape[1],
        RANK_BLOCK=_power(latent.shape[1]),
        IS_FP8=is_fp8,
        INTERPRET=INTERPRETING,
        num_warps=4,
    )
    return out


def _case(name: str, heads: int, is_fp8: bool) -> CompileCase:
    signature = {
        **dict.fromkeys(("q_pe", "k_pe", "latent"), "*bf16"),
        "rope_rows": "*fp32",
        "slots": "*i64",
        "cache": "*u8" if is_fp8 else "*bf16",
        "latent_scale": "*fp32" if is_fp8 else "*bf16",
        "out": "*bf16",
        **dict.fromkeys(("q_stride_t", "q_stride_h", "k_stride", "latent_stride"), "i32"),
    }
    return CompileCase(
        name=name,
        kernel=rope_append_kernel,
        signature=signature,
        constexprs={
            "HEADS": heads,
            "HEADS_BLOCK": heads,
            "HALF": 32,
            "HALF_BLOCK": 32,
            "RANK": 512,
            "RANK_BLOCK": 512,
            "IS_FP8": is_fp8,
            "INTERPRET": False,
        },
    )


COMPILE_CASES = (
    _case("mla_rope_append/64_heads", 64, False),
    _case("mla_rope_append/8_heads_fp8", 8, True),
)
