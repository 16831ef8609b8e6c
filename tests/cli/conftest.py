# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from tensorrt_llm_ext.cli import main as cli

RunCli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run_cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> RunCli:
    """Runs `trtllm-ext`; returns exit code, standard output and standard error."""
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["trtllm-ext", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            cli.main()
        output = capsys.readouterr()
        return int(stop.value.code or 0), output.out, output.err

    return call
