# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Speculative configs in the host's shape: the schedule, captured layers, refusals."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrt_llm_ext.configs.speculative import (
    MAX_DRAFT_LEN,
    Eagle3DecodingConfig,
    EagleDecodingConfig,
    speculative_config_from_dict,
)
from tensorrt_llm_ext.errors import ConfigError, UnsupportedError

YAML = {
    "decoding_type": "Eagle",
    "max_draft_len": 3,
    "speculative_model_dir": "/models/draft",
    "eagle3_layers_to_capture": [57, 1, 29],
}


def test_the_yaml_of_the_host() -> None:
    config = speculative_config_from_dict(YAML)
    assert type(config) is EagleDecodingConfig
    assert config.speculative_model == "/models/draft"
    assert config.eagle3_layers_to_capture == (1, 29, 57)
    assert config.boundaries_override == (2, 30, 58)
    assert config.draft_len_for(1) == config.draft_len_for(4096) == 3
    newer = speculative_config_from_dict({**YAML, "decoding_type": "Eagle3"})
    assert type(newer) is Eagle3DecodingConfig
    assert newer.boundaries_override == (2, 30, 58)
    assert pickle.loads(pickle.dumps(newer)) == newer


def test_captured_layers_are_optional_and_may_be_a_set() -> None:
    assert Eagle3DecodingConfig(max_draft_len=1).boundaries_override is None
    config = Eagle3DecodingConfig(max_draft_len=1, eagle3_layers_to_capture={4, 2, 6})
    assert config.boundaries_override == (3, 5, 7)


def test_both_spellings_of_the_draft_folder() -> None:
    path = Path("/models/draft")
    assert EagleDecodingConfig(max_draft_len=2, speculative_model=path).speculative_model == path
    with pytest.raises(ConfigError, match="disagree"):
        EagleDecodingConfig.from_dict(
            {"max_draft_len": 2, "speculative_model": "a", "speculative_model_dir": "b"}
        )


SCHEDULES = st.dictionaries(
    st.integers(1, 64), st.integers(0, MAX_DRAFT_LEN), min_size=1, max_size=5
)


@given(SCHEDULES, st.integers(1, 80))
def test_schedule_is_an_upper_bound_per_key(schedule: dict[int, int], batch_size: int) -> None:
    longest = schedule[min(schedule)]
    if max(schedule.values()) > longest:
        with pytest.raises(ConfigError, match="draft_len_schedule value must be between 0 and"):
            EagleDecodingConfig(max_draft_len=longest, draft_len_schedule=schedule)
        return
    config = EagleDecodingConfig(max_draft_len=longest, draft_len_schedule=schedule)
    covering = [limit for limit in sorted(schedule) if batch_size <= limit]
    assert config.draft_len_for(batch_size) == (schedule[covering[0]] if covering else 0)
    assert config.draft_len_for(batch_size) in config.draft_lens
    assert (
        EagleDecodingConfig.from_dict(
            {
                "max_draft_len": longest,
                "draft_len_schedule": {str(k): v for k, v in schedule.items()},
            }
        )
        == config
    )


@given(st.integers(1, 32), st.integers(0, MAX_DRAFT_LEN), st.integers(1, 64))
def test_max_concurrency_is_a_short_schedule(limit: int, longest: int, batch_size: int) -> None:
    config = Eagle3DecodingConfig(max_draft_len=longest, max_concurrency=limit)
    assert config.draft_len_for(batch_size) == (longest if batch_size <= limit else 0)
    assert config.draft_len_schedule == {limit: longest}


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"max_draft_len": None}, ConfigError, "max_draft_len is missing"),
        ({"max_draft_len": 9}, ConfigError, "max_draft_len must be between 0 and 8, got 9"),
        ({"max_draft_len": -1}, ConfigError, "max_draft_len must be between 0 and 8, got -1"),
        ({"draft_len_schedule": {4: 2}}, ConfigError, r"draft_len_schedule\[4\] is 2"),
        ({"draft_len_schedule": {}}, ConfigError, "maps batch sizes"),
        ({"draft_len_schedule": {0: 3}}, ConfigError, "key must be at least 1"),
        ({"draft_len_schedule": {2: 3}, "max_concurrency": 4}, ConfigError, "exclusive"),
        ({"max_concurrency": 0}, ConfigError, "max_concurrency must be at least 1"),
        ({"eagle3_layers_to_capture": [-1]}, UnsupportedError, "give N-1"),
        ({"eagle3_layers_to_capture": [-2, 3]}, ConfigError, "0-based"),
        ({"eagle3_layers_to_capture": [3, 3]}, ConfigError, "different layers"),
        ({"eagle3_layers_to_capture": []}, ConfigError, "different layers"),
        ({"eagle3_layers_to_capture": 3}, ConfigError, "must be a list"),
        ({"eagle3_one_model": False}, UnsupportedError, "one model"),
        ({"eagle_choices": [[0], [1]]}, UnsupportedError, "trees come later"),
        ({"use_dynamic_tree": True}, UnsupportedError, "trees come later"),
        ({"max_total_draft_tokens": 12}, UnsupportedError, "trees come later"),
        ({"posterior_threshold": 0.1}, UnsupportedError, "exact"),
        ({"acceptance_window": 10}, UnsupportedError, "by itself"),
        ({"load_format": "dummy"}, UnsupportedError, "checkpoint"),
        ({"decoding_type": "MTP"}, UnsupportedError, "'MTP'"),
        ({"speculative_model": 3}, ConfigError, "must be the draft's folder"),
        ({"num_draft_tokens": 3}, ConfigError, "no key 'num_draft_tokens'"),
        ({"max_draft_length": 3}, ConfigError, "did you mean 'max_draft_len'"),
    ],
)
def test_refusals(values: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        EagleDecodingConfig.from_dict({"max_draft_len": 3, **values})


@pytest.mark.parametrize(
    "values",
    [
        {"allow_advanced_sampling": True},
        {"greedy_sampling": False},
        {"use_rejection_sampling": True},
        {"eagle3_one_model": None},
        {"num_eagle_layers": 3},
        {"eagle_choices": None, "use_dynamic_tree": False},
        {"eagle3_model_arch": "llama3"},
        {"max_total_draft_tokens": 3},
    ],
    ids=str,
)
def test_fields_without_effect(values: dict[str, Any]) -> None:
    config = EagleDecodingConfig.from_dict({"max_draft_len": 3, **values})
    assert config.draft_len_for(1) == 3


def test_zero_drafts_are_allowed() -> None:
    config = EagleDecodingConfig(max_draft_len=0)
    assert config.draft_len_for(1) == 0
    assert config.draft_lens == (0,)


@pytest.mark.parametrize("values", [{"max_draft_len": 3}, None, []], ids=str)
def test_the_method_must_be_named(values: Any) -> None:
    with pytest.raises(ConfigError, match="decoding_type"):
        speculative_config_from_dict(values)
