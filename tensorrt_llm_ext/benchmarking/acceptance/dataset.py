# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""What is asked, and of which category each question is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorrt_llm_ext.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Question:
    """One prompt: a text, or a conversation.

    Attributes:
        text: The prompt; None for a conversation.
        messages: Of a conversation.
        category: Name of its kind.
    """

    text: str | None = None
    messages: tuple[dict[str, Any], ...] = ()
    category: str = "all"


def read_questions(path: Path, limit: int | None = None) -> list[Question]:
    """Reads a file of JSON lines.

    Args:
        path: Each line has "prompt", "messages" or "question" (asked as a word problem), and may
            have "category".
        limit: Most questions; all when None.

    Raises:
        ConfigError: If the file cannot be read, or a line has none of these.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"The dataset {path} cannot be read: {error}") from error
    found: list[Question] = []
    for number, line in enumerate(lines, start=1):
        if limit is not None and len(found) == limit:
            break
        if line.strip():
            found.append(_parse(path, number, line))
    if not found:
        raise ConfigError(f"The dataset {path} holds no question.")
    return found


def _parse(path: Path, number: int, line: str) -> Question:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{path.name}, line {number}, is not JSON: {error}") from error
    if not isinstance(row, dict):
        raise ConfigError(f"{path.name}, line {number}, is not a JSON object.")
    category = str(row.get("category", "all"))
    if isinstance(row.get("messages"), list):
        return Question(messages=tuple(row["messages"]), category=category)
    if isinstance(row.get("prompt"), str):
        return Question(text=row["prompt"], category=category)
    if isinstance(row.get("question"), str):
        return Question(text=f"Question: {row['question']}\nAnswer:", category=category)
    raise ConfigError(f'{path.name}, line {number}, has no "prompt", "messages" or "question".')


def as_conversations(questions: Sequence[Question]) -> list[Question]:
    """Texts become what a user says, for models that are served with their chat template."""
    return [
        q
        if q.messages
        else Question(messages=({"role": "user", "content": q.text},), category=q.category)
        for q in questions
    ]


__all__ = ["Question", "as_conversations", "read_questions"]
