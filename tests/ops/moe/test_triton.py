# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The Triton kernels of experts: both ways of filling blocks, empty rows, big and small blocks."""

from __future__ import annotations

import pytest
import torch

from tensorrt_llm_ext import _triton

if not _triton.AVAILABLE:
    pytest.skip("needs Triton", allow_module_level=True)
if not (_triton.INTERPRETING or torch.cuda.is_available()):
    pytest.skip("needs a GPU or Triton's interpreter", allow_module_level=True)

from tensorrt_llm_ext.ops.moe import moe_experts, moe_route, triton_kernels
from tensorrt_llm_ext.ops.testing import assert_close

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def ids_of(num_tokens: int, num_experts: int, top_k: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    # Squared, so that low experts are popular and some are idle.
    chances = torch.rand(num_tokens, num_experts, generator=generator)
    chances *= torch.linspace(1, 0.1, num_experts) ** 2
    return chances.topk(top_k).indices.to(DEVICE)


def blocks_of(aligned: triton_kernels.Aligned, block_m: int) -> list[tuple[int, list[int]]]:
    rows = aligned.sorted_pairs.view(-1, block_m).tolist()
    return list(zip(aligned.block_experts.tolist(), rows, strict=True))


@pytest.mark.parametrize(
    ("num_tokens", "num_experts", "top_k", "block_m"),
    [
        (1, 8, 2, 16),
        (7, 40, 6, 16),
        (33, 5, 3, 16),
        (64, 2, 1, 16),
        (9, 384, 8, 16),
        (90, 3, 2, 64),
    ],
)
def test_every_pair_has_one_row(
    num_tokens: int, num_experts: int, top_k: int, block_m: int
) -> None:
    ids = ids_of(num_tokens, num_experts, top_k, seed=num_tokens)
    flat, pairs = ids.flatten().tolist(), ids.numel()
    max_blocks = min(pairs, num_experts) + pairs // block_m
    ours = triton_kernels.align(ids, num_experts, block_m)
    sorting = triton_kernels._align_by_sorting(ids.flatten(), num_experts, block_m, max_blocks)
    assert blocks_of(ours, block_m) == blocks_of(sorting, block_m)
    seen = []
    for expert, rows in blocks_of(ours, block_m):
        real = [row for row in rows if row < pairs]
        assert all(flat[row] == expert for row in real)
        assert bool(real) == (expert >= 0)
        seen += real
    assert sorted(seen) == list(range(pairs))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_big_blocks_and_strided_rows(dtype: torch.dtype) -> None:
    """More than 16 pairs per expert take blocks of 64 rows; x is the inner part of something."""
    generator = torch.Generator().manual_seed(5)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(DEVICE, dtype)

    wide = numbers(70, 48)
    wide[:, :8] = float("nan")
    x = wide[:, 8:40]
    gate_up, down = numbers(3, 2 * 24, 32) / 6, numbers(3, 32, 24) / 5
    weights, ids = numbers(70, 2).abs(), ids_of(70, 3, 2, seed=1)
    assert triton_kernels._rows_per_block(ids.numel(), 3) == 64
    args = (x, gate_up, down, weights, ids)
    want = moe_experts(*args, kernel="reference")
    assert_close("experts", want, moe_experts(*args, kernel="triton"), op="moe_experts")


def test_ties_take_the_lowest_expert() -> None:
    logits = torch.zeros(2, 12, device=DEVICE)
    logits[1, 7] = 1.0
    options = {"num_groups": 3, "topk_group": 2, "top_k": 3}
    _, ids = moe_route(
        logits,
        torch.zeros(12, device=DEVICE),
        norm_topk_prob=True,
        routed_scaling_factor=1.0,
        kernel="triton",
        **options,
    )
    assert ids.tolist() == [[0, 1, 2], [7, 0, 1]]


def test_opcheck() -> None:
    ops = torch.ops.trtllm_ext
    logits, bias = torch.randn(3, 8), torch.zeros(8)
    options = {"num_groups": 2, "topk_group": 1, "top_k": 2}
    torch.library.opcheck(
        ops.moe_route.default,
        (logits, bias),
        {**options, "norm_topk_prob": True, "routed_scaling_factor": 2.5},
    )
