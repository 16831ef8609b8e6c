# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Invariant (d): a drafter that is always right gets acceptance length exactly k + 1."""

import functools

import pytest
import torch

from tensorrt_llm_ext.configs.sampling import SamplingParams
from tensorrt_llm_ext.engine.core import EngineCore
from tests.support.oracle_dense import dense_target
from tests.support.oracle_drafters import ReplayDraft, permutation_models
from tests.support.oracle_engine import (
    Models,
    Plan,
    Work,
    plain_outcomes,
    run,
    tiny_models,
)

LAYOUTS = {
    "one_chunk": {"block_size": 16},
    "chunks": {"block_size": 4, "chunk": 36, "max_batch_size": 4},
    "preempted": {"block_size": 3, "preemptions": (None, None, 1, None, 0)},
    "tight_pool": {"block_size": 2, "num_blocks": 45, "max_seq_len": 70},
    "one_at_a_time": {"block_size": 1, "max_batch_size": 1, "chunk": 9},
}


MAX_TOKENS = 19
SAMPLING = SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True)
VOCAB_SIZE = 40


@functools.cache
def known_sequences(seed):
    """Greedy continuations of three prompts, longer than what requests will generate."""
    prompts = [tuple((7 * i + j * j) % VOCAB_SIZE for j in range(5 + 11 * i)) for i in range(3)]
    longer = SamplingParams(max_tokens=MAX_TOKENS + 10, ignore_eos=True)
    works = [Work(prompt, longer) for prompt in prompts]
    futures = plain_outcomes(Models(tiny_models(seed, VOCAB_SIZE).target, None), works, None)
    return [(prompt, future.token_ids) for prompt, future in zip(prompts, futures, strict=True)]


def replay(seed, plan):
    """Runs the prompts with a draft that knows how they continue."""
    target = tiny_models(seed, VOCAB_SIZE).target
    known = known_sequences(seed)
    draft = ReplayDraft(target, [[*prompt, *future] for prompt, future in known])
    engine = EngineCore(target, draft, plan.config(with_draft=True))
    works = [Work(prompt, SAMPLING, arrival=i) for i, (prompt, _) in enumerate(known)]
    for outcome, (_, future) in zip(run(engine, works, plan), known, strict=True):
        assert outcome.token_ids == future[:MAX_TOKENS]
    return engine


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("draft_len", range(1, 9))
def test_a_replayed_continuation_is_accepted_whole(draft_len, layout):
    plan = Plan(max_draft_len=draft_len, **LAYOUTS[layout])
    engine = replay(draft_len % 2, plan)
    stats = engine.stats
    assert stats.num_steps > 0
    assert stats.acceptance_length == draft_len + 1
    assert stats.per_position == [1.0] * draft_len
    if layout == "preempted" or (layout == "tight_pool" and draft_len < 5):
        assert engine.num_preemptions > 0


def test_all_drafts_are_accepted_whatever_the_history_of_their_number():
    plan = Plan(draft_lens=(3, 0, 8, 1, 0, 0, 5, 2), preemptions=(None,) * 6 + (0,))
    engine = replay(0, plan)
    assert engine.stats.num_drafted > 0
    assert engine.stats.num_accepted == engine.stats.num_drafted


def test_drafts_are_clipped_at_the_context_limit_and_still_accepted():
    target = tiny_models(6, 40).target
    prompt = tuple(range(10))
    plan = Plan(max_draft_len=8, max_seq_len=25)
    sampling = SamplingParams(max_tokens=100, ignore_eos=True)
    (future,) = plain_outcomes(Models(target, None), [Work(prompt, sampling)], None)
    draft = ReplayDraft(target, [[*prompt, *future.token_ids]])
    engine = EngineCore(target, draft, plan.config(with_draft=True))
    (outcome,) = run(engine, [Work(prompt, sampling)], plan)
    assert outcome.token_ids == future.token_ids[:15]
    assert outcome.finish_reason == "length"
    # 11 tokens after the prompt's step; 8 drafts, then room for 25 - 20 = 5 more.
    assert engine.stats.num_drafted == engine.stats.num_accepted == 8 + 5


@pytest.mark.parametrize(("boundary", "draft_len"), [(2, 8), (3, 3), (4, 1)])
def test_a_code_at_one_boundary_is_found_there_and_nowhere_else(boundary, draft_len):
    vocab_size = 24
    sampling = SamplingParams(max_tokens=33, ignore_eos=True)
    prompts = [tuple((i * j) % vocab_size for j in range(1 + 9 * i)) for i in range(3)]
    plan = Plan(max_draft_len=draft_len, chunk=36, preemptions=(None,) * 7 + (1,))
    lengths = {}
    for shift in (-1, 0, 1):
        models = permutation_models(
            boundary, vocab_size=vocab_size, num_layers=5, boundary=boundary, shift=shift
        )
        successor = models.target.lm_head.weight.argmax(dim=0)
        engine = EngineCore(models.target, models.draft, plan.config(with_draft=True))
        for prompt, outcome in zip(
            prompts, run(engine, [Work(prompt, sampling) for prompt in prompts], plan), strict=True
        ):
            tokens = [prompt[-1], *outcome.token_ids]
            assert tokens[1:] == successor[tokens[:-1]].tolist()
            assert len(set(outcome.token_ids[:vocab_size])) == vocab_size  # one long cycle
        lengths[shift] = engine.stats.acceptance_length
    assert lengths[0] == draft_len + 1
    assert lengths[-1] < 1.1
    assert lengths[1] < 1.1


def test_the_code_is_gone_after_its_boundary():
    models = permutation_models(0, vocab_size=6, num_layers=3, boundary=1)
    blank = torch.nn.functional.one_hot(torch.full((6,), 6), 7).double()
    _, _, captured = dense_target(models.target, torch.arange(6), (0, 1, 2, 3))
    before, at, after, end = (part[:, 6:] for part in captured.split(13, dim=1))
    assert torch.equal(before, blank)
    assert torch.allclose(at, torch.eye(7, dtype=torch.float64)[:6], atol=1e-12)
    assert torch.allclose(after, blank, atol=1e-12)
    assert torch.allclose(end, blank, atol=1e-12)
