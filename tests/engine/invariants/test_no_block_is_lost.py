# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Aborts, exceptions inside a step, and pools that run out: no block is lost, no row is wrong."""

import collections
import dataclasses
import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrt_llm_ext.configs.sampling import SamplingParams
from tensorrt_llm_ext.engine.core import EngineCore
from tests.support.oracle_draws import draw_key, draw_plan, draw_works
from tests.support.oracle_engine import (
    SEEDS,
    InjectedError,
    PathChecker,
    Plan,
    Work,
    assert_idle,
    assert_same_outcomes,
    plain_outcomes,
    run,
    submit,
    tiny_models,
)

# Where a model can break: before a row is written, after the target's rows, inside the chain.
CALLS = [("target", "forward"), ("target", "compute_logits"), ("draft", "combine")]
CALLS += [("draft", "forward"), ("draft", "propose")]


def break_calls(patch, models, call, failing):
    """Makes the calls of a model raise whose number is in `failing`, after they did their work.

    Returns:
        The numbers of the calls that raised so far.
    """
    failures = []
    model = getattr(models, call[0])
    original = getattr(model, call[1])
    counter = itertools.count()

    def broken(*args, **kwargs):
        result = original(*args, **kwargs)
        number = next(counter)
        if number in failing:
            failures.append(number)
            raise InjectedError
        return result

    patch.setattr(model, call[1], broken)
    return failures


def test_a_step_that_raises_changes_nothing():
    seen = collections.Counter()

    @given(seed=SEEDS, call=st.sampled_from(CALLS))
    def raise_and_abort(seed, call):
        rng = random.Random(seed)
        models, plan = tiny_models(*draw_key(rng)), draw_plan(rng)
        aborts = rng.choices((None, None, None, None, None, 0, 1), k=7)
        plan = dataclasses.replace(plan, aborts=tuple(aborts))
        works = draw_works(rng, models.vocab_size, max_requests=3)
        requests = [*works, *works]  # the second half may reuse what a failed step touched
        expected = plain_outcomes(models, works, plan.max_seq_len) * 2
        checker = PathChecker(models, requests, expected)
        engine = EngineCore(models.target, models.draft, plan.config(with_draft=True))
        with pytest.MonkeyPatch.context() as patch:
            failures = break_calls(patch, models, call, set(rng.choices(range(40), k=8)))
            outcomes = run(engine, requests, plan, checker)
        assert_same_outcomes(outcomes, expected)
        seen["raised"] += len(failures)
        seen["aborted"] += sum(outcome.finish_reason is None for outcome in outcomes)
        seen["finished"] += sum(outcome.finish_reason is not None for outcome in outcomes)

    raise_and_abort()
    assert all(seen[name] > 20 for name in ("raised", "aborted", "finished")), seen


@pytest.mark.parametrize("call", CALLS, ids=".".join)
def test_a_failed_step_does_not_spoil_the_blocks_that_it_evicted(call):
    """The failed step writes into blocks that held a published prompt."""
    models = tiny_models(5, 12)
    sampling = SamplingParams(max_tokens=4, ignore_eos=True)
    first = Work(tuple(range(12)), sampling)
    intruder = Work(tuple(reversed(range(12))) * 2, sampling)
    plan = Plan(block_size=2, num_blocks=16, max_batch_size=1, max_draft_len=2)
    expected = plain_outcomes(models, [first], None)
    engine = EngineCore(models.target, models.draft, plan.config(with_draft=True))
    assert_same_outcomes(run(engine, [first], plan), expected)
    with pytest.MonkeyPatch.context() as patch:
        break_calls(patch, models, call, {0})
        request_id = submit(engine, intruder)
        with pytest.raises(InjectedError):
            engine.step()
        engine.check_integrity()
        engine.abort(request_id)
    assert_idle(engine)
    checker = PathChecker(models, [first], expected)
    assert_same_outcomes(run(engine, [first], plan, checker), expected)


def test_a_failed_step_leaves_requests_as_they_were():
    models = tiny_models(2, 12)
    sampling = SamplingParams(max_tokens=9, ignore_eos=True)
    requests = [Work((3, 1, 4, 1, 5), sampling), Work((2, 7, 1), sampling)]
    plan = Plan(max_draft_len=3)
    engine = EngineCore(models.target, models.draft, plan.config(with_draft=True))
    ids = [submit(engine, work) for work in requests]
    for _ in range(2):
        engine.step()

    def snapshot():
        state = []
        for request_id in ids:
            r = engine.requests[request_id]
            counts = (r.num_computed, r.num_draft_valid, r.num_ring_rows, r.status)
            state.append((list(r.token_ids), list(r.pending_drafts), *counts, r.acceptance.copy()))
        return state

    before = snapshot()
    for call in CALLS:
        with pytest.MonkeyPatch.context() as patch:
            break_calls(patch, models, call, {0})
            with pytest.raises(InjectedError):
                engine.step()
        engine.check_integrity()
        assert snapshot() == before
    for request_id in ids:
        engine.abort(request_id)
    assert_idle(engine)


@pytest.mark.parametrize("when", range(6))
def test_abort_returns_all_blocks(when):
    models = tiny_models(1, 5)
    sampling = SamplingParams(max_tokens=12, ignore_eos=True)
    plan = Plan(block_size=3, chunk=18, max_batch_size=2, max_draft_len=4)
    engine = EngineCore(models.target, models.draft, plan.config(with_draft=True))
    ids = [submit(engine, Work(tuple(i % 5 for i in range(30)), sampling)) for _ in range(4)]
    for _ in range(when):
        engine.step()
    for request_id in ids:
        engine.abort(request_id)
        engine.check_integrity()
        engine.abort(request_id)  # a second time does nothing
    assert_idle(engine)
    assert engine.step() == []


def test_a_pool_that_runs_out_preempts_and_still_gives_the_same_output():
    models = tiny_models(4, 5)
    sampling = SamplingParams(max_tokens=24, ignore_eos=True)
    requests = [Work(tuple((i + j) % 5 for i in range(9)), sampling) for j in range(4)]
    plan = Plan(block_size=2, num_blocks=30, max_seq_len=34, max_draft_len=3, reuse=False)
    expected = plain_outcomes(models, requests, plan.max_seq_len)
    checker = PathChecker(models, requests, expected)
    engine = EngineCore(models.target, models.draft, plan.config(with_draft=True))
    assert_same_outcomes(run(engine, requests, plan, checker), expected)
    assert engine.num_preemptions > 2
