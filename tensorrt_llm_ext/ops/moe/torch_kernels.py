# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Mixture of experts in plain torch.

On a CPU the expert ids may be read for free, so the loop over the chosen experts touches each
weight once and copies none. That loop is a `torch.library` op, `trtllm_ext::moe_experts`, so that
tracing and FakeTensorMode see one opaque call with a known result shape. On a GPU nothing is read:
`torch_dense` runs every expert on every token.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from tensorrt_llm_ext.ops.registry import Priority, register_kernel

# Elements of the widest intermediate of `torch_dense`, [num_experts, num_tokens, 2 * intermediate].
_MAX_DENSE_ELEMENTS = 1 << 28


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


def _one_token(
    x: torch.Tensor,
    w_gate_up: torch.Tensor,
    w_down: torch.Tensor,
    weights: torch.Tensor,
    expert_ids: torch.Tensor,
) -> torch.Tensor:
    """Matrix-vector products straight on the chosen experts' weights."""
    intermediate_size = w_down.shape[2]
    row = x[0]
    ids, factors = expert_ids[0].tolist(), weights[0].tolist()
    gate_up = torch.stack([torch.mv(w_gate_up[e], row) for e in ids])
    hidden = functional.silu(gate_up[:, :intermediate_size]).mul_(gate_up[:, intermediate_size:])
    out = torch.zeros_like(row)
    for e, vector, factor in zip(ids, hidden.unbind(0), factors, strict=True):
        out.addmv_(w_down[e], vector, alpha=factor)
    return out.unsqueeze(0)


def _sorted_tokens(
    x: torch.Tensor,
    w_gate_up: torch.Tensor,
    w_down: torch.Tensor,
    weights: torch.Tensor,
    expert_ids: torch.Tensor,
) -> torch.Tensor:
    """Sorts (token, expert) pairs by expert, so that each chosen expert is two products."""
    num_tokens, top_k = expert_ids.shape
    intermediate_size = w_down.shape[2]
    sorted_ids, order = expert_ids.flatten().sort(stable=True)
    rows = x.index_select(0, order.div(top_k, rounding_mode="floor"))
    gate_up = x.new_empty(order.shape[0], w_gate_up.shape[1])
    spans = _spans(sorted_ids.tolist())
    for expert, first, stop in spans:
        torch.mm(rows[first:stop], w_gate_up[expert].t(), out=gate_up[first:stop])
    hidden = functional.silu(gate_up[:, :intermediate_size]).mul_(gate_up[:, intermediate_size:])
    hidden.mul_(weights.flatten().index_select(0, order).unsqueeze(1))
    results = torch.empty_like(rows)
    for expert, first, stop in spans:
        torch.mm(hidden[first:stop], w_down[expert].t(), out=results[first:stop])
    pairs = torch.empty_like(results).index_copy_(0, order, results)
    return pairs.view(num_tokens, top_k, rows.shape[1]).sum(dim=1)


def _spans(sorted_ids: list[int]) -> list[tuple[int, int, int]]:
    """Returns (expert, first, stop) for each run of equal ids."""
    spans: list[tuple[int, int, int]] = []
    first = 0
    for stop in range(1, len(sorted_ids) + 1):
        if stop == len(sorted_ids) or sorted_ids[stop] != sorted_ids[first]:
            spans.append((sorted_ids[first], first, stop))
            first = stop
    return spans


def _moe_experts_cpu(
    x: torch.Tensor,
    w_gate_up: torch.Tensor,
    w_down: torch.Tensor,
    weights: torch.Tensor,
    expert_ids: torch.Tensor,
) -> torch.Tensor:
    """Reads the ids on the host; may run only behind the library op."""
    run = _one_token if x.shape[0] == 1 else _sorted_tokens
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
    num_experts, _, intermediate_size = w_down.shape
    factors = weights.new_zeros(x.shape[0], num_experts).scatter_add_(1, expert_ids, weights)
    gate_up = torch.matmul(x, w_gate_up.transpose(1, 2))  # [num_experts, num_tokens, 2 * inter]
    gate, up = gate_up[..., :intermediate_size], gate_up[..., intermediate_size:]
    hidden = functional.silu(gate).mul_(up)
    hidden.mul_(factors.t().unsqueeze(-1))
    return torch.bmm(hidden, w_down.transpose(1, 2)).sum(dim=0)
