# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Every expert and router kernel equals its reference; the references equal transformers'."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from tensorrt_llm_ext.errors import ShapeError
from tensorrt_llm_ext.ops.moe import PackedExperts, moe_experts, moe_experts_nvfp4, moe_route
from tensorrt_llm_ext.ops.moe.cases import CASES, EXPERT_CASES, PACKED_CASES, ROUTE_CASES
from tensorrt_llm_ext.ops.nvfp4 import nvfp4_dequantize
from tensorrt_llm_ext.ops.testing import OpCase
from tests.ops.kernel_params import DTYPES, check_kernel, check_reads_nothing, kernel_params


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("case", "kernel"), kernel_params(ROUTE_CASES))
def test_moe_route(case: OpCase, kernel: str, dtype: torch.dtype, device: torch.device) -> None:
    check_kernel(case, kernel, dtype, device)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("case", "kernel"), kernel_params(EXPERT_CASES))
def test_moe_experts(case: OpCase, kernel: str, dtype: torch.dtype, device: torch.device) -> None:
    check_kernel(case, kernel, dtype, device)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("case", "kernel"), kernel_params(PACKED_CASES))
def test_moe_experts_nvfp4(
    case: OpCase, kernel: str, dtype: torch.dtype, device: torch.device
) -> None:
    check_kernel(case, kernel, dtype, device)


@pytest.mark.parametrize("kernel", ["reference", "torch_loop", "torch_every"])
def test_packed_experts_equal_dequantized_ones(kernel: str) -> None:
    inputs = PACKED_CASES[1].inputs(torch.float64, torch.device("cpu"))

    def dense(stack: PackedExperts) -> torch.Tensor:
        return torch.stack(
            [nvfp4_dequantize(*stack.expert(e)[:3], torch.float64) for e in range(5)]
        )

    want = moe_experts(
        inputs["x"],
        dense(inputs["gate_up"]),
        dense(inputs["down"]),
        inputs["weights"],
        inputs["expert_ids"],
    )
    torch.testing.assert_close(moe_experts_nvfp4(**inputs, kernel=kernel), want)


def test_packed_experts_refuse() -> None:
    inputs = PACKED_CASES[0].inputs(torch.float32, torch.device("cpu"))
    down = inputs["down"]
    changes = (
        ({"data": down.data[:, :, :4]}, r"gate_up\.data has shape"),
        ({"block_scale": down.block_scale[:, :, :1]}, r"down\.block_scale has shape"),
        ({"global_scale": down.global_scale.double()}, "dtypes"),
        ({"input_scale": torch.ones(5)}, r"down\.input_scale has shape"),
    )
    for change, message in changes:
        with pytest.raises(ShapeError, match=message):
            moe_experts_nvfp4(**{**inputs, "down": dataclasses.replace(down, **change)})


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.op}-{case.name}")
def test_reads_nothing_on_the_host(case: OpCase) -> None:
    check_reads_nothing(case, torch.float32)


@pytest.mark.parametrize(
    ("case", "kernel"),
    # In W4A4 another order of sums may flip a bfloat16 and with it a code.
    kernel_params(EXPERT_CASES + tuple(c for c in PACKED_CASES if "w4a4" not in c.name)),
)
def test_bfloat16(case: OpCase, kernel: str) -> None:
    check_kernel(case, kernel, torch.bfloat16, torch.device("cpu"))


@pytest.mark.parametrize("kernel", ["reference", "torch"])
@pytest.mark.parametrize("norm_topk_prob", [True, False])
@pytest.mark.parametrize(
    ("num_experts", "num_groups", "topk_group", "top_k"),
    [(16, 1, 1, 4), (32, 8, 4, 6), (8, 2, 1, 3)],
)
def test_route_is_transformers(
    kernel: str,
    norm_topk_prob: bool,
    num_experts: int,
    num_groups: int,
    topk_group: int,
    top_k: int,
) -> None:
    modeling = pytest.importorskip("transformers.models.deepseek_v3.modeling_deepseek_v3")
    config = modeling.DeepseekV3Config(
        n_routed_experts=num_experts,
        n_group=num_groups,
        topk_group=topk_group,
        num_experts_per_tok=top_k,
        norm_topk_prob=norm_topk_prob,
        routed_scaling_factor=1.7,
        hidden_size=12,
    )
    generator = torch.Generator().manual_seed(num_experts)
    router = modeling.DeepseekV3TopkRouter(config)
    with torch.no_grad():
        router.weight.copy_(torch.randn(num_experts, 12, generator=generator))
        # Above zero, so that a refused group's score of 0 (transformers 4) is never the best.
        router.e_score_correction_bias.copy_(torch.rand(num_experts, generator=generator) * 0.2)
        hidden = torch.randn(1, 50, 12, generator=generator)
        result = router(hidden)
    ids, want = (result[0], result[1]) if len(result) == 2 else (result[2], result[1])
    weights, expert_ids = moe_route(
        functional.linear(hidden[0], router.weight.detach()),
        router.e_score_correction_bias.detach(),
        num_groups=num_groups,
        topk_group=topk_group,
        top_k=top_k,
        norm_topk_prob=norm_topk_prob,
        routed_scaling_factor=1.7,
        kernel=kernel,
    )

    def dense(weights: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return torch.zeros(50, num_experts).scatter_(1, ids, weights)

    torch.testing.assert_close(dense(weights, expert_ids), dense(want, ids))


@pytest.mark.parametrize("kernel", ["reference", "torch"])
def test_route_by_hand(kernel: str) -> None:
    # Scores 0.5, 0.75, 0.9, 0.8; the bias lifts expert 0 over all and enters no weight.
    scores = torch.tensor([[0.5, 0.75, 0.9, 0.8]], dtype=torch.float64)
    bias = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    weights, expert_ids = moe_route(
        scores.logit(),
        bias,
        num_groups=2,
        topk_group=1,
        top_k=2,
        norm_topk_prob=True,
        routed_scaling_factor=10.0,
        kernel=kernel,
    )
    # Group (0, 1) scores 1.5 + 0.75, group (2, 3) only 1.7.
    got = dict(zip(expert_ids[0].tolist(), weights[0].tolist(), strict=True))
    assert got == pytest.approx({0: 10 * 0.5 / 1.25, 1: 10 * 0.75 / 1.25})


@pytest.mark.parametrize("kernel", ["reference", "torch_loop", "torch_dense"])
def test_experts_are_a_sum_over_gated_mlps(kernel: str) -> None:
    generator = torch.Generator().manual_seed(5)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    x, gate, up, down = numbers(6, 8), numbers(4, 10, 8), numbers(4, 10, 8), numbers(4, 8, 10)
    factors = numbers(6, 4).abs()
    kept, ids = factors.topk(3, dim=1)
    factors = torch.zeros_like(factors).scatter_(1, ids, kept)
    hidden = functional.silu(torch.einsum("th,eih->tei", x, gate))
    hidden = hidden * torch.einsum("th,eih->tei", x, up)
    want = torch.einsum("te,tei,ehi->th", factors, hidden, down)
    got = moe_experts(x, torch.cat([gate, up], dim=1), down, kept, ids, kernel=kernel)
    torch.testing.assert_close(got, want)


def test_experts_op_is_opaque_to_tracing() -> None:
    with FakeTensorMode():
        x = torch.empty(3, 8)
        got = torch.ops.trtllm_ext.moe_experts(
            x, torch.empty(4, 12, 8), torch.empty(4, 8, 6), torch.empty(3, 2), torch.empty(3, 2)
        )
    assert (got.shape, got.dtype) == (x.shape, x.dtype)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_groups": 3}, "8 experts do not split into 3 groups"),
        ({"num_groups": 8, "topk_group": 4}, "expected at least 2"),
        ({"num_groups": 2, "topk_group": 3}, r"topk_group is 3, expected 1..2"),
        ({"num_groups": 4, "topk_group": 1, "top_k": 3}, r"top_k is 3, expected 1..2"),
    ],
)
def test_route_refuses(settings: dict, message: str) -> None:
    arguments = {"num_groups": 1, "topk_group": 1, "top_k": 2} | settings
    with pytest.raises(ShapeError, match=message):
        moe_route(
            torch.zeros(2, 8),
            torch.zeros(8),
            **arguments,
            norm_topk_prob=True,
            routed_scaling_factor=1.0,
        )


def test_experts_refuse() -> None:
    x, w_down = torch.zeros(2, 8), torch.zeros(4, 8, 6)
    weights, ids = torch.zeros(2, 2), torch.zeros(2, 2).long()
    with pytest.raises(ShapeError, match=r"w_gate_up has shape \[4, 6, 8\], expected \[4, 12, 8\]"):
        moe_experts(x, torch.zeros(4, 6, 8), w_down, weights, ids)
    with pytest.raises(ShapeError, match=r"expert_ids has dtype torch\.int32"):
        moe_experts(x, torch.zeros(4, 12, 8), w_down, weights, ids.int())
    with pytest.raises(ShapeError, match="expert_ids has shape"):
        moe_experts(x, torch.zeros(4, 12, 8), w_down, weights, ids[:1])
