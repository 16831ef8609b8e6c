# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tensorrt_llm_ext.configs.sampling import SamplingParams
from tensorrt_llm_ext.engine.llm import LLM
from tensorrt_llm_ext.engine.loading import LoadedModels
from tensorrt_llm_ext.engine.seeds import derived_seed, request_seed
from tensorrt_llm_ext.engine.settings import EngineConfig
from tensorrt_llm_ext.errors import RequestError
from tests.support.cycling_models import EOS, cycling_models
from tests.support.tiny_models import random_draft, random_target
from tests.support.tiny_tokenizers import VOCAB_SIZE, byte_level_tokenizer

TEXT = "Tom has 3 apples. "
CYCLE = byte_level_tokenizer().encode(TEXT)


@pytest.fixture(scope="module")
def models() -> LoadedModels:
    """Random weights: every prompt has a text of its own."""
    config, target = random_target(3, vocab_size=VOCAB_SIZE)
    _, draft = random_draft(4, config)
    draft.share_with(target)
    return LoadedModels(
        target=target, draft=draft, tokenizer=byte_level_tokenizer(), eos_token_ids=(EOS,)
    )


@pytest.fixture(scope="module")
def llm(models: LoadedModels) -> Iterator[LLM]:
    with LLM.from_loaded(models, EngineConfig(max_draft_len=3)) as engine:
        yield engine


@pytest.fixture(scope="module")
def cycling() -> Iterator[LLM]:
    """Generates TEXT over and over, two tokens per verify step."""
    with LLM.from_loaded(cycling_models(CYCLE), EngineConfig(max_draft_len=2)) as engine:
        yield engine


def test_one_prompt_gives_one_output_and_a_list_gives_a_list_in_order(llm: LLM) -> None:
    prompts = ["Tom has", "Question", "café", "数学"]
    params = SamplingParams(max_tokens=6)
    outputs = llm.generate(prompts, params)
    assert [output.prompt for output in outputs] == prompts
    for prompt, output in zip(prompts, outputs, strict=True):
        alone = llm.generate(prompt, params)
        assert alone.outputs[0].token_ids == output.outputs[0].token_ids
        assert alone.prompt_token_ids == byte_level_tokenizer().encode(prompt)
        assert output.finished
    assert len({output.request_id for output in outputs}) == len(prompts)
    assert llm.generate([], params) == []


def test_every_form_of_a_prompt_means_the_same(llm: LLM) -> None:
    ids = byte_level_tokenizer().encode("Tom has")
    params = SamplingParams(max_tokens=5)
    forms: list[Any] = [
        "Tom has",
        ids,
        tuple(ids),
        list(np.array(ids)),
        {"prompt": "Tom has"},
        {"prompt_token_ids": ids},
        {"prompt": "Tom has", "prompt_token_ids": ids},
    ]
    outputs = [llm.generate(form, params) for form in forms]
    assert len({tuple(output.outputs[0].token_ids) for output in outputs}) == 1
    together = llm.generate(forms, params)
    assert [o.outputs[0].text for o in together] == [o.outputs[0].text for o in outputs]
    assert outputs[1].prompt is None
    assert outputs[0].prompt == outputs[4].prompt == "Tom has"


def test_text_with_the_draft_equals_text_without_it(models: LoadedModels, llm: LLM) -> None:
    prompts = ["Tom has", "Question:", "семь 🍎"]
    settings = [
        SamplingParams(max_tokens=20),
        SamplingParams(max_tokens=20, temperature=1.0, seed=5),
        SamplingParams(max_tokens=20, temperature=0.8, top_p=0.9, seed=6, presence_penalty=0.5),
    ]
    with LLM.from_loaded(models) as plain:
        for params in settings:
            with_draft = llm.generate(prompts, params)
            without = plain.generate(prompts, params)
            for left, right in zip(with_draft, without, strict=True):
                assert left.outputs[0].token_ids == right.outputs[0].token_ids
                assert left.outputs[0].text == right.outputs[0].text
                assert left.acceptance.num_steps > 0
                assert right.acceptance.num_steps == 0


def test_a_stop_string_inside_an_accepted_run_ends_text_and_tokens(cycling: LLM) -> None:
    output = cycling.generate(CYCLE, SamplingParams(max_tokens=60, stop=["apples. T"]))
    completion = output.outputs[0]
    assert completion.text == "Tom has 3 "
    assert (completion.finish_reason, completion.stop_reason) == ("stop", "apples. T")
    assert completion.token_ids == [*CYCLE, CYCLE[0]]
    assert output.acceptance.acceptance_length == 2.0

    kept = cycling.generate(
        CYCLE, SamplingParams(max_tokens=60, stop="3 app", include_stop_str_in_output=True)
    )
    assert kept.outputs[0].text == "Tom has 3 app"


def test_min_tokens_holds_back_stop_strings(cycling: LLM) -> None:
    first = CYCLE.index(byte_level_tokenizer().encode(" 3")[0]) + 1
    params = SamplingParams(max_tokens=60, stop="3", min_tokens=first)
    completion = cycling.generate(CYCLE, params).outputs[0]
    assert completion.text == TEXT + "Tom has "
    assert completion.length == len(CYCLE) + first


def test_an_end_token_ends_the_text_unless_ignored() -> None:
    models = cycling_models([*CYCLE, EOS])
    with LLM.from_loaded(models, EngineConfig(max_draft_len=1)) as llm:
        ended = llm.generate([*CYCLE, EOS], SamplingParams(max_tokens=40)).outputs[0]
        assert (ended.text, ended.finish_reason, ended.stop_reason) == (TEXT, "stop", None)
        for params in (
            SamplingParams(max_tokens=20, ignore_eos=True),
            SamplingParams(max_tokens=20, end_id=-1),
        ):
            going_on = llm.generate([*CYCLE, EOS], params).outputs[0]
            assert going_on.length == 20
            assert going_on.text.startswith(TEXT + "Tom")
        shown = llm.generate(
            [*CYCLE, EOS], SamplingParams(max_tokens=20, end_id=-1, skip_special_tokens=False)
        )
        assert shown.outputs[0].text.startswith(TEXT + "</s>Tom")
        other = llm.generate([*CYCLE, EOS], SamplingParams(max_tokens=40, end_id=CYCLE[3]))
        assert other.outputs[0].length == 4


def test_log_probabilities_are_those_without_the_draft(models: LoadedModels, llm: LLM) -> None:
    params = SamplingParams(max_tokens=8, logprobs=3)
    with LLM.from_loaded(models) as plain:
        left = llm.generate("Question", params).outputs[0]
        right = plain.generate("Question", params).outputs[0]
    assert len(left.logprobs) == left.length == 8
    for row, other, token in zip(left.logprobs, right.logprobs, left.token_ids, strict=True):
        assert set(row) == set(other)
        assert token in row
        assert len(row) == 3
        for key in row:
            assert row[key].logprob == pytest.approx(other[key].logprob, abs=1e-9)
    total = sum(row[t].logprob for row, t in zip(left.logprobs, left.token_ids, strict=True))
    assert left.cumulative_logprob == pytest.approx(total)


def test_one_set_of_parameters_per_prompt(llm: LLM) -> None:
    params = [SamplingParams(max_tokens=3), SamplingParams(max_tokens=7)]
    outputs = llm.generate(["Tom", "Tom"], params)
    assert [output.outputs[0].length for output in outputs] == [3, 7]
    with pytest.raises(RequestError, match="2 entries for 3 prompts"):
        llm.generate(["a", "b", "c"], params)


def test_seeds_make_runs_repeatable_and_children_differ(models: LoadedModels) -> None:
    params = SamplingParams(max_tokens=12, temperature=1.5, n=3)

    def run(seed: int) -> list[list[int]]:
        with LLM.from_loaded(models, EngineConfig(max_draft_len=2, seed=seed)) as llm:
            outputs = llm.generate(["Tom", "Tom"], params)
        return [completion.token_ids for output in outputs for completion in output.outputs]

    first, again, other = run(7), run(7), run(8)
    assert first == again
    assert first != other
    assert len({tuple(ids) for ids in first}) == 6  # unseeded requests and children all differ


def test_children_of_a_seeded_request_are_requests_with_derived_seeds(
    models: LoadedModels,
) -> None:
    params = SamplingParams(max_tokens=10, temperature=1.2, n=3, seed=2**64 - 5)
    with LLM.from_loaded(models, EngineConfig(max_draft_len=2)) as llm:
        output = llm.generate("Tom has", params)
        assert [completion.index for completion in output.outputs] == [0, 1, 2]
        own = request_seed(0, 0, params.seed)
        seeds = [params.seed, derived_seed(own, 1), derived_seed(own, 2)]
        for completion, seed in zip(output.outputs, seeds, strict=True):
            alone = llm.generate("Tom has", replace(params, n=1, seed=seed))
            assert alone.outputs[0].token_ids == completion.token_ids


def test_derived_seeds_are_spread_and_fit_into_int64() -> None:
    seeds = {derived_seed(seed, index) for seed in range(50) for index in range(50)}
    assert len(seeds) == 2500
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert max(seeds) > 2**62


def test_the_whole_range_of_seeds_maps_to_int64_without_collisions() -> None:
    own = [0, 1, 2**63 - 1, 2**63, 2**64 - 1]
    mapped = [request_seed(0, 0, seed) for seed in own]
    assert len(set(mapped)) == len(own)
    assert all(-(2**63) <= seed < 2**63 for seed in mapped)


def test_prompts_are_truncated_from_the_left_when_asked(llm: LLM) -> None:
    params = SamplingParams(max_tokens=1, truncate_prompt_tokens=2)
    output = llm.generate(TEXT, params)
    assert output.prompt_token_ids == CYCLE[-2:]


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "no tokens"),
        ({"prompt_token_ids": []}, "no tokens"),
        ([VOCAB_SIZE], "vocabulary"),
        ([-1], "vocabulary"),
        ([1.5, 2], "integers"),
        ([True, "a"], "integers"),
        ({"text": "Tom"}, "'prompt'"),
        ({}, "'prompt'"),
        ({"prompt": 5}, "must be a text"),
        ({"prompt_token_ids": "abc"}, "list of integers"),
        (5, "expected a text"),
        ([3] * 1000, "1000 tokens"),
    ],
)
def test_a_bad_prompt_is_refused_and_the_engine_goes_on(
    llm: LLM, prompt: Any, message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        llm.generate(prompt)
    assert llm.generate("Tom", SamplingParams(max_tokens=2)).outputs[0].length == 2


def test_one_bad_prompt_among_others_leaves_nothing_running(models: LoadedModels) -> None:
    with LLM.from_loaded(models) as llm:
        with pytest.raises(RequestError, match="vocabulary"):
            llm.generate(["Tom", [VOCAB_SIZE + 1], "has"], SamplingParams(max_tokens=200))
        assert llm.generate("Tom", SamplingParams(max_tokens=2)).finished
        core = llm._service._core
        assert not core.has_unfinished()
        core.check_integrity()


def test_without_a_tokenizer_there_are_only_tokens(models: LoadedModels) -> None:
    with LLM.from_loaded(replace(models, tokenizer=None)) as llm:
        output = llm.generate([5, 6, 7], SamplingParams(max_tokens=4)).outputs[0]
        assert (output.length, output.text) == (4, "")
        with pytest.raises(RequestError, match="skip_tokenizer_init"):
            llm.generate("Tom")
        with pytest.raises(RequestError, match="stop_token_ids"):
            llm.generate([5], SamplingParams(stop="x"))


def test_acceptance_is_pooled_over_requests(models: LoadedModels) -> None:
    with LLM.from_loaded(models, EngineConfig(max_draft_len=2)) as llm:
        outputs = llm.generate(["Tom", "has"], SamplingParams(max_tokens=9))
        pooled = llm.acceptance
    assert pooled.num_steps == sum(output.acceptance.num_steps for output in outputs)
    assert pooled.num_drafted == sum(output.acceptance.num_drafted for output in outputs)


def test_bar_counts_requests_on_a_terminal(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("FORCE_COLOR", "1")
    llm.generate(["Tom", "has"], SamplingParams(max_tokens=2))
    assert "generating" in capsys.readouterr().err
    llm.generate(["Tom", "has"], SamplingParams(max_tokens=2), use_tqdm=False)
    assert capsys.readouterr().err == ""
