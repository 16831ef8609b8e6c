# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The canary counts what an engine counts, and chains do not disturb each other."""

from __future__ import annotations

import pytest
import torch

from tensorrt_llm_ext.benchmarking.runs import Workload, make_core, measure
from tensorrt_llm_ext.configs.sampling import SamplingParams
from tensorrt_llm_ext.diagnostics.canary import TeacherSequence, TeacherStates
from tensorrt_llm_ext.diagnostics.canary.agreement import (
    Agreement,
    choose_anchors,
    measure_agreement,
    propose,
)
from tensorrt_llm_ext.diagnostics.canary.building import build_draft
from tensorrt_llm_ext.diagnostics.canary.opening import open_leniently
from tensorrt_llm_ext.engine.loading import LoadedModels
from tensorrt_llm_ext.models.deepseek import DeepseekV3
from tensorrt_llm_ext.models.eagle3 import Eagle3Draft
from tensorrt_llm_ext.models.interfaces import TargetTokenId
from tests.diagnostics.canary.conftest import EXAMPLE, MAX_DRAFT_LEN, MAX_TOKENS, random_states
from tests.support.tiny_models import CPU, PagedSequences, random_draft, random_target


def lonely_chain(
    draft: Eagle3Draft, sequence: TeacherSequence, anchor: int, max_draft_len: int
) -> list[int]:
    """Proposals of one anchor alone: rows 0..anchor in a cache of its own, then one by one."""
    config = draft.config
    paged = PagedSequences(config.num_layers, config.mla.latent_size, max_len=64)
    prefix = paged.plan(prefill=[(0, 0, anchor + 1)])
    captured = torch.cat([sequence.states[b][: anchor + 1] for b in config.boundaries], dim=-1)
    state = draft.forward(
        draft.combine(captured),
        TargetTokenId(sequence.input_ids[1 : anchor + 2]),
        prefix.positions,
        prefix.ctx,
    )[-1:]
    token = draft.propose(state)[1]
    tokens = [int(token)]
    for step in range(1, max_draft_len):
        row = paged.plan(decode=[(0, anchor + step, 1)])
        state = draft.forward(state, token, row.positions, row.ctx)
        token = draft.propose(state)[1]
        tokens.append(int(token))
    return tokens


@pytest.mark.parametrize(("seed", "max_draft_len"), [(0, 1), (1, 2), (2, 3), (3, 5), (4, 12)])
def test_each_anchor_proposes_what_it_would_alone(seed: int, max_draft_len: int) -> None:
    target_config, target = random_target(seed)
    _, draft = random_draft(seed, target_config)
    draft.share_with(target)
    for layer in [draft.first_layer, *draft.later_layers]:
        layer.self_attn.layer_idx -= target_config.num_layers
    (sequence,) = random_states(target_config, (31,), seed).sequences
    anchors = sequence.anchors(max_draft_len)
    assert anchors.tolist() == list(range(31 - max_draft_len))
    with torch.inference_mode():
        proposed = propose(draft, sequence, anchors, max_draft_len)
        for anchor, row in zip(anchors.tolist(), proposed.tolist(), strict=True):
            assert row == lonely_chain(draft, sequence, anchor, max_draft_len)


def test_replaying_the_anchors_gives_the_engines_acceptance_exactly(
    models: LoadedModels,
    target: DeepseekV3,
    prompts: tuple[tuple[int, ...], ...],
    states: TeacherStates,
) -> None:
    workload = Workload(
        prompts=prompts, sampling=SamplingParams(max_tokens=MAX_TOKENS), batch_size=4
    )
    run = measure(make_core(models, workload, MAX_DRAFT_LEN), workload, models.eos_token_ids)
    opened = open_leniently(EXAMPLE / "draft", target.config)
    draft = build_draft(opened.declared, target, device=CPU, dtype=torch.float32)
    anchors = choose_anchors(states, MAX_DRAFT_LEN)
    agreement = measure_agreement(draft, states, anchors, MAX_DRAFT_LEN)
    assert agreement.replayed_length == run.acceptance.acceptance_length
    assert 2.5 < agreement.acceptance_length < 4.0
    assert agreement.per_position[0] > agreement.per_position[2] > 0.4


def test_a_sample_of_anchors_is_seeded_and_has_no_replay() -> None:
    config, _ = random_target(0)
    states = random_states(config, (20, 30, 25))
    every = choose_anchors(states, 2)
    some = choose_anchors(states, 2, max_anchors=15, seed=3)
    assert sum(part.numel() for part in some) == 15
    assert all(set(a.tolist()) <= set(b.tolist()) for a, b in zip(some, every, strict=True))
    again = choose_anchors(states, 2, max_anchors=15, seed=3)
    assert all(torch.equal(a, b) for a, b in zip(some, again, strict=True))
    counts = tuple(torch.zeros_like(part) for part in some)
    assert Agreement(accepted=counts, anchors=some, max_draft_len=2).replayed_length is None


def test_rates_and_lengths_follow_from_the_counts() -> None:
    agreement = Agreement(
        accepted=(torch.tensor([2, 0, 0, 1]), torch.tensor([], dtype=torch.int64)),
        anchors=(torch.tensor([4, 5, 6, 7]), torch.tensor([], dtype=torch.int64)),
        max_draft_len=2,
    )
    assert agreement.acceptance_length == 1.75
    assert agreement.per_position == (0.5, 0.25)
    assert agreement.replayed_length == 1 + 3 / 2  # steps start at 4 (accepts 2) and 7 (accepts 1)
