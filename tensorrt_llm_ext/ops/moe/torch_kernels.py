# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Mixture of experts in plain torch.

On a CPU the expert ids may be read for free, so the loop over the chosen experts touches each
weight once and copies none. That loop is a `torch.library` op, `trtllm_ext::moe_experts`, so that
tracing and FakeTensorMode see one opaque call with a known result shape. On a GPU nothing is read:
`torch_grouped` hands the sorted pairs to torch's grouped product where that exists, and
`torch_dense` runs every expert on every token. Packed experts have the same two ways: a loop over
the chosen ones behind `trtllm_ext::moe_experts_nvfp4`, and every expert on every token.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch.nn import functional

from tensorrt_llm_ext.devices import probe
from tensorrt_llm_ext.ops.moe.packed import PackedExperts
from tensorrt_llm_ext.ops.nvfp4 import nvfp4_linear
from tensorrt_llm_ext.ops.registry import Priority, register_kernel

# Elements of the widest intermediate of `torch_dense`, [num_experts, num_tokens, 2 * intermediate].
_MAX_DENSE_ELEMENTS = 1 << 28
# Up to this many (token, expert) pairs `torch_loop` takes them one by one: sorting them costs more
# than it saves. Eight pairs, a verify step of four rows with two experts each, take 0.22 ms by pair
# and 0.34 ms by expert (8 experts, 256 x 128, float32, one core).
_MAX_SINGLE_PAIRS = 8


@register_kernel("moe_route", "torch", Priority.PORTABLE)
def moe_route_torch(
    logits: torch.Tensor,
    bias: torch.Tensor,
    *,
    num_groups: int,
    topk_group: int,
    top_k: int,
    norm_topk_prob: bool,
    routed_scaling_factor: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Two top-k calls; the group step is left out when every group is allowed."""
    scores = torch.sigmoid(logits)
    biased = scores + bias
    if topk_group < num_groups:
        groups = biased.view(biased.shape[0], num_groups, -1)
        group_scores = groups.topk(2, dim=-1).values.sum(dim=-1)
        best = group_scores.topk(topk_group, dim=-1, sorted=False).indices
        refused = torch.ones_like(group_scores, dtype=torch.bool).scatter_(1, best, False)
        biased = groups.masked_fill(refused.unsqueeze(-1), float("-inf")).flatten(1)
    expert_ids = biased.topk(top_k, dim=-1, sorted=False).indices
    weights = scores.gather(1, expert_ids)
    if norm_topk_prob:
        weights.div_(weights.sum(dim=-1, keepdim=True).add_(1e-20))
    return weights.mul_(routed_scaling_factor), expert_ids


def _by_pair(
    x: torch.Tensor,
    w_gate_up: torch.Tensor,
    w_down: torch.Tensor,
    weights: torch.Tensor,
    expert_ids: torch.Tensor,
) -> torch.Tensor:
    """Matrix-vector products, one (token, expert) pair after the other.

    Pairs of the same expert follow each other, so that its weights are read from memory once.
    """
    ids, factors = expert_ids.flatten().tolist(), weights.flatten().tolist()
    num_experts = expert_ids.shape[1]
    order = sorted(range(len(ids)), key=ids.__getitem__)
    gate_up = x.new_empty((len(ids), w_gate_up.shape[1]))
    rows, results = x.unbind(), gate_up.unbind()
    for pair in order:
        torch.mv(w_gate_up[ids[pair]], rows[pair // num_experts], out=results[pair])
    out = torch.zeros_like(x)
    totals, hidden = out.unbind(), _gated(gate_up).unbind()
    for pair in order:
        total = totals[pair // num_experts]
        total.addmv_(w_down[ids[pair]], hidden[pair], alpha=factors[pair])
    return out


def _by_expert(
    x: torch.Tensor,
    w_gate_up: torch.Tensor,
    w_down: torch.Tensor,
    weights: torch.Tensor,
    expert_ids: torch.Tensor,
) -> torch.Tensor:
    """Sorts (token, expert) pairs by expert, so that each chosen expert is two products."""
    rows, sorted_ids, order = _sorted_pairs(x, expert_ids)
    experts, counts = _runs(sorted_ids.tolist())
    pairs = zip(experts, torch.split(rows, counts), strict=True)
    gate_up = torch.cat([functional.linear(row, w_gate_up[expert]) for expert, row in pairs])
    pairs = zip(experts, torch.split(_gated(gate_up), counts), strict=True)
    results = torch.cat([functional.linear(row, w_down[expert]) for expert, row in pairs])
    return _combined(results, order, weights)


def _sorted_pairs(
    x: torch.Tensor, expert_ids: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns the row of x of each (token, expert) pair in expert order, the ids, the order."""
    sorted_ids, order = expert_ids.flatten().sort(stable=True)
    token_ids = order.div(expert_ids.shape[1], rounding_mode="floor")
    return x.index_select(0, token_ids), sorted_ids, order


def _gated(gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate).mul_(up)


def _combined(results: torch.Tensor, order: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Adds up each token's weighted results, which come in the order of the sorted pairs."""
    results = torch.empty_like(results).index_copy_(0, order, results)
    results = results.view(*weights.shape, results.shape[1])
    return torch.bmm(weights.to(results.dtype).unsqueeze(1), results).squeeze(1)


def _runs(sorted_ids: list[int]) -> tuple[list[int], list[int]]:
    """Returns the distinct ids and how often each occurs."""
    runs = [(expert, len(list(run))) for expert, run in itertools.groupby(sorted_ids)]
    return [expert for expert, _ in runs], [count for _, count in runs]


def _moe_experts_cpu(
    x: torch.Tensor,
    w_gate_up: torch.Tensor,
    w_down: torch.Tensor,
    weights: torch.Tensor,
    expert_ids: torch.Tensor,
) -> torch.Tensor:
    """Reads the ids on the host; may run only behind the library op."""
    run = _by_pair if expert_ids.numel() <= _MAX_SINGLE_PAIRS else _by_expert
    return run(x, w_gate_up, w_down, weights, expert_ids)


# `define` and `impl` cost about one microsecond per call; the `custom_op` decorator costs sixteen.
_library = torch.library.Library("trtllm_ext", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define(  # type: ignore[no-untyped-call]
    "moe_experts(Tensor x, Tensor w_gate_up, Tensor w_down, Tensor weights, Tensor expert_ids)"
    " -> Tensor"
)
_library.impl("moe_experts", _moe_experts_cpu, "CPU")  # type: ignore[no-untyped-call]


@torch.library.register_fake("trtllm_ext::moe_experts", lib=_library)  # type: ignore[untyped-decorator]
def _moe_experts_fake(
    x: torch.Tensor,
    w_gate_up: torch.Tensor,
    w_down: torch.Tensor,
    weights: torch.Tensor,
    expert_ids: torch.Tensor,
) -> torch.Tensor:
    return torch.empty_like(x)


_moe_experts_op = torch.ops.trtllm_ext.moe_experts.default


def _supports_loop(x: torch.Tensor, *_: Any, **__: Any) -> str | None:
    if x.device.type != "cpu":
        return f"reads expert ids on the host, so x must be on the CPU, got {x.device}"
    return None


@register_kernel("moe_experts", "torch_loop", Priority.PERFORMANT, supports=_supports_loop)
def moe_experts_loop(
    x: torch.Tensor,
    w_gate_up: torch.Tensor,
    w_down: torch.Tensor,
    weights: torch.Tensor,
    expert_ids: torch.Tensor,
) -> torch.Tensor:
    """Loops over the chosen experts, behind `trtllm_ext::moe_experts`."""
    out: torch.Tensor = _moe_experts_op(x, w_gate_up, w_down, weights, expert_ids)
    return out


def _supports_grouped(
    x: torch.Tensor, w_gate_up: torch.Tensor, w_down: torch.Tensor, *_: Any, **__: Any
) -> str | None:
    if not hasattr(functional, "grouped_mm"):
        return f"torch {torch.__version__} has no torch.nn.functional.grouped_mm"
    if x.dtype == torch.float64:
        return "no grouped product in float64"
    if x.device.type == "cuda":
        sm = probe(x.device).sm or 0
        if x.dtype != torch.bfloat16:
            return f"on CUDA the dtype must be bfloat16, got {x.dtype}"
        if sm < 90:  # older devices take a path that reads the offsets on the host
            return f"needs compute capability 9.0, got sm_{sm}"
    sizes = (w_gate_up.shape[1], *w_down.shape[1:])
    if any(size % 8 for size in sizes):
        return f"hidden and intermediate sizes must be multiples of 8, got {sizes}"
    return None


@register_kernel("moe_experts", "torch_grouped", Priority.PORTABLE + 1, supports=_supports_grouped)
def moe_experts_grouped(
    x: torch.Tensor,
    w_gate_up: torch.Tensor,
    w_down: torch.Tensor,
    weights: torch.Tensor,
    expert_ids: torch.Tensor,
) -> torch.Tensor:
    """Two grouped products over pairs sorted by expert, with group ends found on the device."""
    rows, sorted_ids, order = _sorted_pairs(x, expert_ids)
    experts = torch.arange(w_down.shape[0], device=x.device)
    ends = torch.searchsorted(sorted_ids, experts, right=True, out_int32=True)
    gate_up = functional.grouped_mm(rows, w_gate_up.transpose(1, 2), offs=ends)
    results = functional.grouped_mm(_gated(gate_up), w_down.transpose(1, 2), offs=ends)
    return _combined(results, order, weights)


def _supports_dense(x: torch.Tensor, w_gate_up: torch.Tensor, *_: Any, **__: Any) -> str | None:
    elements = x.shape[0] * w_gate_up.shape[0] * w_gate_up.shape[1]
    if elements > _MAX_DENSE_ELEMENTS:
        return (
            f"num_experts * num_tokens * 2 * intermediate_size must be at most "
            f"{_MAX_DENSE_ELEMENTS}, got {elements}"
        )
    return None


@register_kernel("moe_experts", "torch_dense", Priority.PORTABLE, supports=_supports_dense)
def moe_experts_dense(
    x: torch.Tensor,
    w_gate_up: torch.Tensor,
    w_down: torch.Tensor,
    weights: torch.Tensor,
    expert_ids: torch.Tensor,
) -> torch.Tensor:
    """Runs every expert on every token; unchosen pairs get a factor of zero."""
    factors = weights.new_zeros(x.shape[0], w_down.shape[0]).scatter_add_(1, expert_ids, weights)
    hidden = _gated(torch.matmul(x, w_gate_up.transpose(1, 2)))  # [num_experts, num_tokens, inter]
    hidden.mul_(factors.t().unsqueeze(-1))
    return torch.bmm(hidden, w_down.transpose(1, 2)).sum(dim=0)


def _moe_experts_nvfp4_cpu(
    x: torch.Tensor,
    gate_up: torch.Tensor,
    gate_up_block_scale: torch.Tensor,
    gate_up_global_scale: torch.Tensor,
    gate_up_input_scale: torch.Tensor | None,
    down: torch.Tensor,
    down_block_scale: torch.Tensor,
    down_global_scale: torch.Tensor,
    down_input_scale: torch.Tensor | None,
    weights: torch.Tensor,
    expert_ids: torch.Tensor,
) -> torch.Tensor:
    """Reads the ids on the host; may run only behind the library op.

    Pairs are sorted by expert, so that each chosen expert is unpacked once, tile by tile.
    """
    first = PackedExperts(
        data=gate_up,
        block_scale=gate_up_block_scale,
        global_scale=gate_up_global_scale,
        input_scale=gate_up_input_scale,
    )
    second = PackedExperts(
        data=down,
        block_scale=down_block_scale,
        global_scale=down_global_scale,
        input_scale=down_input_scale,
    )
    rows, sorted_ids, order = _sorted_pairs(x, expert_ids)
    results = x.new_empty(rows.shape[0], x.shape[1])
    begin = 0
    for expert, count in zip(*_runs(sorted_ids.tolist()), strict=True):
        own = slice(begin, begin + count)
        hidden = _gated(nvfp4_linear(rows[own], *first.expert(expert)))
        results[own] = nvfp4_linear(hidden, *second.expert(expert))
        begin += count
    return _combined(results, order, weights)


_library.define(  # type: ignore[no-untyped-call]
    "moe_experts_nvfp4(Tensor x, Tensor gate_up, Tensor gate_up_block_scale,"
    " Tensor gate_up_global_scale, Tensor? gate_up_input_scale, Tensor down,"
    " Tensor down_block_scale, Tensor down_global_scale, Tensor? down_input_scale,"
    " Tensor weights, Tensor expert_ids) -> Tensor"
)
_library.impl("moe_experts_nvfp4", _moe_experts_nvfp4_cpu, "CPU")  # type: ignore[no-untyped-call]


@torch.library.register_fake("trtllm_ext::moe_experts_nvfp4", lib=_library)  # type: ignore[untyped-decorator]
def _moe_experts_nvfp4_fake(x: torch.Tensor, *_: torch.Tensor | None) -> torch.Tensor:
    return torch.empty_like(x)


_moe_experts_nvfp4_op = torch.ops.trtllm_ext.moe_experts_nvfp4.default


@register_kernel("moe_experts_nvfp4", "torch_loop", Priority.PERFORMANT, supports=_supports_loop)
def moe_experts_nvfp4_loop(
    x: torch.Tensor,
    gate_up: PackedExperts,
    down: PackedExperts,
    weights: torch.Tensor,
    expert_ids: torch.Tensor,
) -> torch.Tensor:
    """Loops over the chosen experts, behind `trtllm_ext::moe_experts_nvfp4`."""
    stacks = (
        tensor
        for stack in (gate_up, down)
        for tensor in (stack.data, stack.block_scale, stack.global_scale, stack.input_scale)
    )
    out: torch.Tensor = _moe_experts_nvfp4_op(x, *stacks, weights, expert_ids)
    return out


@register_kernel("moe_experts_nvfp4", "torch_every", Priority.PORTABLE)
def moe_experts_nvfp4_every(
    x: torch.Tensor,
    gate_up: PackedExperts,
    down: PackedExperts,
    weights: torch.Tensor,
    expert_ids: torch.Tensor,
) -> torch.Tensor:
    """Runs every expert on every token, one after the other, and reads nothing on the host."""
    factors = weights.new_zeros(x.shape[0], down.num_experts).scatter_add_(1, expert_ids, weights)
    wide = torch.promote_types(x.dtype, torch.float32)
    out = torch.zeros_like(x, dtype=wide)
    for expert in range(down.num_experts):
        hidden = _gated(nvfp4_linear(x, *gate_up.expert(expert)))
        result = nvfp4_linear(hidden, *down.expert(expert))
        out.addcmul_(result.to(wide), factors[:, expert, None].to(wide))
    return out.to(x.dtype)
