# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Every kernel of the cache writes equals its reference; the reference equals a rotation."""

from __future__ import annotations

import math

import pytest
import torch

from tensorrt_llm_ext.errors import KernelNotFoundError, ShapeError
from tensorrt_llm_ext.ops.kvcache import gather_latent, mla_rope_append
from tensorrt_llm_ext.ops.kvcache.cases import APPEND_CASES, CASES, GATHER_CASES
from tensorrt_llm_ext.ops.testing import OpCase
from tests.ops.kernel_params import DTYPES, check_kernel, check_reads_nothing, kernel_params


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("case", "kernel"), kernel_params(APPEND_CASES))
def test_mla_rope_append(
    case: OpCase, kernel: str, dtype: torch.dtype, device: torch.device
) -> None:
    check_kernel(case, kernel, dtype, device)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("case", "kernel"), kernel_params(GATHER_CASES))
def test_gather_latent(case: OpCase, kernel: str, dtype: torch.dtype, device: torch.device) -> None:
    check_kernel(case, kernel, dtype, device)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.op}-{case.name}")
def test_reads_nothing_on_the_host(case: OpCase) -> None:
    check_reads_nothing(case, torch.float32)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("case", "kernel"), kernel_params(APPEND_CASES))
def test_half_precision(
    case: OpCase, kernel: str, dtype: torch.dtype, device: torch.device
) -> None:
    check_kernel(case, kernel, dtype, device)


@pytest.mark.parametrize("kernel", ["reference", "torch"])
def test_append_by_hand(kernel: str) -> None:
    # One pair turned by 90 degrees, one by 180, both scaled by 2.
    quarter, half = math.pi / 2, math.pi
    rope_rows = 2 * torch.tensor(
        [[[math.cos(quarter), math.sin(quarter)], [math.cos(half), math.sin(half)]]]
    )
    cache = torch.zeros(2, 2, 5)
    rotated = mla_rope_append(
        torch.tensor([[[1.0, 2.0, 3.0, 4.0]]]),
        torch.tensor([[5.0, 6.0, 7.0, 8.0]]),
        torch.tensor([[9.0]]),
        rope_rows,
        torch.tensor([3]),
        cache,
        has_padding=False,
        kernel=kernel,
    )
    torch.testing.assert_close(rotated, torch.tensor([[[-4.0, 2.0, -6.0, -8.0]]]))
    torch.testing.assert_close(cache[1, 1], torch.tensor([9.0, -12.0, 10.0, -14.0, -16.0]))
    assert not cache[0].any()
    assert not cache[1, 0].any()


@pytest.mark.parametrize("kernel", ["reference", "torch"])
def test_attention_scores_depend_on_distance_only(kernel: str) -> None:
    generator = torch.Generator().manual_seed(3)
    q, k = torch.randn(2, 8, generator=generator, dtype=torch.float64)
    angles = torch.rand(4, generator=generator, dtype=torch.float64)

    def score(q_position: int, k_position: int) -> float:
        positions = torch.tensor([q_position, k_position]).unsqueeze(1)
        rows = torch.stack([(positions * angles).cos(), (positions * angles).sin()], dim=-1)
        cache = torch.zeros(2, 4, 9, dtype=torch.float64)
        rotated = mla_rope_append(
            torch.stack([q, q]).unsqueeze(1),
            torch.stack([k, k]),
            torch.zeros(2, 1, dtype=torch.float64),
            rows,
            torch.tensor([4, 5]),
            cache,
            has_padding=False,
            kernel=kernel,
        )
        return float(rotated[0, 0] @ cache[1, 1, 1:])

    assert score(9, 4) == pytest.approx(score(105, 100), abs=1e-11)
    assert score(9, 4) != pytest.approx(score(9, 5), abs=1e-3)


@pytest.mark.parametrize("kernel", ["reference", "torch"])
def test_null_block_stays_zero(kernel: str) -> None:
    cache = torch.zeros(3, 4, 6)
    nan = torch.full((5, 1, 2), float("nan"))
    mla_rope_append(
        nan,
        nan[:, 0],
        torch.full((5, 4), float("nan")),
        nan,
        torch.tensor([-1, -1, 7, -1, -1]),
        cache,
        has_padding=True,
        kernel=kernel,
    )
    assert not cache[0].any()
    assert cache[1, 3].isnan().all()
    assert cache.isnan().sum() == 6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k_pe": torch.zeros(3, 4)}, r"k_pe has shape \[3, 4\], expected \[2, 4\]"),
        ({"rope_rows": torch.zeros(2, 4, 2)}, r"rope_rows has shape \[2, 4, 2\]"),
        ({"slot_mapping": torch.zeros(3).long()}, "slot_mapping has shape"),
        ({"slot_mapping": torch.zeros(2)}, "expected int64"),
        ({"latent": torch.zeros(2, 4)}, r"latent_cache has shape .* expected \[any, any, 8\]"),
        ({"latent": torch.zeros(2, 3).double()}, "latent has dtype torch.float64"),
        ({"q_pe": torch.zeros(2, 1, 3)}, "qk_rope_head_dim is 3, expected an even number"),
    ],
)
def test_append_refuses(change: dict, message: str) -> None:
    arguments = {
        "q_pe": torch.zeros(2, 1, 4),
        "k_pe": torch.zeros(2, 4),
        "latent": torch.zeros(2, 3),
        "rope_rows": torch.zeros(2, 2, 2),
        "slot_mapping": torch.tensor([4, 5]),
        "latent_cache": torch.zeros(2, 4, 7),
    } | change
    with pytest.raises(ShapeError, match=message):
        mla_rope_append(**arguments, has_padding=False)


def test_gather_refuses_other_integers() -> None:
    with pytest.raises(ShapeError, match=r"slots has dtype torch\.int32, expected int64"):
        gather_latent(torch.zeros(2, 4, 7), torch.zeros(2, dtype=torch.int32))


def test_torch_kernel_declines_a_cache_it_cannot_view() -> None:
    cache = torch.zeros(3, 2, 4, 5)[:, 0]
    with pytest.raises(KernelNotFoundError, match="latent_cache must be contiguous"):
        gather_latent(cache, torch.zeros(2).long(), kernel="torch")
