# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The entry point: which lines get `--custom_module_dirs`, and which stay as they are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tensorrt_llm_ext

ROOT = Path(__file__).parents[2]
ENTRYPOINT = ROOT / "docker" / "entrypoint.sh"
REGISTER = Path(tensorrt_llm_ext.__file__).parent / "_custom_modules" / "trtllm_ext_register"
ADDED = ["--custom_module_dirs", str(REGISTER)]
COMMANDS = ("trtllm-serve", "trtllm-bench", "trtllm-llmapi-launch", "mpirun", "trtllm-ext", "which")


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of programs that print their own name and words, one a line."""
    folder = tmp_path_factory.mktemp("bin")
    for name in COMMANDS:
        _program(folder / name, 'printf "%s\\n" "$(basename "$0")" "$@"')
    _program(folder / "python3", f'exec "{sys.executable}" "$@"')
    return folder


def _program(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/bash\n{line}\n", encoding="utf-8")
    path.chmod(0o755)


def run(programs: Path, tmp_path: Path, *words: str) -> list[str]:
    """Runs the entry point; returns the words of what it started."""
    environment = {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "TMPDIR": str(tmp_path),
    }
    done = subprocess.run(
        ["bash", str(ENTRYPOINT), *words], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    "line",
    [
        "trtllm-serve /models/kimi --config extra.yaml",
        "trtllm-serve serve /models/kimi",
        "trtllm-serve kimi --custom_module_dirs /other/folder",
        "trtllm-bench --model kimi throughput --dataset d.json",
        "trtllm-bench --model kimi latency",
        "trtllm-llmapi-launch trtllm-serve kimi --tp_size 16",
        "mpirun -n 2 --allow-run-as-root trtllm-serve kimi",
    ],
)
def test_lines_that_serve_get_the_option_at_their_end(
    programs: Path, tmp_path: Path, line: str
) -> None:
    words = line.split()
    assert run(programs, tmp_path, *words) == [*words, *ADDED]


@pytest.mark.parametrize(
    "line",
    [
        "trtllm-serve",
        "trtllm-serve --help",
        "trtllm-serve disaggregated -c c.yaml",
        "trtllm-serve mm_embedding_serve kimi",
        "trtllm-serve kimi --custom_module_dirs /x/_custom_modules/trtllm_ext_register",
        "trtllm-serve kimi --custom_module_dirs=/x/trtllm_ext_register/ --port 1",
        "trtllm-bench --model kimi prepare-dataset",
        "trtllm-ext doctor --trtllm",
        "which trtllm-serve kimi",
    ],
)
def test_other_lines_run_as_they_are(programs: Path, tmp_path: Path, line: str) -> None:
    words = line.split()
    assert run(programs, tmp_path, *words) == words


def test_words_keep_their_spaces_and_stars(programs: Path, tmp_path: Path) -> None:
    words = ["trtllm-serve", "my model", "--chat_template", "{{ a * b }}", ""]
    assert run(programs, tmp_path, *words) == [*words, *ADDED]


def test_option_stands_before_the_end_of_options(programs: Path, tmp_path: Path) -> None:
    found = run(programs, tmp_path, "trtllm-serve", "serve", "--port", "1", "--", "-odd-name")
    assert found == ["trtllm-serve", "serve", "--port", "1", *ADDED, "--", "-odd-name"]


@pytest.mark.parametrize(
    ("words", "port"),
    [
        (["trtllm-serve", "kimi"], "8000"),
        (["trtllm-serve", "kimi", "--port", "9001"], "9001"),
        (["trtllm-serve", "kimi", "--port=9002"], "9002"),
        (["trtllm-ext", "--port", "9003"], None),
    ],
)
def test_port_is_left_for_the_health_check(
    programs: Path, tmp_path: Path, words: list[str], port: str | None
) -> None:
    run(programs, tmp_path, *words)
    file = tmp_path / "trtllm_ext_port"
    assert (file.read_text(encoding="utf-8").strip() if file.exists() else None) == port


def test_a_missing_package_is_said(programs: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bin"
    bare.mkdir()
    _program(bare / "python3", f'exec "{sys.executable}" -I -S "$@"')
    environment = {"PATH": f"{bare}:{programs}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)}
    command = ["bash", str(ENTRYPOINT), "trtllm-serve", "kimi"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode != 0
    assert "tensorrt_llm_ext is not installed" in done.stderr
    assert not done.stdout
