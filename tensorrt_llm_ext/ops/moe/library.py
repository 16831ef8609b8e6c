# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The mixture of experts as `torch.library` ops.

`trtllm_ext::moe_experts` and `moe_experts_nvfp4` are defined in `torch_kernels`, where the loop of
the CPU stands behind them; here they get what runs on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from tensorrt_llm_ext.ops.moe.packed import PackedExperts

_NAMESPACE: Final = "trtllm_ext"
_library = torch.library.Library(_NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]
_ROUTE: Final = (
    "moe_route(Tensor logits, Tensor bias, *, int num_groups, int topk_group, int top_k,"
    " bool norm_topk_prob, float routed_scaling_factor) -> (Tensor, Tensor)"
)


def _fake_route(
    logits: torch.Tensor, bias: torch.Tensor, *, top_k: int, **_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    rows = logits.shape[0]
    return logits.new_empty(rows, top_k), logits.new_empty(rows, top_k, dtype=torch.int64)


def register(
    *, route: Callable[..., Any], experts: Callable[..., Any], packed: Callable[..., Any]
) -> None:
    """Defines the library ops over the public ones; called once, when the family is imported."""

    def run_packed(x: torch.Tensor, *rest: Any) -> torch.Tensor:
        *stacks, weights, expert_ids = rest
        gate_up, down = (
            PackedExperts(
                data=data, block_scale=block_scale, global_scale=global_scale, input_scale=scale
            )
            for data, block_scale, global_scale, scale in (stacks[:4], stacks[4:])
        )
        out: torch.Tensor = packed(x, gate_up, down, weights, expert_ids)
        return out

    _library.define(_ROUTE)  # type: ignore[no-untyped-call]
    _library.impl("moe_route", route, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"{_NAMESPACE}::moe_route", _fake_route, lib=_library)
    _library.impl("moe_experts", experts, "CUDA")  # type: ignore[no-untyped-call]
    _library.impl("moe_experts_nvfp4", run_packed, "CUDA")  # type: ignore[no-untyped-call]
