# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tensorrt_llm_ext.benchmarking.problems import (
    Problem,
    exact_match,
    final_answer,
    load_problems,
)
from tensorrt_llm_ext.errors import ConfigError

ROWS = [
    {"question": f"What is {i} + 1?", "answer": f" {i} + 1 = {i + 1}\n#### {i + 1}", "final": i + 1}
    for i in range(5)
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "heldout.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in ROWS) + "\n\n", encoding="utf-8")
    return file


def test_problems_load_in_order(path: Path) -> None:
    problems = load_problems(path, 2)
    assert [problem.question for problem in problems] == ["What is 0 + 1?", "What is 1 + 1?"]
    assert problems[0].prompt == "Question: What is 0 + 1?\nAnswer:"
    assert problems[1].final == "2"
    assert len(load_problems(path, 5)) == 5


def test_bad_files_are_named(path: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds 5 problems, 6 were asked for"):
        load_problems(path, 6)
    with pytest.raises(ConfigError, match="does not exist"):
        load_problems(tmp_path / "none.jsonl", 1)
    path.write_text('{"question": "q"}\n', encoding="utf-8")
    with pytest.raises(ConfigError, match="line 1, lacks one of question, answer, final"):
        load_problems(path, 1)
    path.write_text("nonsense\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="line 1, is not JSON"):
        load_problems(path, 1)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (" 3 + 4 = 7\n#### 7", "7"),
        ("#### 1,234.", "1234"),
        ("####-5", "-5"),
        ("#### 7\nQuestion: next\n#### 8", "7"),
        ("the answer is 7", None),
        ("", None),
    ],
)
def test_final_answers(text: str, answer: str | None) -> None:
    assert final_answer(text) == answer


def test_exact_match_is_the_share_of_right_final_answers() -> None:
    problems = [Problem(question="q", answer="a", final=final) for final in ("7", "1,000", "3")]
    assert exact_match(problems, ["#### 7", "#### 1000", "#### 4"]) == pytest.approx(2 / 3)
    assert exact_match(problems, ["7", "1000", "3"]) == 0.0
