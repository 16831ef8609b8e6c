# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Log-probabilities of prompts equal those of generating the same tokens one by one."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrt_llm_ext.configs.sampling import SamplingParams
from tensorrt_llm_ext.engine.core import EngineCore
from tensorrt_llm_ext.engine.request import Logprob
from tensorrt_llm_ext.engine.settings import EngineConfig
from tests.support.tiny_models import random_draft, random_target

Scores = list[dict[int, Logprob]]


def make_core(seed: int, *, has_draft: bool = True, **limits: Any) -> EngineCore:
    config, target = random_target(seed)
    draft = None
    if has_draft:
        _, draft = random_draft(seed, config)
        draft.share_with(target)
    limits = {"block_size": 4, "max_draft_len": 2 if has_draft else 0, **limits}
    return EngineCore(target, draft, EngineConfig(**limits))


def run(core: EngineCore, asked: dict[int, tuple[list[int], SamplingParams]]) -> dict[int, Any]:
    """Per key: tokens and the prompt's scores, which must come once, with the first tokens."""
    keys = {core.add_request(prompt, params): key for key, (prompt, params) in asked.items()}
    tokens: dict[int, list[int]] = {key: [] for key in asked}
    scores: dict[int, Scores | None] = dict.fromkeys(asked)
    while core.has_unfinished():
        for update in core.step():
            key = keys[update.request_id]
            assert update.prompt_logprobs is None or not tokens[key]
            if update.prompt_logprobs is not None:
                scores[key] = update.prompt_logprobs
            tokens[key] += update.new_token_ids
        core.check_integrity()
    return {key: (tokens[key], scores[key]) for key in asked}


def one_by_one(seed: int, prompt: list[int], num: int) -> Scores:
    """From the logits of generated tokens: a prompt of one token, and each next one forced."""
    core = make_core(seed, has_draft=False)
    scores: Scores = []
    for end in range(1, len(prompt)):
        forced = SamplingParams(max_tokens=1, logprobs=200, logit_bias={prompt[end]: 1e9})
        core.add_request(prompt[:end], forced)
        (update,) = core.step()
        assert update.new_token_ids == [prompt[end]]
        assert update.new_logprobs is not None
        (row,) = update.new_logprobs
        best = sorted(row, key=lambda token: row[token].rank or 0)[:num]
        scores.append({token: row[token] for token in dict.fromkeys([*best, prompt[end]])})
    return scores


def assert_equal(got: Scores | None, want: Scores) -> None:
    assert got is not None
    assert len(got) == len(want)
    for row, other in zip(got, want, strict=True):
        assert row.keys() == other.keys()
        for token in row:
            assert row[token].logprob == pytest.approx(other[token].logprob, abs=1e-9)
            assert row[token].rank == other[token].rank


@given(
    seed=st.integers(0, 2**16),
    lengths=st.lists(st.integers(1, 23), min_size=1, max_size=4),
    max_num_tokens=st.integers(12, 64),
    num=st.integers(0, 3),
    num_blocks=st.sampled_from([None, 15]),
    has_draft=st.booleans(),
)
def test_chunks_preemption_and_batches_change_nothing(
    seed: int,
    lengths: list[int],
    max_num_tokens: int,
    num: int,
    num_blocks: int | None,
    has_draft: bool,
) -> None:
    rng = random.Random(seed)
    core = make_core(
        seed % 5,
        has_draft=has_draft,
        max_num_tokens=max_num_tokens,
        num_blocks=num_blocks,
        max_batch_size=4,
        max_seq_len=48,
        enable_chunked_prefill=True,
    )
    vocab_size = 40
    asked = {}
    for key, length in enumerate(lengths):
        prompt = [rng.randrange(vocab_size) for _ in range(length)]
        wants = None if rng.random() < 0.25 else num
        params = SamplingParams(max_tokens=12, ignore_eos=True, prompt_logprobs=wants)
        asked[key] = (prompt, params)
    found = run(core, asked)
    for key, (prompt, params) in asked.items():
        tokens, scores = found[key]
        assert len(tokens) == 12
        if params.prompt_logprobs is None:
            assert scores is None
        else:
            assert_equal(scores, one_by_one(seed % 5, prompt, num))


def test_a_preempted_request_keeps_what_was_scored() -> None:
    prompt = list(range(3, 23))
    core = make_core(1, max_num_tokens=8, max_batch_size=2, enable_chunked_prefill=True)
    params = SamplingParams(max_tokens=3, ignore_eos=True, prompt_logprobs=2)
    number = core.add_request(prompt, params)
    core.step()
    request = core.requests[number]
    assert len(request.prompt_logprobs) == 8
    core.preempt(number)
    scores = None
    while core.has_unfinished():
        for update in core.step():
            scores = update.prompt_logprobs or scores
    assert request.num_preemptions == 1
    assert_equal(scores, one_by_one(1, prompt, 2))


def test_a_cached_prefix_is_computed_anew_for_scores_only() -> None:
    prompt = list(range(3, 23))
    core = make_core(1)
    plain = SamplingParams(max_tokens=2, ignore_eos=True)
    scored = SamplingParams(max_tokens=2, ignore_eos=True, prompt_logprobs=1)
    first = run(core, {0: (prompt, plain)})[0]
    number = core.add_request(prompt, plain)
    request = core.requests[number]
    while core.has_unfinished():
        core.step()
    assert request.num_reused_tokens >= 16
    number = core.add_request(prompt, scored)
    request = core.requests[number]
    while core.has_unfinished():
        core.step()
    assert request.num_reused_tokens == 0
    tokens, scores = run(core, {0: (prompt, scored)})[0]
    assert tokens == first[0]
    assert_equal(scores, one_by_one(1, prompt, 1))
