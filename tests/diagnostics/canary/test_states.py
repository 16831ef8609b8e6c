# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""At which positions drafts can be judged."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tensorrt_llm_ext.diagnostics.canary import TeacherSequence, TeacherStates
from tensorrt_llm_ext.errors import ConfigError, ShapeError


def sequence(ids: list[int], labels: list[int], counted: list[bool] | None = None):
    return TeacherSequence(
        input_ids=torch.tensor(ids),
        states={2: torch.zeros(len(ids), 4)},
        labels=torch.tensor(labels),
        counted=torch.tensor(counted if counted is not None else [True] * len(ids)),
    )


@given(st.data())
def test_an_anchor_counts_if_the_text_is_greedy_over_its_chain(data: st.DataObject) -> None:
    length = data.draw(st.integers(1, 12))
    k = data.draw(st.integers(1, 4))
    tokens = st.lists(st.integers(0, 2), min_size=length, max_size=length)
    ids, labels = data.draw(tokens), data.draw(tokens)
    counted = data.draw(st.lists(st.booleans(), min_size=length, max_size=length))
    # The draft of p sees token p + 1; proposal j (from 1) stands for token p + 1 + j, of which the
    # target's opinion is labels[p + j], known if the tokens p + 2 .. p + j are the target's.
    expected = [
        p
        for p in range(length)
        if counted[p]
        and p + k < length
        and all(labels[p + j] == ids[p + 1 + j] for j in range(1, k))
    ]
    assert sequence(ids, labels, counted).anchors(k).tolist() == expected


def test_rows_must_match_tokens() -> None:
    with pytest.raises(ShapeError, match=r"3 tokens has 2 rows of labels"):
        sequence([1, 2, 3], [1, 2])


def test_all_texts_have_the_same_boundaries() -> None:
    with pytest.raises(ConfigError, match="holds no text"):
        TeacherStates(sequences=(), source="nothing", labels="")
    one = sequence([1, 2], [2, 3])
    other = TeacherSequence(
        input_ids=one.input_ids,
        states={3: torch.zeros(2, 4)},
        labels=one.labels,
        counted=one.counted,
    )
    with pytest.raises(ConfigError, match="not all texts have the same boundaries"):
        TeacherStates(sequences=(one, other), source="a file", labels="")


def test_the_engines_text_is_greedy_everywhere(states: TeacherStates) -> None:
    for text in states.sequences:
        assert torch.equal(text.labels[:-1], text.input_ids[1:])
        anchors = text.anchors(3)
        assert torch.equal(anchors, text.counted.nonzero().flatten())  # none is lost at the end
        assert anchors.numel() > 10
