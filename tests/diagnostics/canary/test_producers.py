# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The target's texts and states from prompts."""

from __future__ import annotations

import pytest
import torch

from tensorrt_llm_ext.engine.teacher_capture import forward_text, states_from_prompts
from tensorrt_llm_ext.errors import RequestError
from tensorrt_llm_ext.models.interfaces import TargetTokenId
from tests.support.tiny_models import MAX_POSITIONS, PagedSequences, random_target


@pytest.mark.parametrize("seed", [0, 3])
def test_texts_are_greedy_and_states_are_those_of_a_plain_pass(seed: int) -> None:
    config, target = random_target(seed)
    prompts = [[3, 5, 7], [2] * 11]
    boundaries = (1, config.num_layers)
    states = states_from_prompts(
        target, prompts, boundaries=boundaries, max_tokens=9, max_draft_len=2
    )
    assert states.boundaries == set(boundaries)
    for prompt, text in zip(prompts, states.sequences, strict=True):
        assert text.input_ids[: len(prompt)].tolist() == prompt
        assert text.length == len(prompt) + 9 + 2
        assert text.counted.nonzero().flatten().tolist() == list(
            range(len(prompt) - 1, len(prompt) + 9 - 2)
        )
        paged = PagedSequences(config.num_layers, config.mla.latent_size, max_len=32)
        plan = paged.plan(prefill=[(0, 0, text.length)])
        with torch.inference_mode():
            hidden, captured = target.forward(
                TargetTokenId(text.input_ids), plan.positions, plan.ctx, boundaries
            )
            greedy = target.compute_logits(hidden).argmax(dim=1)
        assert captured is not None
        first = len(prompt) - 1
        assert torch.equal(text.labels[first:], greedy[first:])
        joined = torch.cat([text.states[b] for b in boundaries], dim=1)
        torch.testing.assert_close(joined, captured, rtol=1e-9, atol=1e-9)


def test_an_end_token_ends_the_text_but_not_what_lies_behind() -> None:
    _, target = random_target(1)
    free = states_from_prompts(
        target, [[4, 9, 1]], boundaries=(1,), max_tokens=12, max_draft_len=3
    ).sequences[0]
    end = int(free.input_ids[3 + 5])  # the sixth generated token
    first = free.input_ids[3:].tolist().index(end)
    text = states_from_prompts(
        target,
        [[4, 9, 1]],
        boundaries=(1,),
        max_tokens=12,
        max_draft_len=3,
        eos_token_ids=(end,),
    ).sequences[0]
    assert text.length == 3 + first + 1 + 3
    assert torch.equal(text.input_ids, free.input_ids[: text.length])
    assert int(text.counted.sum()) == first


def test_long_prompts_leave_room_and_too_long_ones_are_refused() -> None:
    _, target = random_target(2)
    prompt = [2] * (MAX_POSITIONS - 10)
    (text,) = states_from_prompts(
        target, [prompt], boundaries=(1,), max_tokens=50, max_draft_len=3
    ).sequences
    assert text.length == MAX_POSITIONS
    with pytest.raises(RequestError):
        states_from_prompts(
            target, [[2] * MAX_POSITIONS], boundaries=(1,), max_tokens=5, max_draft_len=3
        )


def test_a_pass_without_boundaries_has_no_states() -> None:
    _, target = random_target(0)
    with torch.inference_mode():
        hidden, captured = forward_text(target, [1, 2, 3], ())
    assert hidden.shape[0] == 3
    assert captured.shape == (3, 0)
