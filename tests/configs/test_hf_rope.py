# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Rotary settings: both spellings, contradictions, unknown kinds."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrt_llm_ext.configs.hf_keys import HFKeys
from tensorrt_llm_ext.configs.hf_rope import rope_config_from_hf
from tensorrt_llm_ext.configs.mla import RopeConfig, YarnConfig
from tensorrt_llm_ext.errors import ConfigError, UnsupportedError

YARN = {
    "factor": 64.0,
    "original_max_position_embeddings": 4096,
    "beta_fast": 1.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
EXPECTED = RopeConfig(
    theta=50000.0,
    max_position_embeddings=262144,
    yarn=YarnConfig(**YARN),  # type: ignore[arg-type]
)


def read(**config: Any) -> RopeConfig:
    return rope_config_from_hf(HFKeys(config, "config.json"))


SPELLINGS = {
    "transformers 4": {"rope_theta": 50000.0, "rope_scaling": {**YARN, "type": "yarn"}},
    "rope_type": {"rope_theta": 50000, "rope_scaling": {**YARN, "rope_type": "yarn"}},
    "both types": {
        "rope_theta": 50000,
        "rope_scaling": {**YARN, "rope_type": "deepseek_yarn", "type": "yarn"},
    },
    "theta in both places": {
        "rope_theta": 50000,
        "rope_scaling": {**YARN, "type": "yarn", "rope_theta": 50000},
    },
    "transformers 5": {
        "rope_parameters": {**YARN, "rope_type": "yarn", "rope_theta": 50000.0},
    },
    "both": {
        "rope_theta": 50000.0,
        "rope_scaling": {**YARN, "type": "yarn"},
        "rope_parameters": {**YARN, "rope_type": "yarn", "rope_theta": 50000.0},
    },
    "deepseek_yarn": {
        "rope_parameters": {**YARN, "rope_type": "deepseek_yarn", "rope_theta": 50000.0},
    },
    "neutral extras": {
        "rope_interleave": True,
        "rope_parameters": {
            **YARN,
            "rope_type": "yarn",
            "rope_theta": 50000.0,
            "truncate": True,
            "partial_rotary_factor": 1.0,
            "attention_factor": 1.0,
        },
    },
}


@pytest.mark.parametrize("config", SPELLINGS.values(), ids=SPELLINGS.keys())
@pytest.mark.parametrize("length", [262144, None])
def test_every_spelling_is_the_same_table(config: dict[str, Any], length: int | None) -> None:
    # An absent length is that of the extended table: TorchSpec's K2.5 config has none.
    assert read(**config, max_position_embeddings=length) == EXPECTED


PLAIN = [
    {"rope_theta": 1e4},
    {"rope_theta": 1e4, "rope_scaling": None},
    {"rope_theta": 1e4, "rope_scaling": {}},
    {"rope_theta": 1e4, "rope_scaling": {"rope_type": "default"}},
    {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
]


@pytest.mark.parametrize("config", PLAIN, ids=str)
def test_default_means_no_scaling(config: dict[str, Any]) -> None:
    expected = RopeConfig(theta=1e4, max_position_embeddings=2048, yarn=None)
    assert read(**config, max_position_embeddings=2048) == expected


def test_absent_numbers_keep_their_meaning() -> None:
    yarn = read(
        rope_theta=1e4,
        rope_scaling={"type": "yarn", "factor": 4, "original_max_position_embeddings": 32},
    ).yarn
    assert yarn == YarnConfig(factor=4.0, original_max_position_embeddings=32)
    assert yarn is not None
    assert yarn.mscale is None
    assert yarn.mscale_all_dim is None


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"rope_theta": None}, ConfigError, "lacks 'rope_theta'"),
        ({"rope_theta": -1}, ConfigError, "above 0"),
        (
            {"rope_scaling": {**YARN, "type": "yarn", "rope_theta": 10000}},
            ConfigError,
            r"rope_theta=50000.0, config.json: rope_scaling: rope_theta=10000.0",
        ),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, ConfigError, "kind .* 'linear'"),
        ({"rope_scaling": {"type": "llama3"}}, ConfigError, "'llama3'"),
        ({"rope_scaling": YARN}, ConfigError, "lacks 'rope_type'"),
        (
            {"rope_scaling": {**YARN, "type": "yarn", "rope_type": "default"}},
            ConfigError,
            "rope_type='default', type='yarn' contradict",
        ),
        (
            {"rope_parameters": {**YARN, "beta_fast": 32.0, "rope_type": "yarn"}},
            ConfigError,
            "beta_fast=1.0.* against .*beta_fast=32.0",
        ),
        (
            {"rope_parameters": {"rope_type": "default"}},
            ConfigError,
            "against no scaling",
        ),
        (
            {"rope_scaling": {**YARN, "type": "yarn", "beta_fasst": 3}},
            ConfigError,
            "did you mean 'beta_fast'",
        ),
        ({"rope_scaling": {"type": "yarn", "factor": 4}}, ConfigError, "lacks 'original_max"),
        ({"rope_scaling": {**YARN, "type": "yarn", "factor": "64"}}, ConfigError, "'factor'"),
        (
            {"rope_scaling": {**YARN, "type": "yarn", "truncate": False}},
            UnsupportedError,
            "truncate=False",
        ),
        (
            {"rope_scaling": {**YARN, "type": "yarn", "attention_factor": 1.4}},
            UnsupportedError,
            "attention_factor=1.4 differs from 1.000000",
        ),
        ({"rope_interleave": False}, UnsupportedError, "rope_interleave=False"),
        ({"partial_rotary_factor": 0.5}, UnsupportedError, "partial_rotary_factor"),
    ],
)
def test_refusals(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    config = {
        "rope_theta": 50000.0,
        "rope_scaling": {**YARN, "type": "yarn"},
        "max_position_embeddings": 262144,
    }
    with pytest.raises(error, match=message):
        read(**{**config, **changes})


def test_a_plain_table_needs_a_length() -> None:
    with pytest.raises(ConfigError, match="lacks 'max_position_embeddings'"):
        read(rope_theta=10000.0)


@given(
    theta=st.floats(2.0, 1e6),
    factor=st.floats(1.0, 128.0),
    original=st.integers(16, 8192),
    mscale=st.none() | st.floats(0.0, 2.0),
    all_dim=st.none() | st.floats(0.0, 2.0),
)
def test_spellings_agree(
    theta: float, factor: float, original: int, mscale: float | None, all_dim: float | None
) -> None:
    inside = {
        "factor": factor,
        "original_max_position_embeddings": original,
        "mscale": mscale,
        "mscale_all_dim": all_dim,
    }
    old = read(rope_theta=theta, rope_scaling={**inside, "type": "yarn"})
    new = read(rope_parameters={**inside, "rope_type": "yarn", "rope_theta": theta})
    assert old == new
    assert old.max_position_embeddings == int(factor * original)
