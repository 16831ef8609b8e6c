# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import random

import pytest

from tensorrt_llm_ext.errors import ConfigError
from tensorrt_llm_ext.quantizing.acceptance import acceptance_ratio
from tensorrt_llm_ext.speculative.stats import AcceptanceStats


def stats(accepted: list[int], num_drafts: int = 3) -> AcceptanceStats:
    result = AcceptanceStats()
    for count in accepted:
        result.record(num_drafts, count)
    return result


def test_the_same_run_is_one() -> None:
    runs = [stats([3, 2, i % 4]) for i in range(20)]
    ratio = acceptance_ratio(runs, runs)
    assert (ratio.value, ratio.low, ratio.high) == (1.0, 1.0, 1.0)


def test_ratio_is_of_pooled_lengths() -> None:
    base = [stats([3, 3]), stats([1]), stats([2, 2]), stats([3])]
    other = [stats([3, 0, 1]), stats([1]), stats([2, 1]), stats([3])]
    ratio = acceptance_ratio(base, other)
    assert ratio.value == pytest.approx((18 / 7) / (20 / 6))
    assert ratio.low <= ratio.value <= ratio.high


def test_pairs_are_resampled_together() -> None:
    """A prompt on which both do well must not widen the interval."""
    rng = random.Random(1)
    base = [stats([level] * 5) for level in (0, 3) * 30]
    other = [stats([level] * 5) for level in (0, 3) * 30]
    paired = acceptance_ratio(base, other)
    rng.shuffle(other)
    unpaired = acceptance_ratio(base, other)
    assert paired.high - paired.low < 1e-12
    assert unpaired.high - unpaired.low > 0.1


def test_interval_covers_the_truth() -> None:
    """95 % intervals of two drafts of one quality cover 1 about so often."""
    rng = random.Random(7)
    covered = 0
    for trial in range(40):
        draws = [
            [stats([rng.choice((0, 1, 2, 3)) for _ in range(8)]) for _ in range(30)]
            for _ in range(2)
        ]
        ratio = acceptance_ratio(*draws, seed=trial)
        covered += ratio.low <= 1.0 <= ratio.high
    assert 33 <= covered <= 40


def test_too_few_prompts_say_nothing() -> None:
    ratio = acceptance_ratio([stats([1])], [stats([2])])
    assert ratio.value == 1.5
    assert (ratio.low, ratio.high) == (float("-inf"), float("inf"))


def test_other_prompts_are_refused() -> None:
    with pytest.raises(ConfigError, match="cannot be paired"):
        acceptance_ratio([stats([1])], [])
    with pytest.raises(ConfigError, match="No prompt had a verify step"):
        acceptance_ratio([stats([])], [stats([])])
