# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Typed reading of config.json mappings."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tensorrt_llm_ext.configs.hf_keys import HFKeys, declared_dtype, findings_of
from tensorrt_llm_ext.errors import ConfigError, UnsupportedError


def keys(**values: Any) -> HFKeys:
    return HFKeys(values, "config.json")


def test_null_means_absent() -> None:
    assert not keys(a=None).has("a")
    assert keys(a=None).integer("a", 3) == 3
    assert keys(a=None).optional_integer("a") is None
    assert keys(a=0).optional_integer("a") == 0


@pytest.mark.parametrize(
    ("method", "value", "message"),
    [
        ("integer", "8", "'a' must be an integer of at least 0, got '8'"),
        ("integer", True, "integer"),
        ("integer", 2.5, "integer"),
        ("integer", -1, "at least 0, got -1"),
        ("integer", 2**50, "an integer of at most"),
        ("integer", 1e300, "an integer of at most"),
        ("number", 10**400, "a finite number, got 1000"),
        ("number", "1e-5", "a number"),
        ("number", float("inf"), "finite"),
        ("positive_number", 0, "above 0"),
        ("boolean", "false", "true or false, got 'false'"),
        ("boolean", 0, "true or false"),
        ("text", 3, "a string"),
        ("integers", [1, "2"], "a list of integers"),
        ("section", [1], "a JSON object"),
        ("integer", None, "config.json lacks 'a'"),
    ],
)
def test_wrong_values_name_key_and_value(method: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        getattr(keys(a=value), method)("a")


def test_whole_floats_are_integers() -> None:
    assert keys(a=64.0).integer("a") == 64
    assert keys(a=[1, 2]).integers("a") == (1, 2)
    assert keys(a=1).integers("a") == (1,)


def test_require_value() -> None:
    keys(a=None).require_value("a", (1,), "why")
    keys(a=1).require_value("a", (1,), "why")
    with pytest.raises(UnsupportedError, match=r"a=2 is not supported \(only 1\): why"):
        keys(a=2).require_value("a", (1,), "why")


def test_unknown_keys_are_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        sample = keys(hidden_size=8, use_cache=True, logit_softcap=30.0, zeta=None)
        sample.integer("hidden_size")
        assert sample.warn_unknown() == ("logit_softcap", "zeta")
    warnings = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "logit_softcap, zeta" in warnings[0].getMessage()
    assert keys(zeta=1).warn_unknown(("zeta",)) == ()


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"torch_dtype": "bfloat16"}, "bfloat16"),
        ({"dtype": "bfloat16"}, "bfloat16"),
        ({"dtype": "torch.float16", "torch_dtype": "float16"}, "float16"),
        ({"text_config": {"torch_dtype": "bfloat16"}}, "bfloat16"),
        ({"dtype": "auto"}, None),
        ({}, None),
    ],
)
def test_declared_dtype(config: dict[str, Any], expected: str | None) -> None:
    assert declared_dtype(config) == expected


def test_contradicting_dtypes_name_both() -> None:
    with pytest.raises(ConfigError, match="dtype='float32', torch_dtype='bfloat16'"):
        declared_dtype({"dtype": "float32", "torch_dtype": "bfloat16"})


def test_long_values_are_cut_in_messages() -> None:
    with pytest.raises(ConfigError) as raised:
        keys(a=["x"] * 1000).integer("a")
    assert len(str(raised.value)) < 300


def test_errors_become_findings_of_a_check_unless_they_are_already() -> None:
    for inner, expected in ((None, "V16"), ("V3", "V3")):
        with pytest.raises(ConfigError) as raised, findings_of("V16"):
            raise ConfigError("x", check=inner)
        assert raised.value.check == expected
