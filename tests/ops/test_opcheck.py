# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Every `trtllm_ext::` op keeps the rules of `torch.library`: schema, fake result, no aliasing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tensorrt_llm_ext.ops.attention
import tensorrt_llm_ext.ops.kvcache
import tensorrt_llm_ext.ops.moe
import tensorrt_llm_ext.ops.norm
import tensorrt_llm_ext.ops.nvfp4
import tensorrt_llm_ext.ops.sampling  # noqa: F401  (they define the ops)
from tensorrt_llm_ext.ops.nvfp4 import nvfp4_quantize

Call = tuple[tuple[Any, ...], dict[str, Any]]
ONE = torch.tensor(0.01)


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def ids(*shape: int, below: int = 4) -> torch.Tensor:
    return torch.randint(0, below, shape, generator=torch.Generator().manual_seed(1))


def packed(rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return (*nvfp4_quantize(rand(rows, columns), ONE), ONE)


def stack(rows: int, columns: int) -> tuple[Any, ...]:
    parts = [packed(rows, columns) for _ in range(4)]
    scales = torch.stack([scale.view(torch.uint8) for _, scale, _ in parts])
    data = torch.stack([data for data, _, _ in parts])
    return data, scales.view(torch.float8_e4m3fn), ONE.expand(4).contiguous(), None


def decode() -> Call:
    q, cache = rand(2, 2, 3, 24), rand(5, 4, 24)
    table, positions = torch.tensor([[1, 2], [3, 4]]), torch.tensor([[4, 5], [1, 2]])
    return (q, cache, table, positions, 4, 16, 0.2), {}


def prefill() -> Call:
    parts = (rand(3, 2, 8), rand(3, 2, 8), rand(5, 4, 24), torch.tensor([1, 2]))
    return (*parts, 2, 4, rand(2, 8, 16), rand(2, 16, 8), 0.2), {}


def append() -> Call:
    args = (rand(3, 2, 8), rand(3, 8), rand(3, 16), rand(3, 4, 2), ids(3, below=8), rand(3, 4, 24))
    return args, {"has_padding": False}


def route() -> Call:
    options = {"num_groups": 2, "topk_group": 1, "top_k": 2}
    options |= {"norm_topk_prob": True, "routed_scaling_factor": 2.5}
    return (rand(3, 8), rand(8)), options


def sampled() -> Call:
    uniforms = torch.rand(3, dtype=torch.float64)
    return (rand(3, 9), uniforms, torch.ones(3), torch.full((3,), 4)), {}


CALLS: dict[str, Callable[[], Call]] = {
    "mla_decode": decode,
    "mla_prefill": prefill,
    "mla_rope_append": append,
    "rms_norm": lambda: ((rand(3, 8), rand(8), 1e-6), {}),
    "add_rms_norm": lambda: ((rand(3, 8), rand(3, 8), rand(8), 1e-6), {}),
    "draft_input_norm": lambda: (
        (ids(3), rand(4, 8), rand(8), rand(3, 8), rand(8), 1e-6),
        {},
    ),
    "draft_input_norm_nvfp4": lambda: (
        (ids(3), rand(4, 16), rand(16), rand(3, 16), rand(16), 1e-6, ONE),
        {},
    ),
    "fc_input_norm": lambda: ((rand(3, 24), rand(3, 8), 1e-6), {}),
    "latent_norm_pair": lambda: ((rand(3, 8), rand(3, 4), rand(8), rand(4), 1e-6), {}),
    "nvfp4_quantize": lambda: ((rand(3, 32), ONE), {}),
    "nvfp4_dequantize": lambda: ((*packed(3, 32), torch.bfloat16), {}),
    "nvfp4_fake_quantize": lambda: ((rand(3, 32), ONE, True), {}),
    "nvfp4_linear": lambda: ((rand(2, 32), *packed(5, 32)), {}),
    "moe_route": route,
    "moe_experts": lambda: (
        (rand(3, 16), rand(4, 16, 16), rand(4, 16, 8), rand(3, 2), ids(3, 2)),
        {},
    ),
    "moe_experts_nvfp4": lambda: (
        (rand(3, 32), *stack(64, 32), *stack(32, 32), rand(3, 2), ids(3, 2)),
        {},
    ),
    "uniform": lambda: ((ids(4), ids(4)), {}),
    "process_logits": lambda: ((rand(3, 9), torch.ones(3)), {}),
    "sample": sampled,
    "verify_greedy": lambda: ((ids(4, 3), ids(4, 2), torch.full((4,), 2)), {}),
    "verify_rejection": lambda: (
        (
            rand(4, 3, 9).softmax(-1),
            rand(4, 2, 9).softmax(-1),
            ids(4, 2),
            torch.full((4,), 2),
            torch.rand(4, 2, dtype=torch.float64),
            torch.rand(4, dtype=torch.float64),
        ),
        {},
    ),
    "lm_head_argmax": lambda: ((rand(3, 16), rand(9, 16), torch.arange(9)), {}),
    "lm_head_max": lambda: ((rand(3, 16), rand(9, 16)), {}),
}


def defined() -> set[str]:
    names = torch._C._dispatch_get_all_op_names()
    mine = (name for name in names if name.startswith("trtllm_ext::"))
    return {name.removeprefix("trtllm_ext::").partition(".")[0] for name in mine}


def test_every_op_has_a_call() -> None:
    assert defined() == set(CALLS)


UTILS = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")


def bits(value: torch.Tensor) -> torch.Tensor:
    return value.reshape(-1).view(torch.uint8).clone()


@pytest.mark.parametrize("name", sorted(CALLS))
def test_opcheck(name: str) -> None:
    args, kwargs = CALLS[name]()
    op = getattr(torch.ops.trtllm_ext, name).default
    tensors = [value for value in args if isinstance(value, torch.Tensor)]
    if all(tensor.dtype != torch.float8_e4m3fn for tensor in tensors):
        torch.library.opcheck(op, args, kwargs)
        return
    # torch's check of the schema cannot compare float8; it asks whether inputs stay as they were.
    torch.library.opcheck(op, args, kwargs, test_utils=UTILS)
    before = [bits(tensor) for tensor in tensors]
    op(*args, **kwargs)
    assert all(torch.equal(old, bits(new)) for old, new in zip(before, tensors, strict=True))
