# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The Triton sampler over several chunks of the vocabulary, and its independence of the batch."""

from __future__ import annotations

import pytest
import torch

from tensorrt_llm_ext import _triton
from tensorrt_llm_ext.errors import KernelNotFoundError
from tensorrt_llm_ext.ops.sampling import (
    SamplingRows,
    lm_head_argmax,
    lm_head_max,
    sample,
    uniform,
)

pytestmark = pytest.mark.skipif(
    not _triton.AVAILABLE or not (_triton.INTERPRETING or torch.cuda.is_available()),
    reason="needs Triton, and a GPU or its interpreter",
)
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
VOCAB = 9001  # three chunks, the last one partly filled


def logits(rows: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(rows, VOCAB, generator=generator).mul(3).to(DEVICE, dtype)


def uniforms(rows: int) -> torch.Tensor:
    return uniform(torch.arange(rows, device=DEVICE), torch.arange(rows, device=DEVICE))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_draws_what_torch_draws(dtype: torch.dtype) -> None:
    temperature = torch.tensor([0.0, 0.3, 1.0, 2.5] * 8, device=DEVICE)
    rows = SamplingRows(temperature=temperature)
    arguments = logits(32, dtype), rows, uniforms(32)
    got = sample(*arguments, kernel="triton")
    assert got.tolist() == sample(*arguments, kernel="torch").tolist()
    assert len({id // 4096 for id in got.tolist()}) == 3


@pytest.mark.parametrize("kernel", ["torch", "triton"])
def test_the_ends_of_the_interval(kernel: str) -> None:
    x = torch.full((4, VOCAB), float("-inf"), device=DEVICE)
    x[:, 17], x[:, 4100], x[:, 8999] = 0.0, 1.0, 0.5
    ends = torch.tensor([0.0, 1.0 - 2.0**-53, 0.5, 0.999999], dtype=torch.float64, device=DEVICE)
    rows = SamplingRows(temperature=torch.ones(4, device=DEVICE))
    assert sample(x, rows, ends, kernel=kernel).tolist() == [17, 8999, 4100, 8999]


def test_a_row_does_not_depend_on_its_batch() -> None:
    x, u = logits(6), uniforms(6)
    temperature = torch.full((6,), 0.8, device=DEVICE)
    together = sample(x, SamplingRows(temperature=temperature), u, kernel="triton")
    for row in range(6):
        at = slice(row, row + 1)
        alone = sample(x[at], SamplingRows(temperature=temperature[at]), u[at], kernel="triton")
        assert alone.tolist() == together[at].tolist()


def test_ties_take_the_lowest_id_over_chunks() -> None:
    x = torch.zeros(3, VOCAB, device=DEVICE)
    x[0, 5000], x[0, 9000] = 1.0, 1.0
    x[1, 8500] = 2.0
    assert sample(x, SamplingRows(), None, kernel="triton").tolist() == [5000, 8500, 0]


def test_declines_what_needs_a_sort() -> None:
    rows = SamplingRows(
        temperature=torch.ones(2, device=DEVICE), top_p=torch.full((2,), 0.5, device=DEVICE)
    )
    with pytest.raises(KernelNotFoundError, match="top_p need the whole row at once"):
        sample(logits(2), rows, uniforms(2), kernel="triton")


def test_rows_of_nan_give_ids_that_exist() -> None:
    x = torch.full((2, VOCAB), float("nan"), device=DEVICE)
    rows = SamplingRows(temperature=torch.tensor([0.0, 1.0], device=DEVICE))
    ids = sample(x, rows, uniforms(2), kernel="triton")
    assert ((ids >= 0) & (ids < VOCAB)).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_shards_of_a_head_agree_on_the_token(dtype: torch.dtype) -> None:
    """Integers, so that products are exact and ties many."""
    generator = torch.Generator().manual_seed(3)
    weight = torch.randint(-2, 3, (300, 64), generator=generator).to(DEVICE, dtype)
    hidden = torch.randint(-2, 3, (20, 64), generator=generator).to(DEVICE, dtype)
    whole, _ = lm_head_argmax(hidden, weight, None, kernel="reference")
    shards = [lm_head_max(hidden, part, kernel="triton") for part in weight.split(100)]
    values = torch.stack([value for value, _ in shards], dim=1)
    ids = torch.stack([ids + 100 * rank for rank, (_, ids) in enumerate(shards)], dim=1)
    winner = values.argmax(dim=1, keepdim=True)
    assert ids.gather(1, winner).squeeze(1).tolist() == whole.tolist()
    assert lm_head_argmax(hidden, weight, None, kernel="triton")[0].tolist() == whole.tolist()
