# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Invariant (a): greedy and seeded output with speculation equals output without it."""

import random

import pytest
import torch
from hypothesis import given, settings

from tensorrt_llm_ext.configs.sampling import SamplingParams
from tensorrt_llm_ext.engine.core import EngineCore
from tests.support.oracle_dense import dense_target
from tests.support.oracle_draws import draw_key, draw_plan, draw_works
from tests.support.oracle_engine import (
    EOS,
    SEEDS,
    Plan,
    Work,
    assert_same_outcomes,
    plain_outcomes,
    run,
    tiny_models,
)


def check_equal(models, requests, plan):
    expected = plain_outcomes(models, requests, plan.max_seq_len)
    engine = EngineCore(models.target, models.draft, plan.config(with_draft=True))
    assert_same_outcomes(run(engine, requests, plan), expected)
    return engine


@given(seed=SEEDS)
def test_output_with_speculation_equals_output_without(seed):
    rng = random.Random(seed)
    models = tiny_models(*draw_key(rng))
    check_equal(models, draw_works(rng, models.vocab_size, rich=True), draw_plan(rng))


@settings(max_examples=settings.default.max_examples // 2)
@given(seed=SEEDS)
def test_prompts_sent_again_to_a_warm_engine_give_the_same_output(seed):
    rng = random.Random(seed)
    models, plan = tiny_models(*draw_key(rng)), draw_plan(rng)
    requests = draw_works(rng, models.vocab_size, rich=True, max_requests=3)
    engine = check_equal(models, requests, plan)
    again = [*requests, *requests[::-1]]
    expected = plain_outcomes(models, requests, plan.max_seq_len)
    assert_same_outcomes(run(engine, again, plan), [*expected, *expected[::-1]])


@pytest.mark.parametrize("seed", range(8))
def test_plain_greedy_output_is_the_dense_argmax(seed):
    """The baseline of this invariant, from another source than the engine."""
    models = tiny_models(seed, 12)
    prompt = tuple((seed * 7 + i * 5) % 12 for i in range(1 + 3 * seed))
    work = Work(prompt, SamplingParams(max_tokens=20, ignore_eos=True))
    (outcome,) = plain_outcomes(models, [work], None)
    tokens = [*prompt, *outcome.token_ids]
    logits, _, _ = dense_target(models.target, torch.tensor(tokens))
    assert logits[len(prompt) - 1 : -1].argmax(dim=-1).tolist() == outcome.token_ids


def test_a_run_that_accepts_stops_inside_and_penalises_what_it_accepted():
    """Guards the property tests above: their drafts are accepted, and stops fall inside runs."""
    accepted, stopped_inside = 0, 0
    for seed in range(5):
        models = tiny_models(seed, 3)
        sampling = SamplingParams(
            max_tokens=20, temperature=0.7, frequency_penalty=0.2, stop_token_ids=[2], min_tokens=8
        )
        requests = [Work((0, 2, 1), sampling, seed=seed * 31 + i) for i in range(3)]
        plan = Plan(draft_lens=(4,), max_draft_len=4)
        engine = check_equal(models, requests, plan)
        accepted += engine.stats.num_accepted
        emitted = engine.stats.num_accepted + engine.stats.num_steps + len(requests)
        outcomes = plain_outcomes(models, requests, None)
        stopped_inside += emitted > sum(len(outcome.token_ids) for outcome in outcomes)
    assert accepted > 40
    assert stopped_inside >= 2


def test_eos_ends_a_request_unless_ignored():
    reasons = []
    for seed, ignore_eos in ((0, False), (0, True), (1, False), (1, True)):
        models = tiny_models(seed, 3)
        sampling = SamplingParams(max_tokens=12, temperature=2.5, ignore_eos=ignore_eos)
        requests = [Work((0, 2), sampling, seed=seed) for seed in range(4)]
        check_equal(models, requests, Plan(max_draft_len=3))
        for outcome in plain_outcomes(models, requests, None):
            reasons.append(outcome.finish_reason)
            if ignore_eos:
                assert outcome.finish_reason == "length"
                assert len(outcome.token_ids) == 12
            else:
                assert EOS not in outcome.token_ids[:-1]
                assert (outcome.token_ids[-1] == EOS) == (outcome.finish_reason == "stop")
    assert "stop" in reasons
