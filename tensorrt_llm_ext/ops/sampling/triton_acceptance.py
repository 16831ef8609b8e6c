# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Launches the Triton kernels of uniforms, sampling and greedy acceptance."""

from __future__ import annotations

from typing import Any

import torch

from tensorrt_llm_ext import _triton
from tensorrt_llm_ext.ops.compiling import CompileCase
from tensorrt_llm_ext.ops.registry import Priority, register_kernel
from tensorrt_llm_ext.ops.sampling.rows import SamplingRows
from tensorrt_llm_ext.ops.sampling.triton_draw import (
    chunk_kernel,
    count_kernel,
    draw_kernel,
    uniform_kernel,
)

_PRIORITY = _triton.priority(Priority.PERFORMANT)
_CHUNK = 4096
_MAX_CHUNKS = 1024
_TOKEN_FIELDS = ("output_counts", "prompt_mask", "logit_bias", "banned")
_ROW_FIELDS = ("repetition_penalty", "presence_penalty", "frequency_penalty")


def _supports_uniform(seeds: torch.Tensor, *_: Any, **__: Any) -> str | None:
    return _triton.reason_against(seeds)


@register_kernel("uniform", "triton", _PRIORITY, supports=_supports_uniform)
def uniform_triton(seeds: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """SplitMix64 in one launch."""
    size = seeds.shape[0]
    out = torch.empty(size, dtype=torch.float64, device=seeds.device)
    if size:
        block = 256
        grid = (-(-size // block),)
        uniform_kernel[grid](seeds.contiguous(), positions.contiguous(), out, size, BLOCK=block)
    return out


def _supports_sample(
    logits: torch.Tensor, rows: SamplingRows, uniforms: torch.Tensor | None, **_: Any
) -> str | None:
    reason = _triton.reason_against(logits)
    if reason is not None:
        return reason
    if logits.dtype == torch.float64:
        return "float32, float16 and bfloat16 logits are supported, got torch.float64"
    sorted_by = [n for n in ("top_k", "top_p", "min_p") if getattr(rows, n) is not None]
    if sorted_by and rows.temperature is not None:
        return f"{', '.join(sorted_by)} need the whole row at once"
    if logits.shape[1] > _CHUNK * _MAX_CHUNKS:
        return f"{logits.shape[1]} tokens, at most {_CHUNK * _MAX_CHUNKS} are supported"
    return None


def _last_dim_dense(value: torch.Tensor) -> torch.Tensor:
    if value.dtype == torch.bool:
        value = value.view(torch.uint8)
    return value if value.stride(-1) == 1 else value.contiguous()


@register_kernel("sample", "triton", _PRIORITY, supports=_supports_sample)
def sample_triton(
    logits: torch.Tensor, rows: SamplingRows, uniforms: torch.Tensor | None
) -> torch.Tensor:
    """Sums per chunk of the vocabulary in float64, then a search in the chunk that was hit."""
    num_rows, vocab_size = logits.shape
    out = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    if not num_rows:
        return out
    logits = _last_dim_dense(logits)
    chunks = -(-vocab_size // _CHUNK)
    maxima = logits.new_empty(num_rows, chunks, dtype=torch.float32)
    best = logits.new_empty(num_rows, chunks, dtype=torch.int32)
    sums = logits.new_empty(num_rows, chunks, dtype=torch.float64)
    per_token = [getattr(rows, name) for name in _TOKEN_FIELDS]
    # An absent field is never read; the pointer only has to be one.
    fields = [logits if value is None else _last_dim_dense(value) for value in per_token]
    per_row = [getattr(rows, name) for name in _ROW_FIELDS]
    settings = [logits if value is None else value.contiguous() for value in per_row]
    temperature = logits if rows.temperature is None else rows.temperature.contiguous()
    has_temperature = rows.temperature is not None and uniforms is not None
    flags: dict[str, Any] = {
        "CHUNK": _CHUNK,
        "HAS_TEMPERATURE": has_temperature,
        "HAS_COUNTS": per_token[0] is not None,
        "HAS_PROMPT": per_token[1] is not None,
        "HAS_BIAS": per_token[2] is not None,
        "HAS_BANNED": per_token[3] is not None,
        "HAS_REPETITION": per_row[0] is not None,
        "HAS_PRESENCE": per_row[1] is not None,
        "HAS_FREQUENCY": per_row[2] is not None,
        "num_warps": 8,
    }
    strides = [logits.stride(0), *(field.stride(0) for field in fields)]
    chunk_kernel[(num_rows, chunks)](
        logits, *fields, *settings, temperature, maxima, best, sums, vocab_size, *strides, **flags
    )
    draw_kernel[(num_rows,)](
        logits,
        *fields,
        *settings,
        temperature,
        uniforms.contiguous() if uniforms is not None and has_temperature else sums,
        maxima,
        best,
        sums,
        out,
        vocab_size,
        chunks,
        *strides,
        CHUNKS_BLOCK=1 << max(chunks - 1, 1).bit_length(),
        **flags,
    )
    return out


def _supports_count(sampled: torch.Tensor, *_: Any, **__: Any) -> str | None:
    return _triton.reason_against(sampled)


@register_kernel("verify_greedy", "triton", _PRIORITY, supports=_supports_count)
def verify_greedy_triton(
    sampled: torch.Tensor, drafts: torch.Tensor, num_drafts: torch.Tensor
) -> torch.Tensor:
    """One program per request."""
    batch_size, k = drafts.shape
    out = torch.empty(batch_size, dtype=torch.int64, device=sampled.device)
    if batch_size:
        count_kernel[(batch_size,)](
            sampled.contiguous(),
            drafts.contiguous(),
            num_drafts.contiguous(),
            out,
            k,
            BLOCK=1 << (k + 1).bit_length(),
            num_warps=1,
        )
    return out


def _sample_case(kernel: Any, name: str, pointers: dict[str, str], has_all: bool) -> CompileCase:
    flags = [n for n in kernel.arg_names if n.startswith("HAS_") and n != "HAS_TEMPERATURE"]
    constexprs: dict[str, Any] = {"CHUNK": _CHUNK, "HAS_TEMPERATURE": True}
    if "CHUNKS_BLOCK" in kernel.arg_names:
        constexprs["CHUNKS_BLOCK"] = 64
    constexprs |= dict.fromkeys(flags, has_all)
    integers = [n for n in kernel.arg_names if n not in pointers and n not in constexprs]
    signature = {n: pointers.get(n, "i32") for n in kernel.arg_names if n not in constexprs}
    return CompileCase(
        name=name,
        kernel=kernel,
        signature=signature,
        constexprs=constexprs,
        unaligned=tuple(n for n in integers if n in ("num_chunks", "vocab_size")),
        num_warps=8,
    )


_POINTERS = {
    **dict.fromkeys(("logits", "bias", "repetition", "presence", "frequency"), "*fp32"),
    **dict.fromkeys(("temperature", "maxima"), "*fp32"),
    **dict.fromkeys(("uniforms", "sums"), "*fp64"),
    **dict.fromkeys(("prompt", "banned"), "*u8"),
    **dict.fromkeys(("counts", "out"), "*i64"),
    "best": "*i32",
}
COMPILE_CASES = (
    _sample_case(chunk_kernel, "sample_chunks/plain", _POINTERS, False),
    _sample_case(chunk_kernel, "sample_chunks/penalties", _POINTERS, True),
    _sample_case(draw_kernel, "sample_draw/plain", _POINTERS, False),
    _sample_case(draw_kernel, "sample_draw/penalties", _POINTERS, True),
    CompileCase(
        name="uniform/256",
        kernel=uniform_kernel,
        signature={"seeds": "*i64", "positions": "*i64", "out": "*fp64", "size": "i32"},
        constexprs={"BLOCK": 256},
    ),
    CompileCase(
        name="verify_greedy/16",
        kernel=count_kernel,
        signature={
            **dict.fromkeys(("sampled", "drafts", "num_drafts", "out"), "*i64"),
            "k": "i32",
        },
        constexprs={"BLOCK": 16},
        unaligned=("k",),
        num_warps=1,
    ),
)
