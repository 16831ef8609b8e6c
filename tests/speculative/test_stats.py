# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrt_llm_ext.speculative.stats import AcceptanceStats

STEPS = st.lists(
    st.integers(0, 8).flatmap(lambda k: st.tuples(st.just(k), st.integers(0, k))), max_size=40
)


def test_acceptance_by_hand():
    stats = AcceptanceStats()
    for num_drafts, num_accepted in [(3, 3), (3, 1), (3, 0), (1, 1), (0, 0)]:
        stats.record(num_drafts, num_accepted)

    assert stats.num_steps == 4
    assert stats.acceptance_length == 1 + 5 / 4
    assert stats.acceptance_rate == 5 / 10
    assert stats.per_position == [3 / 4, 1 / 3, 1 / 3]


def test_without_a_verify_step_there_is_no_rate():
    stats = AcceptanceStats()
    stats.record(0, 0)

    assert stats.acceptance_length is None
    assert stats.acceptance_rate is None
    assert stats.per_position == []


@given(STEPS, STEPS)
def test_merge_equals_recording_all(first, second):
    left, right, both = AcceptanceStats(), AcceptanceStats(), AcceptanceStats()
    for step in first:
        left.record(*step)
        both.record(*step)
    for step in second:
        right.record(*step)
        both.record(*step)

    copy = left.copy()
    copy.merge(right)

    assert copy == both
    assert sum(both.accepted_per_position) == both.num_accepted
    assert sum(both.steps_per_position) == both.num_drafted


@given(st.lists(st.tuples(st.just(3), st.integers(0, 3)), min_size=1, max_size=40))
def test_per_position_never_rises_at_one_length(steps):
    stats = AcceptanceStats()
    for step in steps:
        stats.record(*step)

    assert stats.per_position == sorted(stats.per_position, reverse=True)
    assert stats.acceptance_length == pytest.approx(1 + sum(stats.per_position))
