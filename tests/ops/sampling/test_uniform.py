# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The counter-based generator: golden numbers, equal spread, no link between neighbours."""

from __future__ import annotations

import pytest
import torch

from tensorrt_llm_ext.errors import ShapeError
from tensorrt_llm_ext.ops.sampling import uniform
from tensorrt_llm_ext.ops.sampling.cases import UNIFORM_CASES
from tensorrt_llm_ext.ops.sampling.reference import _mix
from tensorrt_llm_ext.ops.testing import OpCase
from tests.ops.chi_square import p_value
from tests.ops.kernel_params import check_kernel, kernel_params

GAMMA = 0x9E3779B97F4A7C15


@pytest.mark.parametrize(("case", "kernel"), kernel_params(UNIFORM_CASES))
def test_uniform(case: OpCase, kernel: str, device: torch.device) -> None:
    check_kernel(case, kernel, torch.float64, device)


def test_mixer_is_splitmix64() -> None:
    # The first outputs of SplitMix64 from state 0, as published with its reference code.
    want = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert [_mix(i * GAMMA % 2**64) for i in (1, 2, 3)] == want


@pytest.mark.parametrize("kernel", ["reference", "torch"])
def test_golden_numbers(kernel: str) -> None:
    # Written down from integer arithmetic; a change of these changes every seeded text.
    seeds = torch.tensor([0, 0, 1, 42, -1])
    positions = torch.tensor([0, 1, 0, 1000, 7])
    got = uniform(seeds, positions, kernel=kernel) * 2**53
    assert got.long().tolist() == [
        5876733520225071,
        6315957190297641,
        3316356330981164,
        6262343911189065,
        6519935711424360,
    ]


def bits(x: torch.Tensor) -> torch.Tensor:
    """The three highest bits: a number in 0..7."""
    return (x * 8).long()


@pytest.mark.parametrize("axis", ["seeds", "positions"])
def test_spread_is_equal(axis: str) -> None:
    counter = torch.arange(40_000)
    fixed = torch.full_like(counter, 123)
    numbers = uniform(counter, fixed) if axis == "seeds" else uniform(fixed, counter)
    assert numbers.min() >= 0
    assert numbers.max() < 1
    for low_bits in (1, 2**20):  # the highest six bits, and six bits in the middle
        bins = (numbers * low_bits % 1 * 64).long()
        assert p_value(torch.bincount(bins, minlength=64), torch.full((64,), 1 / 64)) > 1e-4


@pytest.mark.parametrize("step", [(1, 0), (0, 1), (1, 1), (1, -1), (0, 64), (2**32, 0)])
def test_neighbours_are_independent(step: tuple[int, int]) -> None:
    seeds = torch.arange(200).repeat_interleave(200)
    positions = torch.arange(200).repeat(200)
    first = bits(uniform(seeds, positions))
    second = bits(uniform(seeds + step[0], positions + step[1]))
    counts = torch.bincount(first * 8 + second, minlength=64)
    assert p_value(counts, torch.full((64,), 1 / 64)) > 1e-4


def test_every_input_bit_moves_half_of_the_output() -> None:
    counter = torch.arange(500)
    base = (uniform(counter, counter * 3) * 2**53).long()
    for bit in range(63):
        for flip in ((1 << bit, 0), (0, 1 << bit)):
            other = uniform(counter ^ flip[0], (counter * 3) ^ flip[1])
            changed = base ^ (other * 2**53).long()
            share = sum(((changed >> i) & 1).double().mean().item() for i in range(53)) / 53
            assert 0.47 < share < 0.53, (bit, flip, share)


def test_uniform_refuses() -> None:
    with pytest.raises(ShapeError, match="seeds has dtype"):
        uniform(torch.zeros(2), torch.zeros(2).long())
    with pytest.raises(ShapeError, match=r"positions has shape \[3\], expected \[2\]"):
        uniform(torch.zeros(2).long(), torch.zeros(3).long())
