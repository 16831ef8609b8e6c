# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""What the engine core decides and says, beside the invariants."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tensorrt_llm_ext.configs.sampling import SamplingParams
from tensorrt_llm_ext.configs.speculative import EagleDecodingConfig
from tensorrt_llm_ext.engine.core import EngineCore
from tensorrt_llm_ext.engine.settings import EngineConfig
from tensorrt_llm_ext.errors import RequestError
from tests.support.tiny_models import random_draft, random_target

PROMPTS = [[3, 5, 7], [2, 4, 6, 8, 10, 12, 14], list(range(2, 22))]


def make_core(*, max_draft_len: int = 3, **limits: Any) -> EngineCore:
    config, target = random_target(2)
    _, draft = random_draft(2, config)
    draft.share_with(target)
    proposer = draft if max_draft_len else None
    limits = {"block_size": 4, **limits}
    return EngineCore(target, proposer, EngineConfig(max_draft_len=max_draft_len, **limits))


def run(core: EngineCore, lengths: list[int]) -> tuple[list[list[int]], set[int]]:
    """Outputs per prompt, and how many drafts the steps proposed."""
    ids = [
        core.add_request(prompt, SamplingParams(max_tokens=length, ignore_eos=True))
        for prompt, length in zip(PROMPTS, lengths, strict=True)
    ]
    outputs: dict[int, list[int]] = {request_id: [] for request_id in ids}
    proposed = set()
    while core.has_unfinished():
        for update in core.step():
            outputs[update.request_id] += update.new_token_ids
        proposed |= {len(request.pending_drafts) for request in core.requests.values()}
        core.check_integrity()
    assert core.block_manager.num_used == 0
    return [outputs[request_id] for request_id in ids], proposed


def test_the_schedule_decides_how_many_drafts_a_batch_gets():
    speculative = EagleDecodingConfig(
        max_draft_len=3, speculative_model="draft", draft_len_schedule={1: 3, 2: 1}
    )
    lengths = [6, 14, 30]
    core = make_core(draft_len_for=speculative.draft_len_for)
    assert [speculative.draft_len_for(batch) for batch in (1, 2, 3)] == [3, 1, 0]

    outputs, proposed = run(core, lengths)

    assert outputs == run(make_core(max_draft_len=0), lengths)[0]
    assert proposed == {0, 1, 3}
    assert core.stats.num_steps > 0
    assert core.num_ring_overflows == 0


def test_an_overflowed_ring_is_said_and_counted(caplog):
    core = make_core(ring_size=4, draft_len_for=lambda batch: 3 if batch == 1 else 0)
    with caplog.at_level(logging.WARNING):
        outputs, _ = run(core, [6, 14, 30])

    assert outputs == run(make_core(max_draft_len=0), [6, 14, 30])[0]
    assert core.num_ring_overflows > 0
    assert "proposes no drafts from here on" in caplog.text


def test_a_pool_that_shortens_sequences_says_so(caplog):
    with caplog.at_level(logging.WARNING):
        core = make_core(num_blocks=5, max_seq_len=64)

    assert core.max_seq_len == 20
    assert "max_seq_len is 20 here, not 64" in caplog.text


def test_parameters_that_ban_every_token_are_refused():
    core = make_core()
    all_but_one = list(range(39))

    with pytest.raises(RequestError, match="ban every token"):
        core.add_request([3], SamplingParams(bad_token_ids=list(range(40))))
    sampling = SamplingParams(bad_token_ids=all_but_one, min_tokens=2, stop_token_ids=[39])
    with pytest.raises(RequestError, match="ban every token"):
        core.add_request([3], sampling)
    core.add_request([3], SamplingParams(bad_token_ids=all_but_one, max_tokens=1))
    assert [update.new_token_ids for update in core.step()] == [[39]]
