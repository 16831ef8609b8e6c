# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Launches the Triton kernels of the mixture of experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from tensorrt_llm_ext import _triton
from tensorrt_llm_ext._triton import INTERPRETING
from tensorrt_llm_ext.ops.compiling import CompileCase
from tensorrt_llm_ext.ops.moe.packed import PackedExperts
from tensorrt_llm_ext.ops.moe.triton_moe import (
    align_kernel,
    combine_kernel,
    down_kernel,
    gate_up_kernel,
    route_kernel,
)
from tensorrt_llm_ext.ops.registry import Priority, register_kernel

# Above the torch paths, of which one has PERFORMANT + 0 on the CPU only.
_PRIORITY = _triton.priority(Priority.PERFORMANT)
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_MAX_EXPERTS = 1024
# Up to so many pairs one program aligns them; more are sorted by torch.
_MAX_ALIGNED = 1024


def _power(size: int) -> int:
    return 1 << max(size - 1, 0).bit_length()


def _supports_route(
    logits: torch.Tensor, bias: torch.Tensor, *, num_groups: int, **_: Any
) -> str | None:
    reason = _triton.reason_against(logits)
    if reason is not None:
        return reason
    if logits.dtype != torch.float32:
        return f"logits must be float32, got {logits.dtype}"
    if logits.shape[1] > _MAX_EXPERTS:
        return f"{logits.shape[1]} experts, at most {_MAX_EXPERTS} are supported"
    return None


@register_kernel("moe_route", "triton", _PRIORITY, supports=_supports_route)
def moe_route_triton(
    logits: torch.Tensor,
    bias: torch.Tensor,
    *,
    num_groups: int,
    topk_group: int,
    top_k: int,
    norm_topk_prob: bool,
    routed_scaling_factor: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One program per token; of equal experts the lowest wins."""
    rows, experts = logits.shape
    weights = logits.new_empty(rows, top_k)
    expert_ids = torch.empty(rows, top_k, dtype=torch.int64, device=logits.device)
    if not rows:
        return weights, expert_ids
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    size = experts // num_groups
    route_kernel[(rows,)](
        logits,
        bias.contiguous(),
        weights,
        expert_ids,
        routed_scaling_factor,
        logits.stride(0),
        GROUPS=num_groups,
        GROUPS_BLOCK=_power(num_groups),
        SIZE=size,
        SIZE_BLOCK=_power(size),
        TOPK_GROUP=topk_group,
        TOP_K=top_k,
        TOP_K_BLOCK=_power(top_k),
        IS_NORMED=norm_topk_prob,
        num_warps=4,
    )
    return weights, expert_ids


@dataclass(frozen=True)
class Aligned:
    """Which pair fills which row of which block.

    Attributes:
        sorted_pairs: [max_blocks * block_m] int32: number of the (token, expert) pair, or the
            number of pairs where the row is empty.
        block_experts: [max_blocks] int32: expert of each block, -1 for a block without one.
    """

    sorted_pairs: torch.Tensor
    block_experts: torch.Tensor

    @property
    def max_blocks(self) -> int:
        """Blocks that the worst case needs."""
        return self.block_experts.shape[0]


def align(expert_ids: torch.Tensor, num_experts: int, block_m: int) -> Aligned:
    """Puts the pairs of each expert side by side in blocks of `block_m` rows.

    Args:
        expert_ids: [num_tokens, top_k] int64.
        num_experts: Of the layer.
        block_m: Rows of a block.
    """
    num_pairs = expert_ids.numel()
    max_blocks = min(num_pairs, num_experts) + num_pairs // block_m
    if num_pairs > _MAX_ALIGNED:
        return _align_by_sorting(expert_ids.flatten(), num_experts, block_m, max_blocks)
    device = expert_ids.device
    sorted_pairs = torch.empty(max_blocks * block_m, dtype=torch.int32, device=device)
    block_experts = torch.empty(max_blocks, dtype=torch.int32, device=device)
    align_kernel[(1,)](
        expert_ids.contiguous(),
        sorted_pairs,
        block_experts,
        num_pairs,
        max_blocks,
        NUM_EXPERTS=num_experts,
        EXPERTS_BLOCK=_power(num_experts),
        PAIRS_BLOCK=32,
        BLOCK_M=block_m,
        num_warps=8,
    )
    return Aligned(sorted_pairs, block_experts)


def _align_by_sorting(
    ids: torch.Tensor, num_experts: int, block_m: int, max_blocks: int
) -> Aligned:
    sorted_ids, order = ids.sort(stable=True)
    experts = torch.arange(num_experts, device=ids.device)
    ends = torch.searchsorted(sorted_ids, experts, right=True)
    counts = ends.diff(prepend=ends.new_zeros(1))
    block_ends = ((counts + block_m - 1) // block_m).cumsum(0)
    starts = (block_ends.roll(1).index_fill(0, experts[:1], 0)) * block_m
    rank = torch.arange(ids.shape[0], device=ids.device) - (ends - counts)[sorted_ids]
    pairs = torch.full((max_blocks * block_m,), ids.shape[0], dtype=torch.int32, device=ids.device)
    pairs.scatter_(0, starts[sorted_ids] + rank, order.int())
    blocks = torch.arange(max_blocks, device=ids.device)
    owner = torch.searchsorted(block_ends, blocks, right=True)
    return Aligned(pairs, torch.where(blocks < block_ends[-1], owner, -1).int())


@dataclass(frozen=True)
class _Stack:
    """One weight of every expert, as the kernels take it."""

    data: torch.Tensor
    block_scale: torch.Tensor
    global_scale: torch.Tensor
    is_packed: bool


def _float_stack(weight: torch.Tensor) -> _Stack:
    # The scales of an unpacked weight are never read; the pointers only have to be some.
    weight = weight.contiguous()
    return _Stack(weight, weight, weight, False)


def _packed_stack(stack: PackedExperts) -> _Stack:
    return _Stack(
        stack.data.contiguous(),
        stack.block_scale.contiguous(),
        stack.global_scale.contiguous(),
        True,
    )


def _rows_per_block(num_pairs: int, num_experts: int) -> int:
    """Small blocks while most experts have few pairs: an empty row costs as much as a full one."""
    return 16 if num_pairs <= 16 * num_experts else 64


def _run(
    x: torch.Tensor,
    gate_up: _Stack,
    down: _Stack,
    weights: torch.Tensor,
    expert_ids: torch.Tensor,
) -> torch.Tensor:
    tokens, hidden_size = x.shape
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    if not tokens:
        return out
    num_experts, intermediate = gate_up.data.shape[0], gate_up.data.shape[1] // 2
    top_k, pairs = expert_ids.shape[1], expert_ids.numel()
    block_m = _rows_per_block(pairs, num_experts)
    aligned = align(expert_ids, num_experts, block_m)
    x = x if x.stride(1) == 1 else x.contiguous()
    hidden = x.new_empty(pairs, intermediate)
    parts = x.new_empty(pairs, hidden_size, dtype=torch.float32)
    tile = _tile(block_m, gate_up.is_packed)
    common: dict[str, Any] = {
        "HIDDEN": hidden_size,
        "INTER": intermediate,
        "BLOCK_M": block_m,
        "IS_PACKED": gate_up.is_packed,
        "INTERPRET": INTERPRETING,
        **tile,
    }
    columns = tile["BLOCK_N"]
    gate_up_kernel[(-(-intermediate // columns), aligned.max_blocks)](
        x,
        gate_up.data,
        gate_up.block_scale,
        gate_up.global_scale,
        hidden,
        aligned.sorted_pairs,
        aligned.block_experts,
        pairs,
        x.stride(0),
        TOP_K=top_k,
        **common,
    )
    down_kernel[(-(-hidden_size // columns), aligned.max_blocks)](
        hidden,
        down.data,
        down.block_scale,
        down.global_scale,
        weights.contiguous(),
        parts,
        aligned.sorted_pairs,
        aligned.block_experts,
        pairs,
        **common,
    )
    width = min(1024, _power(hidden_size))
    combine_kernel[(tokens, -(-hidden_size // width))](
        parts, out, TOP_K=top_k, HIDDEN=hidden_size, BLOCK_N=width, INTERPRET=INTERPRETING
    )
    return out


def _tile(block_m: int, is_packed: bool) -> dict[str, int]:
    if block_m == 16:
        return {"BLOCK_N": 64, "BLOCK_K": 128, "num_warps": 4, "num_stages": 3}
    if is_packed:
        return {"BLOCK_N": 64, "BLOCK_K": 64, "num_warps": 4, "num_stages": 3}
    return {"BLOCK_N": 128, "BLOCK_K": 64, "num_warps": 8, "num_stages": 3}


def _reason(x: torch.Tensor, num_experts: int) -> str | None:
    reason = _triton.reason_against(x)
    if reason is not None:
        return reason
    if x.dtype not in _FLOATS:
        return f"float32, float16 and bfloat16 are supported, got {x.dtype}"
    if num_experts > _MAX_EXPERTS:
        return f"{num_experts} experts, at most {_MAX_EXPERTS} are supported"
    return None


def _supports_experts(x: torch.Tensor, w_gate_up: torch.Tensor, *_: Any, **__: Any) -> str | None:
    return _reason(x, w_gate_up.shape[0])


@register_kernel("moe_experts", "triton", _PRIORITY, supports=_supports_experts)
def moe_experts_triton(
    x: torch.Tensor,
    w_gate_up: torch.Tensor,
    w_down: torch.Tensor,
    weights: torch.Tensor,
    expert_ids: torch.Tensor,
) -> torch.Tensor:
    """Two grouped products and a sum per token; nothing is read on the host."""
    return _run(x, _float_stack(w_gate_up), _float_stack(w_down), weights, expert_ids)


def _supports_packed(
    x: torch.Tensor, gate_up: PackedExperts, down: PackedExperts, *_: Any, **__: Any
) -> str | None:
    if gate_up.input_scale is not None or down.input_scale is not None:
        return "weights are multiplied as W4A16, and an input_scale asks for W4A4"
    return _reason(x, gate_up.num_experts)


@register_kernel("moe_experts_nvfp4", "triton", _PRIORITY, supports=_supports_packed)
def moe_experts_nvfp4_triton(
    x: torch.Tensor,
    gate_up: PackedExperts,
    down: PackedExperts,
    weights: torch.Tensor,
    expert_ids: torch.Tensor,
) -> torch.Tensor:
    """As `moe_experts`; weights are unpacked as they are read, and scaled in float32."""
    return _run(x, _packed_stack(gate_up), _packed_stack(down), weights, expert_ids)


def _expert_case(name: str, kernel: Any, block_m: int, is_packed: bool) -> CompileCase:
    tile = _tile(block_m, is_packed)
    warps, stages = tile.pop("num_warps"), tile.pop("num_stages")
    pointers = dict.fromkeys(("x", "hidden"), "*bf16")
    pointers |= {"w": "*u8", "w_scale": "*fp8e4nv", "w_global": "*fp32"} if is_packed else {}
    constexprs: dict[str, Any] = {
        "TOP_K": 8,
        "HIDDEN": 7168,
        "INTER": 2048,
        "BLOCK_M": block_m,
        "IS_PACKED": is_packed,
        "INTERPRET": False,
        **tile,
    }
    constexprs = {n: v for n, v in constexprs.items() if n in kernel.arg_names}
    known = {
        **dict.fromkeys(("w", "w_scale", "w_global"), "*bf16"),
        **pointers,
        **dict.fromkeys(("weights", "parts"), "*fp32"),
        **dict.fromkeys(("sorted_pairs", "block_experts"), "*i32"),
        **dict.fromkeys(("num_pairs", "x_stride"), "i32"),
    }
    return CompileCase(
        name=name,
        kernel=kernel,
        signature={n: known[n] for n in kernel.arg_names if n not in constexprs},
        constexprs=constexprs,
        unaligned=("num_pairs",),
        num_warps=warps,
        num_stages=stages,
    )


def _route_case(name: str, groups: int, size: int, topk_group: int) -> CompileCase:
    return CompileCase(
        name=name,
        kernel=route_kernel,
        signature={
            **dict.fromkeys(("logits", "bias", "weights"), "*fp32"),
            "expert_ids": "*i64",
            "factor": "fp32",
            "logits_stride": "i32",
        },
        constexprs={
            "GROUPS": groups,
            "GROUPS_BLOCK": _power(groups),
            "SIZE": size,
            "SIZE_BLOCK": _power(size),
            "TOPK_GROUP": topk_group,
            "TOP_K": 8,
            "TOP_K_BLOCK": 8,
            "IS_NORMED": True,
        },
    )


COMPILE_CASES = (
    _route_case("moe_route/kimi_384", 1, 384, 1),
    _route_case("moe_route/deepseek_8x32", 8, 32, 4),
    CompileCase(
        name="moe_align/384_experts",
        kernel=align_kernel,
        signature={
            "expert_ids": "*i64",
            "sorted_pairs": "*i32",
            "block_experts": "*i32",
            "num_pairs": "i32",
            "max_blocks": "i32",
        },
        constexprs={
            "NUM_EXPERTS": 384,
            "EXPERTS_BLOCK": 512,
            "PAIRS_BLOCK": 32,
            "BLOCK_M": 16,
        },
        unaligned=("num_pairs", "max_blocks"),
        num_warps=8,
    ),
    _expert_case("moe_gate_up/rows16_bf16", gate_up_kernel, 16, False),
    _expert_case("moe_gate_up/rows64_bf16", gate_up_kernel, 64, False),
    _expert_case("moe_gate_up/rows16_nvfp4", gate_up_kernel, 16, True),
    _expert_case("moe_gate_up/rows64_nvfp4", gate_up_kernel, 64, True),
    _expert_case("moe_down/rows16_bf16", down_kernel, 16, False),
    _expert_case("moe_down/rows64_bf16", down_kernel, 64, False),
    _expert_case("moe_down/rows16_nvfp4", down_kernel, 16, True),
    _expert_case("moe_down/rows64_nvfp4", down_kernel, 64, True),
    CompileCase(
        name="moe_combine/7168",
        kernel=combine_kernel,
        signature={"parts": "*fp32", "out": "*bf16"},
        constexprs={"TOP_K": 8, "HIDDEN": 7168, "BLOCK_N": 1024, "INTERPRET": False},
    ),
)
