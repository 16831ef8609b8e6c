# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Word problems with worked answers, in the form of GSM8K, and how answers are scored."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tensorrt_llm_ext.errors import ConfigError

# What GSM8K writes before a final answer; "strict match" in its usual evaluation.
_FINAL = re.compile(r"####\s*(-?[0-9.,]+)")
_FIELDS = ("question", "answer", "final")


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """A question with its worked answer.

    Attributes:
        question: The text of the problem.
        answer: The worked answer, with the final one at its end.
        final: The final answer.
    """

    question: str
    answer: str
    final: str

    @property
    def prompt(self) -> str:
        """What the model is asked."""
        return f"Question: {self.question}\nAnswer:"


def load_problems(path: Path, num_problems: int) -> list[Problem]:
    """Reads the first problems of a JSON-lines file.

    Args:
        path: Lines of `{"question": …, "answer": …, "final": …}`.
        num_problems: How many, at least 1.

    Raises:
        ConfigError: If the file is missing or too short, or a line is malformed.
    """
    if not path.is_file():
        raise ConfigError(f"The problems are missing: {path} does not exist. Use --prompt instead.")
    problems: list[Problem] = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if len(problems) == num_problems:
                break
            if line.strip():
                problems.append(_parse(path, number, line))
    if len(problems) < num_problems:
        raise ConfigError(
            f"{path.name} holds {len(problems)} problems, {num_problems} were asked for. "
            f"Ask for at most {len(problems)}."
        )
    return problems


def _parse(path: Path, number: int, line: str) -> Problem:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{path.name}, line {number}, is not JSON: {error}") from error
    if not isinstance(row, dict) or any(name not in row for name in _FIELDS):
        raise ConfigError(f"{path.name}, line {number}, lacks one of {', '.join(_FIELDS)}")
    return Problem(**{name: str(row[name]) for name in _FIELDS})


def final_answer(text: str) -> str | None:
    """Returns the first number that follows `####`, without commas and final dots; None without."""
    match = _FINAL.search(text)
    return None if match is None else _normalised(match.group(1))


def _normalised(number: str) -> str:
    return number.replace(",", "").rstrip(".")


def exact_match(problems: Sequence[Problem], texts: Sequence[str]) -> float:
    """Returns the share of texts whose final answer is the problem's."""
    hits = [
        final_answer(text) == _normalised(problem.final)
        for problem, text in zip(problems, texts, strict=True)
    ]
    return sum(hits) / len(hits)
