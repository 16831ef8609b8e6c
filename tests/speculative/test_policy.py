# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

from hypothesis import given
from hypothesis import strategies as st

from tensorrt_llm_ext.speculative.policy import clip_draft_len, reserved_positions


@given(st.integers(0, 8), st.integers(1, 60), st.integers(1, 64), st.integers(1, 64))
def test_clipping_keeps_every_position_inside(draft_len, num_tokens, max_seq_len, table):
    kept = clip_draft_len(draft_len, num_tokens, max_seq_len, table)

    assert 0 <= kept <= draft_len
    for draft in range(1, kept + 1):
        verified_at = num_tokens - 1 + draft
        proposed_at = num_tokens - 3 + draft
        assert verified_at < max_seq_len
        assert proposed_at < table


@given(st.integers(0, 8), st.integers(2, 60), st.integers(1, 64), st.integers(1, 64))
def test_clipping_drops_nothing_that_fits(draft_len, num_tokens, max_seq_len, table):
    kept = clip_draft_len(draft_len, num_tokens, max_seq_len, table)

    if kept < draft_len:
        too_late = num_tokens - 1 + kept + 1 >= max_seq_len
        past_table = num_tokens - 3 + kept + 1 >= table
        assert too_late or past_table


def test_reservation_is_the_designs_formula():
    assert reserved_positions(10, 3, 3, 100) == 10 + 3 + 2
    assert reserved_positions(10, 0, 0, 100) == 10
    assert reserved_positions(10, 3, 1, 100) == 13
    assert reserved_positions(98, 2, 8, 100) == 100
