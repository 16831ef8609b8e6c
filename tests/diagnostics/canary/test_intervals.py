# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""No setting is accused by chance, and a real difference is found."""

from __future__ import annotations

import pytest
import torch

from tensorrt_llm_ext.diagnostics.canary.intervals import MIN_TEXTS, _student, paired_differences


def counts(
    generator: torch.Generator, num_texts: int, num_settings: int, gain: float = 0.0
) -> tuple[list[torch.Tensor], list[list[torch.Tensor]]]:
    """Accepted drafts that depend on the text; the last setting accepts `gain` more on average."""
    base: list[torch.Tensor] = []
    others: list[list[torch.Tensor]] = [[] for _ in range(num_settings)]
    for _ in range(num_texts):
        num_anchors = int(torch.randint(10, 60, (), generator=generator))
        skill = 1.0 + float(torch.randn((), generator=generator))
        noise = torch.randn((num_settings + 1, num_anchors), generator=generator)
        shared = torch.randn((num_settings + 1, 1), generator=generator)  # clusters
        values = (skill + noise + 0.3 * shared).clamp(0, 3).round()
        base.append(values[0])
        for index in range(num_settings):
            values_of = values[index + 1]
            if index == num_settings - 1 and gain:
                values_of = values_of + gain
            others[index].append(values_of)
    return base, others


@pytest.mark.parametrize("num_texts", [6, 16])
def test_chance_accuses_no_more_often_than_it_may(num_texts: int) -> None:
    generator = torch.Generator().manual_seed(0)
    num_trials, wrong = 120, 0
    for trial in range(num_trials):
        base, others = counts(generator, num_texts, 12)
        found = paired_differences(base, others, confidence=0.9, seed=trial)
        wrong += any(d.low > 0 or d.high < 0 for d in found)
    # 10 % of 120 is 12, with a standard error of 3.3; both directions count here.
    assert 1 <= wrong <= 22


def test_students_quantiles_are_those_of_the_tables() -> None:
    # Two-sided 95 %, 99 % and 99.9 %: z, and t for 5, 7 and 30 degrees of freedom.
    for z, row in {
        1.959964: (2.570582, 2.364624, 2.042272),
        2.575829: (4.032143, 3.499483, 2.749996),
        3.290527: (6.868827, 5.407883, 3.645959),
    }.items():
        for degrees, t in zip((5, 7, 30), row, strict=True):
            assert _student(z, degrees) == pytest.approx(t, rel=0.02)


def test_a_setting_that_hardly_differs_does_not_widen_the_others() -> None:
    generator = torch.Generator().manual_seed(2)
    base, (other,) = counts(generator, 8, 1, gain=1.0)
    rare = [part.clone() for part in base]
    rare[0][0] += 1
    alone = paired_differences(base, [other], confidence=0.99)[0]
    both = paired_differences(base, [other, rare], confidence=0.99)[0]
    assert alone.low > 0.0
    assert both.high - both.low < 1.3 * (alone.high - alone.low)


def test_a_difference_is_found_among_many_that_are_none() -> None:
    generator = torch.Generator().manual_seed(1)
    base, others = counts(generator, 40, 12, gain=0.4)
    found = paired_differences(base, others, confidence=0.99)
    assert found[-1].low > 0.0
    assert abs(found[-1].mean - 0.4) < 0.15
    assert found[-1].low < found[-1].mean < found[-1].high
    assert not any(d.low > 0 for d in found[:-1])


def test_the_mean_is_over_anchors_not_over_texts() -> None:
    base = [torch.zeros(2), torch.zeros(6), torch.zeros(0), torch.zeros(2), torch.zeros(2)]
    other = [torch.ones(2), torch.zeros(6), torch.zeros(0), torch.zeros(2), torch.zeros(2)]
    (difference,) = paired_differences(base, [other])
    assert abs(difference.mean - 2 / 12) < 1e-12


def test_equal_settings_have_no_interval_and_few_texts_an_infinite_one() -> None:
    base = [torch.ones(5) for _ in range(MIN_TEXTS)]
    (same,) = paired_differences(base, [base])
    assert (same.mean, same.low, same.high) == (0.0, 0.0, 0.0)
    few = base[: MIN_TEXTS - 1]
    (unknown,) = paired_differences(few, [[part + 3 for part in few]])
    assert unknown.mean == 3.0
    assert unknown.low == -float("inf")
    assert paired_differences(base, []) == ()
