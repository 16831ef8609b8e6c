# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tensorrt_llm_ext.engine.teacher_states import TeacherStates
from tensorrt_llm_ext.errors import ConfigError
from tensorrt_llm_ext.quantizing.rollout import make_packs, rollout
from tests.support.quantizing import BOUNDARIES, dense, texts

STEPS = 3


def test_packed_texts_do_not_see_each_other(draft: Path) -> None:
    core = dense(draft, torch.float64).core
    states = texts()
    together = make_packs(states, BOUNDARIES, STEPS, dtype=torch.float64)
    apart = make_packs(states, BOUNDARIES, STEPS, dtype=torch.float64, max_rows=1)
    assert (len(together), len(apart)) == (1, 3)
    with torch.no_grad():
        whole = [s.logits for s in rollout(core, together[0], STEPS)]
        parts = [[s.logits for s in rollout(core, pack, STEPS)] for pack in apart]
    for step in range(STEPS):
        torch.testing.assert_close(whole[step], torch.cat([part[step] for part in parts]))


def test_given_tokens_are_fed(draft: Path) -> None:
    core = dense(draft).core
    (pack,) = make_packs(texts((12,)), BOUNDARIES, 2)
    with torch.no_grad():
        own = list(rollout(core, pack, 2))
        same = list(rollout(core, pack, 2, tokens=[item.tokens for item in own]))
        other = list(rollout(core, pack, 2, tokens=[(item.tokens + 1) % 64 for item in own]))
    assert torch.equal(own[1].logits, same[1].logits)
    assert torch.equal(own[0].logits, other[0].logits)
    assert not torch.equal(own[1].logits, other[1].logits)


def test_labels_stand_one_and_more_tokens_ahead() -> None:
    (pack,) = make_packs(texts((12,)), BOUNDARIES, 2)
    sequence = texts((12,)).sequences[0]
    for row, anchor in enumerate(pack.anchors.tolist()):
        assert pack.successors[anchor] == sequence.input_ids[anchor + 1]
        assert pack.labels[row].tolist() == sequence.labels[anchor + 1 : anchor + 3].tolist()
        assert pack.labels[row, 0] == sequence.input_ids[anchor + 2]


def test_long_texts_are_cut_at_the_rotary_table() -> None:
    (pack,) = make_packs(texts((40,)), BOUNDARIES, 2, max_positions=16)
    assert int(pack.positions.max()) == 14


def test_states_of_other_boundaries_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"\[5\] are missing"):
        make_packs(texts(boundaries=(2, 4)), BOUNDARIES, 2)


def test_texts_too_short_are_refused() -> None:
    states = texts((4,))
    with pytest.raises(ConfigError, match="longer texts"):
        make_packs(states, BOUNDARIES, 3)
    mixed = TeacherStates(
        sequences=(*states.sequences, *texts((9,)).sequences), source="", labels=""
    )
    (pack,) = make_packs(mixed, BOUNDARIES, 3)
    assert pack.text.unique().tolist() == [1]
