# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The map between vocabularies: offsets, strictly rising, in range, equal to t2d (V8, V21)."""

from __future__ import annotations

import logging

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tensorrt_llm_ext.checkpoints.vocabulary import (
    TableKind,
    allows_identity,
    check_lonely_t2d,
    check_vocabulary_map,
    check_vocabulary_tables,
    decide_vocabulary_map,
)
from tensorrt_llm_ext.errors import CheckpointError

VOCAB = 50


def check(
    d2t: torch.Tensor,
    t2d: torch.Tensor | None = None,
    draft: int | None = None,
    allow_identity: bool = True,
) -> None:
    size = d2t.numel() if draft is None else draft
    check_vocabulary_map(
        d2t, t2d, draft_vocab_size=size, vocab_size=VOCAB, allow_identity=allow_identity
    )


def decide(d2t: list[int], t2d: torch.Tensor | None = None) -> TableKind:
    table = torch.tensor(d2t)
    found = decide_vocabulary_map(table, t2d, draft_vocab_size=len(d2t), vocab_size=VOCAB)
    assert len(found.reason) > 20
    return found.kind


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
    with pytest.raises(CheckpointError, match=r"not the same ids|absolute") as raised:
        check(offsets(ids), wrong)
    assert raised.value.check == "V21"


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
    with pytest.raises(CheckpointError, match=message) as raised:
        check(d2t, draft=draft)
    assert raised.value.check == ("V8" if "shape" in message or "integer" in message else "V21")


@pytest.mark.parametrize("t2d", [torch.ones(VOCAB - 1, dtype=torch.bool), torch.ones(VOCAB)])
def test_malformed_t2d(t2d: torch.Tensor) -> None:
    with pytest.raises(CheckpointError, match="t2d must be a bool tensor"):
        check(torch.zeros(3, dtype=torch.int64), t2d)


def test_all_zeros_needs_an_opt_in(caplog: pytest.LogCaptureFixture) -> None:
    check(torch.zeros(VOCAB, dtype=torch.int64), allow_identity=False)  # the whole vocabulary
    assert not caplog.records
    with pytest.raises(CheckpointError, match=r"lost table.*\"trtllm_ext_identity_d2t\": true"):
        check(torch.zeros(9, dtype=torch.int64), allow_identity=False)
    check(torch.zeros(9, dtype=torch.int64))
    assert [r.levelno for r in caplog.records] == [logging.WARNING]
    assert "d2t is all zeros" in caplog.text


def test_the_opt_in_is_true_and_nothing_else() -> None:
    key = "trtllm_ext_identity_d2t"
    assert allows_identity({key: True})
    for value in (None, False, 1, "true"):
        assert not allows_identity({key: value})


@pytest.mark.parametrize(
    ("d2t", "t2d", "kind"),
    [
        ([0, 0, 3, 3], None, "offset"),
        ([0, 0, 0, 0], None, "identity"),
        # Both readings are maps: offsets unless t2d names the other one.
        ([0, 1, 2, 3], None, "offset"),
        ([0, 1, 2, 3], [0, 2, 4, 6], "offset"),
        ([0, 1, 2, 3], [0, 1, 2, 3], "absolute"),
        ([0, 1, 2, 3], [5, 6, 7, 8], "offset"),
        ([3, 10, 30, 49], None, "absolute"),
        ([3, 10, 30, 49], [3, 10, 30, 49], "absolute"),
        ([30, 10, 49, 3], None, "undecidable"),
        ([0, 0, 0, 60], None, "undecidable"),
        ([-1, 0, 0, 0], None, "undecidable"),
    ],
    ids=str,
)
def test_decision_table(d2t: list[int], t2d: list[int] | None, kind: str) -> None:
    assert decide(d2t, None if t2d is None else mask(torch.tensor(t2d))).value == kind


@given(target_ids())
def test_absolute_tables_with_t2d_are_never_taken_for_offsets(ids: torch.Tensor) -> None:
    found = decide_vocabulary_map(ids, mask(ids), draft_vocab_size=ids.numel(), vocab_size=VOCAB)
    if ids.numel() > 1:  # both readings of a single id are the same
        assert found.kind is TableKind.ABSOLUTE
    assert torch.equal(found.target_ids, ids)


def test_t2d_alone() -> None:
    check_lonely_t2d(torch.ones(VOCAB, dtype=torch.bool))
    partial = torch.arange(VOCAB) > 3
    for tables in ((None, partial), (offsets(torch.arange(4, VOCAB)), ~partial)):
        with pytest.raises(CheckpointError, match=r"but no d2t|not the same ids") as raised:
            check_vocabulary_tables(*tables, draft_vocab_size=VOCAB - 4, vocab_size=VOCAB)
        assert raised.value.check == "V21"
    check_vocabulary_tables(None, None, draft_vocab_size=VOCAB, vocab_size=VOCAB)
