# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""ENVIRONMENT.md says what envs.py does, and the variables behave as described."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from tensorrt_llm_ext import envs
from tensorrt_llm_ext.errors import ConfigError

ROOT = Path(__file__).parents[2]


def test_environment_page_equals_the_code() -> None:
    page = (ROOT / "ENVIRONMENT.md").read_text(encoding="utf-8")
    assert page == envs.render_markdown(), "run: python -m tensorrt_llm_ext.envs > ENVIRONMENT.md"


def test_every_variable_in_the_sources_has_a_row() -> None:
    pattern = re.compile(rf"{envs.PREFIX}[A-Z0-9_]+[A-Z0-9]")
    for path in sorted((ROOT / "tensorrt_llm_ext").rglob("*.py")):
        for name in pattern.findall(path.read_text(encoding="utf-8")):
            assert any(name.startswith(row.stem.rstrip("_")) for row in envs.VARIABLES), (
                f"{path.name} uses {name}, which has no row in envs.py"
            )


def test_get_returns_default_then_value() -> None:
    assert envs.get("TRTLLM_EXT_LOG_LEVEL", {}) == "WARNING"
    assert envs.get("TRTLLM_EXT_LOG_LEVEL", {"TRTLLM_EXT_LOG_LEVEL": "debug"}) == "DEBUG"
    assert envs.get("TRTLLM_EXT_KERNEL_MLA_DECODE", {}) is None


def test_get_refuses_a_bad_value() -> None:
    with pytest.raises(ConfigError, match=r"TRTLLM_EXT_LOG_LEVEL is 'loud', expected one of DEBUG"):
        envs.get("TRTLLM_EXT_LOG_LEVEL", {"TRTLLM_EXT_LOG_LEVEL": "loud"})


def test_get_refuses_an_unknown_name() -> None:
    with pytest.raises(ConfigError, match="did you mean 'TRTLLM_EXT_LOG_LEVEL'"):
        envs.get("TRTLLM_EXT_LOGLEVEL", {})


def test_kernel_choice_reads_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRTLLM_EXT_KERNEL_MLA_DECODE", raising=False)
    assert envs.kernel_choice("mla_decode") is None
    monkeypatch.setenv("TRTLLM_EXT_KERNEL_MLA_DECODE", "reference")
    assert envs.kernel_choice("mla_decode") == "reference"


def test_check_warns_about_variables_without_effect(caplog: pytest.LogCaptureFixture) -> None:
    environ = {
        "PATH": "",
        "TRTLLM_EXT_KERNEL_MLA_DECODER": "reference",
        "TRTLLM_EXT_LOG_LEVEL": "INFO",
        "TRTLLM_EXT_LOGLEVEL": "INFO",
    }
    with caplog.at_level(logging.WARNING):
        assert envs.check(environ=environ) == ("TRTLLM_EXT_LOGLEVEL",)
    assert "did you mean TRTLLM_EXT_LOG_LEVEL?" in caplog.text
    assert envs.check(["mla_decode"], environ) == (
        "TRTLLM_EXT_KERNEL_MLA_DECODER",
        "TRTLLM_EXT_LOGLEVEL",
    )
