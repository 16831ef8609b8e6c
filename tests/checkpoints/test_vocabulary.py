# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The map between vocabularies: offsets, strictly rising, in range, equal to t2d."""

from __future__ import annotations

import logging

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tensorrt_llm_ext.checkpoints.vocabulary import check_vocabulary_map
from tensorrt_llm_ext.errors import CheckpointError

VOCAB = 50


def check(d2t: torch.Tensor, t2d: torch.Tensor | None = None, draft: int | None = None) -> None:
    size = d2t.numel() if draft is None else draft
    check_vocabulary_map(d2t, t2d, draft_vocab_size=size, vocab_size=VOCAB)


@st.composite
def target_ids(draw: st.DrawFn) -> torch.Tensor:
    ids = draw(st.sets(st.integers(0, VOCAB - 1), min_size=1))
    return torch.tensor(sorted(ids))


def offsets(ids: torch.Tensor) -> torch.Tensor:
    return ids - torch.arange(ids.numel())


def mask(ids: torch.Tensor) -> torch.Tensor:
    return torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, ids, True)


@given(target_ids(), st.sampled_from([torch.int32, torch.int64]))
def test_every_subset_has_a_valid_map(ids: torch.Tensor, dtype: torch.dtype) -> None:
    check(offsets(ids).to(dtype), mask(ids))
    check(offsets(ids).to(dtype), mask(ids).to(torch.int64))
    check(offsets(ids).to(dtype))


@given(target_ids(), st.integers(0, VOCAB - 1))
def test_t2d_must_name_the_same_ids(ids: torch.Tensor, flipped: int) -> None:
    wrong = mask(ids)
    wrong[flipped] = ~wrong[flipped]
    with pytest.raises(CheckpointError, match="not the same ids"):
        check(offsets(ids), wrong)


def test_absolute_tables_are_recognised() -> None:
    with pytest.raises(CheckpointError, match=r"absolute target ids: store d2t - arange"):
        check(torch.tensor([3, 10, 20, 30, 48]))


@pytest.mark.parametrize(
    ("d2t", "draft", "message"),
    [
        (torch.zeros(4), 4, "integer offsets, got dtype torch.float32"),
        (torch.zeros(4, dtype=torch.bool), 4, "integer offsets"),
        (torch.zeros(4, dtype=torch.int64), 5, r"shape \[4\], expected \[5\]"),
        (torch.zeros(2, 2, dtype=torch.int64), 4, r"shape \[2, 2\]"),
        (torch.tensor([0, 0, VOCAB]), 3, "rise strictly within 0..49"),
        (torch.tensor([-1, 0, 0]), 3, "rise strictly"),
        (torch.tensor([5, 4, 4]), 3, "rise strictly"),
        (torch.tensor([5, 0, 0]), 3, "damaged"),
    ],
)
def test_refusals(d2t: torch.Tensor, draft: int, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        check(d2t, draft=draft)


@pytest.mark.parametrize("t2d", [torch.ones(VOCAB - 1, dtype=torch.bool), torch.ones(VOCAB)])
def test_malformed_t2d(t2d: torch.Tensor) -> None:
    with pytest.raises(CheckpointError, match="t2d must be a bool tensor"):
        check(torch.zeros(3, dtype=torch.int64), t2d)


def test_all_zeros_is_legal_but_suspicious(caplog: pytest.LogCaptureFixture) -> None:
    check(torch.zeros(VOCAB, dtype=torch.int64))
    assert not caplog.records
    check(torch.zeros(9, dtype=torch.int64))
    assert [r.levelno for r in caplog.records] == [logging.WARNING]
    assert "d2t is all zeros" in caplog.text
