# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""SamplingParams: the host's shape, its greedy rule, and every refusal."""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrt_llm_ext.configs.sampling import SamplingParams
from tensorrt_llm_ext.errors import ConfigError, ExtError, UnsupportedError

# What the host's class accepts without any effect on the text; a script may pass all of it.
NEUTRAL: dict[str, Any] = {
    "bad": None,
    "embedding_bias": None,
    "logits_processor": None,
    "apply_batched_logits_processor": False,
    "best_of": None,
    "use_beam_search": False,
    "top_p_min": None,
    "length_penalty": 0.5,
    "early_stopping": 1,
    "beam_search_diversity_rate": 0.5,
    "return_perf_metrics": True,
    "return_context_logits": False,
    "exclude_input_from_output": True,
    "guided_decoding": None,
    "pad_id": 3,
}

PARAMS = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.none() | st.floats(0, 4),
        "top_k": st.none() | st.integers(0, 100),
        "top_p": st.none() | st.floats(0, 1),
        "min_p": st.none() | st.floats(0, 1),
        "seed": st.none() | st.integers(0, 2**64 - 1),
        "max_tokens": st.integers(8, 64),
        "min_tokens": st.none() | st.integers(0, 8),
        "repetition_penalty": st.none() | st.floats(0.1, 3),
        "presence_penalty": st.none() | st.floats(-2, 2),
        "frequency_penalty": st.none() | st.floats(-2, 2),
        "stop": st.none() | st.text(min_size=1) | st.lists(st.text(min_size=1), max_size=3),
        "stop_token_ids": st.none() | st.lists(st.integers(0, 99), max_size=3),
        "bad_token_ids": st.none() | st.lists(st.integers(0, 99), max_size=3),
        "logit_bias": st.none() | st.dictionaries(st.integers(0, 99), st.floats(-9, 9), max_size=3),
        "logprobs": st.none() | st.integers(0, 5) | st.booleans(),
        "prompt_logprobs": st.none() | st.integers(0, 5) | st.booleans(),
        "ignore_eos": st.booleans(),
    },
)


@given(PARAMS)
def test_valid_parameters_round_trip(values: dict[str, Any]) -> None:
    params = SamplingParams.from_dict(values)
    assert SamplingParams.from_dict(params.to_dict()) == params
    assert pickle.loads(pickle.dumps(params)) == params
    assert copy.deepcopy(params) == params
    assert dataclasses.replace(params) == params
    assert hash(params) == hash(dataclasses.replace(params))


@given(PARAMS)
def test_effective_values_follow_the_host(values: dict[str, Any]) -> None:
    params = SamplingParams(**values)
    temperature, top_k, top_p = (values.get(k) for k in ("temperature", "top_k", "top_p"))
    unset = temperature is None and top_k is None and top_p is None
    greedy = unset or temperature == 0 or top_k == 1 or top_p == 0
    assert params.is_greedy == greedy
    assert (params.effective_temperature == 0) == greedy
    if not greedy:
        assert params.effective_temperature == (1.0 if temperature is None else temperature)
    assert params.effective_top_k == (top_k or 0)
    assert params.effective_top_p == (1.0 if top_p is None else top_p)
    assert params.effective_min_p == (values.get("min_p") or 0.0)
    for token, bias in params.token_bias.items():
        banned = token in (values.get("bad_token_ids") or ())
        assert bias == (-math.inf if banned else values["logit_bias"][token])


OUT_OF_RANGE = {
    "temperature": st.floats(max_value=-1e-9),
    "top_k": st.integers(max_value=-1),
    "top_p": st.floats(max_value=-1e-9) | st.floats(min_value=1.0001),
    "min_p": st.floats(max_value=-1e-9) | st.floats(min_value=1.0001),
    "seed": st.integers(max_value=-1) | st.integers(min_value=2**64),
    "max_tokens": st.integers(max_value=0),
    "min_tokens": st.integers(max_value=-1) | st.integers(min_value=33),
    "n": st.integers(max_value=0),
    "repetition_penalty": st.floats(max_value=1e-10) | st.floats(min_value=1e10),
    "presence_penalty": st.floats(max_value=-1e10) | st.floats(min_value=1e10),
    "frequency_penalty": st.floats(max_value=-1e10) | st.floats(min_value=1e10),
    "truncate_prompt_tokens": st.integers(max_value=0),
    "logprobs": st.integers(max_value=-1),
    "prompt_logprobs": st.integers(max_value=-1),
}


@given(
    st.sampled_from(sorted(OUT_OF_RANGE)).flatmap(
        lambda name: st.tuples(st.just(name), OUT_OF_RANGE[name])
    )
)
def test_out_of_range_is_refused_by_name(case: tuple[str, Any]) -> None:
    name, value = case
    with pytest.raises(ConfigError, match=name):
        SamplingParams(**{name: value})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"temperature": math.nan}, "temperature must be finite"),
        ({"temperature": "hot"}, "temperature must be a number, got 'hot'"),
        ({"top_k": 1.5}, "top_k must be an integer"),
        ({"max_tokens": True}, "max_tokens must be an integer"),
        ({"ignore_eos": "false"}, "ignore_eos must be true or false"),
        ({"stop": ""}, "stop must hold non-empty strings"),
        ({"stop": 3}, "stop must hold non-empty strings, got 3"),
        ({"stop": ["a", 3]}, "stop must hold non-empty strings"),
        ({"stop_token_ids": "12"}, "stop_token_ids must be a list"),
        ({"bad_token_ids": [-1]}, "bad_token_ids must be at least 0"),
        ({"logit_bias": [1]}, "logit_bias maps token ids"),
        ({"logit_bias": {3: math.inf}}, "logit_bias must be finite"),
        ({"logit_bias": {3: math.nan}}, "logit_bias must be finite"),
        ({"logit_bias": {"x": 1.0}}, "logit_bias key must be an integer"),
        ({"logprobs": "many"}, "logprobs must be an integer"),
        ({"n": 2}, "equal texts"),
    ],
)
def test_malformed_values_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SamplingParams(**values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"use_beam_search": True}, "beam search"),
        ({"best_of": 4, "n": 2, "temperature": 1.0}, "best_of=4 with n=2"),
        ({"bad": "word"}, "use bad_token_ids"),
        ({"embedding_bias": [0.0]}, "use logit_bias"),
        ({"logits_processor": object()}, "callbacks"),
        ({"guided_decoding": {"regex": "a"}}, "guided decoding"),
        ({"return_generation_logits": True}, "use logprobs"),
        ({"exclude_input_from_output": False}, "never repeat the prompt"),
        ({"no_repeat_ngram_size": 3}, "n-gram"),
        ({"top_p_decay": 0.9}, "use top_p"),
    ],
)
def test_what_cannot_be_honoured_is_refused_with_a_reason(
    values: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        SamplingParams(**values)


def test_a_script_of_the_host_runs_unchanged() -> None:
    assert SamplingParams(**NEUTRAL, max_tokens=5) == SamplingParams(max_tokens=5, pad_id=3)


def test_unknown_field_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"'temprature'.*did you mean 'temperature'"):
        SamplingParams.from_dict({"temprature": 1.0})
    with pytest.raises(ConfigError, match="mapping"):
        SamplingParams.from_dict([("n", 1)])  # type: ignore[arg-type]


def test_fields_are_brought_into_one_form() -> None:
    params = SamplingParams(stop="end", logit_bias={"7": 2}, logprobs=True, bad_token_ids=[7, 9])
    assert params.stop_strings == ("end",)
    assert params.logit_bias == {7: 2.0}
    assert params.logprobs == 1
    assert params.token_bias == {7: -math.inf, 9: -math.inf}
    assert SamplingParams(logit_bias={3: -math.inf}).token_bias == {3: -math.inf}
    assert SamplingParams(n=2, best_of=2, temperature=0.7).n == 2


def test_it_is_frozen_and_typed() -> None:
    params = SamplingParams()
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.n = 2  # type: ignore[misc]
    assert not params.has_penalties
    assert SamplingParams(presence_penalty=0.1).has_penalties
    assert issubclass(ConfigError, ExtError)
    assert issubclass(UnsupportedError, NotImplementedError)
