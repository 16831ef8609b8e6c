# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Errors are catchable by their built-in kin and name the next step."""

from __future__ import annotations

import inspect

import pytest

from tensorrt_llm_ext import errors

BUILTINS = {
    "AllocatorError": RuntimeError,
    "CheckpointError": ValueError,
    "ConfigError": ValueError,
    "HostError": RuntimeError,
    "KernelNotFoundError": NotImplementedError,
    "OutOfBlocksError": RuntimeError,
    "RequestError": ValueError,
    "ShapeError": ValueError,
    "UnsupportedError": NotImplementedError,
}


def test_every_error_has_a_builtin_kin() -> None:
    defined = {
        name
        for name, value in inspect.getmembers(errors, inspect.isclass)
        if issubclass(value, errors.ExtError) and value is not errors.ExtError
    }
    assert defined == set(BUILTINS)


@pytest.mark.parametrize("name", sorted(BUILTINS))
def test_error_is_caught_by_its_builtin_kin(name: str) -> None:
    error = getattr(errors, name)
    assert issubclass(error, BUILTINS[name])
    assert error.__doc__


def test_unknown_key_names_the_nearest() -> None:
    error = errors.unknown_key_error("SamplingParams", "temprature", ["top_k", "temperature"])
    assert isinstance(error, errors.ConfigError)
    assert str(error) == (
        "SamplingParams has no key 'temprature': did you mean 'temperature'? "
        "known keys: temperature, top_k"
    )


def test_unknown_key_without_a_near_one_lists_all() -> None:
    error = errors.unknown_key_error("KvCacheConfig", "zzz", ["max_tokens"])
    assert str(error) == "KvCacheConfig has no key 'zzz': known keys: max_tokens"


def test_nearest_ignores_case() -> None:
    assert errors.nearest("MAX_TOKENS", ["max_tokens", "seed"]) == "max_tokens"
    assert errors.nearest("qqq", []) is None


def test_messages_stay_printable_and_short() -> None:
    """Messages quote strangers' files, whose text may be endless or steer a terminal."""
    error = errors.ConfigError("got '\ud800 \x1b[2J \u202e' in\n\tconfig.json: \u00fc")
    text = str(error)
    assert text == "got '\\ud800 \\x1b[2J \\u202e' in\n\tconfig.json: \u00fc"
    text.encode("utf-8")
    long = str(errors.ConfigError("begin " + "x" * 100_000 + " end"))
    assert len(long) < 3100
    assert long.startswith("begin x")
    assert long.endswith("x end")
    assert " characters] " in long
