# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Every script in `examples/` runs: on tiny_kimi, or without its weights on a stand-in."""

from __future__ import annotations

import json
import runpy
import shutil
from pathlib import Path

import pytest

from tests.e2e.conftest import EXAMPLES, has_tiny_kimi
from tests.support.cycling_models import write_cycling_checkpoints
from tests.support.tiny_tokenizers import byte_level_tokenizer

SCRIPTS = sorted(path.name for path in EXAMPLES.glob("*.py"))
MAX_LINES = 60
EXPECTED = {
    "quickstart.py": ["Question: Tom has 3 apples", "tokens per verify step"],
    "compare_with_draft.py": ["1 draft token(s): text identical", "3 draft token(s)", "as fast"],
    "streaming.py": ["  apples | ", "    pens | finished: "],
}


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the scripts beside models."""
    folder = tmp_path_factory.mktemp("examples")
    for script in EXAMPLES.glob("*.py"):
        shutil.copy(script, folder)
    if has_tiny_kimi():
        (folder / "tiny_kimi").symlink_to(EXAMPLES / "tiny_kimi", target_is_directory=True)
        return folder
    write_cycling_checkpoints(folder / "tiny_kimi", byte_level_tokenizer().encode("Tom has: 3"))
    row = json.dumps({"question": "How many?", "answer": "#### 3", "final": 3})
    (folder / "tiny_kimi" / "heldout.jsonl").write_text(f"{row}\n" * 4, encoding="utf-8")
    return folder


def test_every_script_has_an_expectation() -> None:
    assert sorted(EXPECTED) == SCRIPTS


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_runs(name: str, examples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(examples / name), run_name="__main__")
    output = capsys.readouterr().out
    for text in EXPECTED[name]:
        assert text in output


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_is_short(name: str) -> None:
    assert len((EXAMPLES / name).read_text(encoding="utf-8").splitlines()) <= MAX_LINES
