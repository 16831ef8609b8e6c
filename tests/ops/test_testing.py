# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The comparison that every kernel test rests on can fail, and says where."""

from __future__ import annotations

import pytest
import torch

from tensorrt_llm_ext.ops.norm.cases import RMS_CASES
from tensorrt_llm_ext.ops.testing import assert_close, strided, tolerance

INF, NAN = float("inf"), float("nan")


def test_assert_close_accepts_the_tolerance_and_no_more() -> None:
    want = torch.tensor([1.0, -2.0]).double()
    rtol, atol = tolerance("", torch.float64)
    assert_close("x", want, want + 0.9 * (atol + rtol))
    with pytest.raises(AssertionError):
        assert_close("x", want, want + 3.1 * (atol + rtol))


def test_assert_close_reports_the_position() -> None:
    want = torch.zeros(2, 3)
    got = want.clone()
    got[1, 2] = 0.5
    with pytest.raises(AssertionError) as error:
        assert_close("latent", want, got)
    message = str(error.value)
    assert message.startswith("latent: 1 of 6 elements differ by more than rtol")
    assert "at [1, 2]: got 0.5, expected 0" in message


@pytest.mark.parametrize(
    ("want", "got"),
    [
        ([1.0], [NAN]),
        ([NAN], [NAN]),
        ([INF], [-INF]),
        ([INF], [1.0]),
        ([1.0], [-INF]),
        ([1.0], [1.0, 1.0]),
    ],
)
def test_assert_close_refuses(want: list[float], got: list[float]) -> None:
    with pytest.raises(AssertionError):
        assert_close("x", torch.tensor(want), torch.tensor(got))


def test_assert_close_is_exact_on_integers_and_infinities() -> None:
    assert_close("x", torch.tensor([INF, -INF, 0.0]), torch.tensor([INF, -INF, 0.0]))
    assert_close("x", torch.tensor([1, 2]), torch.tensor([1, 2]))
    with pytest.raises(AssertionError):
        assert_close("x", torch.tensor([10**9]), torch.tensor([10**9 + 1]))
    with pytest.raises(AssertionError, match=r"got torch\.int64 .*, expected torch\.float32"):
        assert_close("x", torch.tensor([1.0]), torch.tensor([1]))


def test_cases_are_repeatable() -> None:
    case = RMS_CASES[0]
    first = case.inputs(torch.float64, torch.device("cpu"))
    second = case.inputs(torch.float64, torch.device("cpu"))
    assert torch.equal(first["x"], second["x"])
    narrow = case.inputs(torch.float32, torch.device("cpu"))
    assert torch.equal(narrow["x"], first["x"].float())


def test_strided_keeps_values_and_surrounds_them_with_nan() -> None:
    rows = torch.arange(6.0).view(2, 3)
    view = strided(rows)
    assert torch.equal(view, rows)
    assert not view.is_contiguous()
    assert view._base is not None
    assert view._base.isnan().sum() == view._base.numel() - 6
