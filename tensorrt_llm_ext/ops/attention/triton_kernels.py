# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Launches the Triton kernels of MLA attention: shapes in, tiles and grids out."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from tensorrt_llm_ext import _triton
from tensorrt_llm_ext._triton import INTERPRETING, triton
from tensorrt_llm_ext.ops.attention.metadata import DecodeMetadata, PrefillMetadata
from tensorrt_llm_ext.ops.attention.torch_kernels import gathered_rows
from tensorrt_llm_ext.ops.attention.triton_decode import combine_kernel, decode_kernel
from tensorrt_llm_ext.ops.attention.triton_prefill import prefill_kernel
from tensorrt_llm_ext.ops.compiling import CompileCase
from tensorrt_llm_ext.ops.registry import Priority, register_kernel

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
# Powers of two, because a program keeps the lengths of the whole batch in registers.
_MAX_BATCH = 1024
_MAX_QUERY_ROWS = 64
_MAX_LATENT = 1024
_MAX_HEAD = 256
# Up to so many sequences the programs of a tile combine their own results. Above, a second launch
# costs less than the memory traffic of counters does.
_MAX_LAST_COMBINES = 16
_PROGRAMS_PER_PROCESSOR = 2
_CPU_PROCESSORS = 4  # what the interpreter plans for: several units per sequence, yet few


def _supports_decode(
    q: torch.Tensor,
    latent_cache: torch.Tensor,
    metadata: DecodeMetadata,
    *,
    kv_lora_rank: int,
    latent_scale: torch.Tensor | None = None,
    **_: Any,
) -> str | None:
    reason = _triton.reason_against(q)
    if reason is not None:
        return reason
    if q.dtype not in _FLOATS:
        return f"q must be float32, float16 or bfloat16, got {q.dtype}"
    if not latent_cache.is_contiguous():
        return f"latent_cache must be contiguous, got strides {latent_cache.stride()}"
    for name, size, limit in (
        ("sequences", q.shape[0], _MAX_BATCH),
        ("query rows", q.shape[1], _MAX_QUERY_ROWS),
        ("columns of a latent row", q.shape[3], _MAX_LATENT),
    ):
        if not 0 < size <= limit:
            return f"{size} {name}, at most {limit} are supported"
    return None


@register_kernel(
    "mla_decode",
    "triton",
    _triton.priority(Priority.PERFORMANT),
    supports=_supports_decode,
)
def mla_decode_triton(
    q: torch.Tensor,
    latent_cache: torch.Tensor,
    metadata: DecodeMetadata,
    *,
    kv_lora_rank: int,
    softmax_scale: float,
    return_lse: bool = False,
    latent_scale: torch.Tensor | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """One pass over the pages; see `triton_decode`."""
    if q.stride(-1) != 1:
        q = q.contiguous()
    batch, query_len, heads, latent_size = q.shape
    rows, keys, warps = _tile(query_len * heads, q.dtype)
    num_tiles = triton.cdiv(query_len * heads, rows)
    target = max(1, _processors(q.device) * _PROGRAMS_PER_PROCESSOR // num_tiles)
    units = target + batch  # rounding gives each sequence at most one unit more than its share
    out = q.new_empty(batch, query_len, heads, kv_lora_rank)
    lse = q.new_empty(batch, query_len, heads, dtype=torch.float32)
    partial = q.new_empty(units * num_tiles * rows, kv_lora_rank, dtype=torch.float32)
    partial_lse = q.new_empty(units * num_tiles * rows, dtype=torch.float32)
    last_combines = batch <= _MAX_LAST_COMBINES
    counters = torch.zeros(
        batch * num_tiles if last_combines else 1, dtype=torch.int32, device=q.device
    )
    lengths = metadata.lengths
    # The kernel walks them row by row.
    table, positions = metadata.block_table.contiguous(), metadata.positions.contiguous()
    starts = lengths if metadata.starts is None else metadata.starts.contiguous()
    ancestors = lengths if metadata.ancestors is None else metadata.ancestors.contiguous()
    scale = lengths if latent_scale is None else latent_scale
    shared = {
        "HEADS": heads,
        "RANK": kv_lora_rank,
        "RANK_BLOCK": _power(kv_lora_rank),
        "ROWS": rows,
        "KEYS": keys,
        "BATCH_BLOCK": _power(batch),
        "IS_FP8": latent_scale is not None,
        "INTERPRET": INTERPRETING,
        "num_warps": warps,
    }
    decode_kernel[(num_tiles, units)](
        q,
        latent_cache,
        table,
        lengths,
        positions,
        starts,
        ancestors,
        scale,
        out,
        lse,
        partial,
        partial_lse,
        counters,
        softmax_scale,
        batch,
        query_len,
        target,
        q.stride(0),
        q.stride(1),
        q.stride(2),
        table.stride(0),
        ROPE=latent_size - kv_lora_rank,
        ROPE_BLOCK=_power(latent_size - kv_lora_rank),
        PAGE=metadata.block_size,
        IS_TREE=metadata.is_tree,
        LAST_COMBINES=last_combines,
        STAGES=2,
        **shared,
    )
    if not last_combines:
        combine_kernel[(num_tiles, batch)](
            partial, partial_lse, out, lse, lengths, scale, batch, query_len, target, **shared
        )
    return (out, lse) if return_lse else out


def _supports_prefill(
    q_nope: torch.Tensor,
    q_pe: torch.Tensor,
    latent_cache: torch.Tensor,
    metadata: PrefillMetadata,
    *,
    w_vc: torch.Tensor,
    **_: Any,
) -> str | None:
    reason = _triton.reason_against(q_nope)
    if reason is not None:
        return reason
    if q_nope.dtype not in _FLOATS:
        return f"q_nope must be float32, float16 or bfloat16, got {q_nope.dtype}"
    if not latent_cache.is_contiguous():
        return f"latent_cache must be contiguous, got strides {latent_cache.stride()}"
    widest = max(q_nope.shape[2], q_pe.shape[2], w_vc.shape[2])
    if widest > _MAX_HEAD:
        return f"a head of {widest} columns, at most {_MAX_HEAD} are supported"
    return None


@register_kernel(
    "mla_prefill", "triton", _triton.priority(Priority.PERFORMANT), supports=_supports_prefill
)
def mla_prefill_triton(
    q_nope: torch.Tensor,
    q_pe: torch.Tensor,
    latent_cache: torch.Tensor,
    metadata: PrefillMetadata,
    *,
    w_kc: torch.Tensor,
    w_vc: torch.Tensor,
    softmax_scale: float,
    latent_scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """Expands keys and values by matrix products, then attends; see `triton_prefill`."""
    if q_nope.stride(-1) != 1 or q_pe.stride(-1) != 1:
        q_nope, q_pe = q_nope.contiguous(), q_pe.contiguous()
    num_tokens, heads, nope = q_nope.shape
    rank, value = w_vc.shape[1:]
    latent = gathered_rows(latent_cache, metadata.key_slots, latent_scale, q_nope.dtype)
    compressed, k_pe = latent[:, :rank], latent[:, rank:]
    # [keys, heads, columns]: one product each, whatever the number of heads.
    k_nope = compressed @ w_kc.reshape(heads * nope, rank).T
    values = compressed @ w_vc.transpose(0, 1).reshape(rank, heads * value)
    out = q_nope.new_empty(num_tokens, heads, value)
    rows, keys = (32, 32) if q_nope.dtype == torch.float32 else (64, 64)
    prefill_kernel[(triton.cdiv(num_tokens, rows), heads)](
        q_nope,
        q_pe,
        k_nope,
        k_pe,
        values,
        out,
        softmax_scale,
        num_tokens,
        metadata.start,
        q_nope.stride(0),
        q_nope.stride(1),
        q_pe.stride(0),
        q_pe.stride(1),
        k_pe.stride(0),
        HEADS=heads,
        NOPE=nope,
        ROPE=q_pe.shape[2],
        VALUE=value,
        NOPE_BLOCK=_power(nope),
        ROPE_BLOCK=_power(q_pe.shape[2]),
        VALUE_BLOCK=_power(value),
        ROWS=rows,
        KEYS=keys,
        STAGES=2,
        INTERPRET=INTERPRETING,
        num_warps=4,
    )
    return out


def _tile(rows: int, dtype: torch.dtype) -> tuple[int, int, int]:
    """Returns rows and keys of a tile, and its warps: what fits registers without spills.

    64 rows fill a tensor core instruction of Hopper and Blackwell; fewer rows read the same pages
    with less arithmetic. float32 tiles are half as large: their operands take twice the space.
    """
    keys = 16 if dtype == torch.float32 else 32
    if rows <= 16:
        return 16, keys, 4
    return (32, keys, 8) if rows <= 32 or dtype == torch.float32 else (64, keys, 8)


def _power(size: int) -> int:
    """Returns the next power of two, and 16 at least: the smallest side of a product."""
    return max(16, 1 << (size - 1).bit_length())


@lru_cache
def _processors(device: torch.device) -> int:
    if device.type != "cuda":
        return _CPU_PROCESSORS
    return torch.cuda.get_device_properties(device).multi_processor_count


_TYPES = {"bf16": "*bf16", "fp16": "*fp16", "fp32": "*fp32"}


def _decode_case(
    rows: int,
    name: str,
    *,
    dtype: str = "bf16",
    heads: int = 16,
    is_tree: bool = False,
    is_fp8: bool = False,
    last_combines: bool = True,
) -> CompileCase:
    torch_dtype = torch.float32 if dtype == "fp32" else torch.bfloat16
    tile, keys, warps = _tile(rows, torch_dtype)
    number = _TYPES[dtype]
    pointers = {
        "q": number,
        "cache": "*fp8e4nv" if is_fp8 else number,
        "table": "*i64",
        "lengths": "*i32",
        "positions": "*i64",
        "starts": "*i64",
        "ancestors": "*i64",
        "latent_scale": "*fp32",
        "out": number,
        "lse": "*fp32",
        "partial": "*fp32",
        "partial_lse": "*fp32",
        "counters": "*i32",
        "scale": "fp32",
    }
    counts = ("batch", "query_len", "target_units", "table_stride")
    strides = ("q_stride_b", "q_stride_q", "q_stride_h")
    return CompileCase(
        name=f"mla_decode/{name}",
        kernel=decode_kernel,
        signature={**pointers, **dict.fromkeys((*counts, *strides), "i32")},
        constexprs={
            "HEADS": heads,
            "RANK": 512,
            "ROPE": 64,
            "RANK_BLOCK": 512,
            "ROPE_BLOCK": 64,
            "PAGE": 64,
            "ROWS": tile,
            "KEYS": keys,
            "BATCH_BLOCK": 64,
            "IS_TREE": is_tree,
            "IS_FP8": is_fp8,
            "LAST_COMBINES": last_combines,
            "STAGES": 2,
            "INTERPRET": False,
        },
        unaligned=counts,
        num_warps=warps,
    )


COMPILE_CASES = (
    _decode_case(16, "rows16_bf16"),
    _decode_case(32, "rows32_bf16"),
    _decode_case(64, "rows64_bf16"),
    _decode_case(64, "rows64_bf16_two_kernels", last_combines=False),
    _decode_case(64, "rows64_fp16", dtype="fp16"),
    _decode_case(64, "rows64_tree", is_tree=True),
    _decode_case(16, "rows16_fp8", is_fp8=True),
    _decode_case(64, "rows64_fp8", is_fp8=True),
    _decode_case(16, "rows16_fp32", dtype="fp32"),
    CompileCase(
        name="mla_decode/combine_rows64",
        kernel=combine_kernel,
        signature={
            "partial": "*fp32",
            "partial_lse": "*fp32",
            "out": "*bf16",
            "lse": "*fp32",
            "lengths": "*i32",
            "latent_scale": "*fp32",
            "batch": "i32",
            "query_len": "i32",
            "target_units": "i32",
        },
        constexprs={
            "HEADS": 16,
            "RANK": 512,
            "RANK_BLOCK": 512,
            "ROWS": 64,
            "KEYS": 32,
            "BATCH_BLOCK": 64,
            "IS_FP8": False,
            "INTERPRET": False,
        },
        unaligned=("batch", "query_len", "target_units"),
        num_warps=8,
    ),
    CompileCase(
        name="mla_prefill/rows64_bf16",
        kernel=prefill_kernel,
        signature={
            **dict.fromkeys(("q_nope", "q_pe", "k_nope", "k_pe", "values", "out"), "*bf16"),
            "scale": "fp32",
            **dict.fromkeys(("num_tokens", "start", "k_pe_stride"), "i32"),
            **dict.fromkeys(("q_nope_stride_t", "q_nope_stride_h"), "i32"),
            **dict.fromkeys(("q_pe_stride_t", "q_pe_stride_h"), "i32"),
        },
        constexprs={
            "HEADS": 16,
            "NOPE": 128,
            "ROPE": 64,
            "VALUE": 128,
            "NOPE_BLOCK": 128,
            "ROPE_BLOCK": 64,
            "VALUE_BLOCK": 128,
            "ROWS": 64,
            "KEYS": 64,
            "STAGES": 2,
            "INTERPRET": False,
        },
        unaligned=("num_tokens", "start"),
    ),
)
