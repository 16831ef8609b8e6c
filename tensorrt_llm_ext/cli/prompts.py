# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Where the prompts of a command come from, and where the example models are."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorrt_llm_ext.errors import ConfigError, RequestError

if TYPE_CHECKING:
    from tensorrt_llm_ext.benchmarking.problems import Problem

_REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is to be generated, and how the texts are judged.

    Attributes:
        prompts: The texts.
        problems: The problem behind each prompt; empty when prompts are no problems.
    """

    prompts: list[str]
    problems: list[Problem] = field(default_factory=list)


def make_task(prompts: list[str], prompts_file: Path | None, num_problems: int | None) -> Task:
    """Collects the prompts that a command was given.

    Raises:
        RequestError: If there is none, or problems are mixed with prompts.
        ConfigError: If a file cannot be read.
    """
    if num_problems is None:
        if prompts_file is not None:
            prompts = [*prompts, *read_prompts(prompts_file)]
        if not prompts:
            raise RequestError("There is no prompt. Pass --prompt, --prompts-file or --problems.")
        return Task(prompts=prompts)
    if prompts or prompts_file is not None:
        raise RequestError(
            "--problems cannot be mixed with --prompt or --prompts-file, because its texts are "
            "scored. Run the command twice."
        )
    from tensorrt_llm_ext.benchmarking.problems import load_problems

    problems = load_problems(tiny_kimi("heldout.jsonl"), num_problems)
    return Task(prompts=[problem.prompt for problem in problems], problems=problems)


def sample_texts(
    target: Path,
    prompts_file: Path | None,
    num_problems: int | None,
    states: Path | None,
    *,
    default: int,
) -> list[str] | None:
    """Collects the texts that a draft is to be judged or calibrated on.

    Args:
        target: The target's folder; the bundled example has problems of its own.
        prompts_file: See `read_prompts`.
        num_problems: So many of the bundled problems.
        states: Captured states, in place of texts.
        default: Number of the bundled problems when nothing was given.

    Returns:
        The prompts; None when there are states.

    Raises:
        ConfigError: If more than one is given, or none and the target is not the bundled one.
    """
    if sum(given is not None for given in (prompts_file, num_problems, states)) > 1:
        raise ConfigError("--prompts-file, --problems and --states exclude each other.")
    if states is not None:
        return None
    if prompts_file is not None:
        return read_prompts(prompts_file)
    if num_problems is None and not _is_tiny_kimi(target):
        raise ConfigError(
            "There are no texts: give prompts of the kind that the model will serve with "
            "--prompts-file (100 are a good number), or captured states with --states."
        )
    from tensorrt_llm_ext.benchmarking.problems import load_problems

    problems = load_problems(tiny_kimi("heldout.jsonl"), num_problems or default)
    return [problem.prompt for problem in problems]


def _is_tiny_kimi(target: Path) -> bool:
    """Whether the target is the one that the held-out problems belong to."""
    try:
        return target.resolve().parent == tiny_kimi("heldout.jsonl").resolve().parent
    except ConfigError:
        return False


def tiny_kimi(name: str) -> Path:
    """Returns a file or folder of `examples/tiny_kimi` of the repository this code lies in.

    Raises:
        ConfigError: If it is not there, as in an installed wheel.
    """
    path = _REPOSITORY / "examples" / "tiny_kimi" / name
    if not path.exists():
        raise ConfigError(
            f"examples/tiny_kimi/{name} was not found beside this package (a wheel has no "
            "examples). Pass --model FOLDER and --draft FOLDER, or run from a clone of the "
            "repository."
        )
    return path


def read_prompts(path: Path) -> list[str]:
    """Reads prompts from a file.

    Args:
        path: `.jsonl` has one JSON value per line and `.json` a list of them: texts, or objects
            with `prompt`. Any other file has one prompt per line; empty lines are skipped.

    Raises:
        ConfigError: If the file cannot be read or parsed.
        RequestError: If it holds no prompt.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--prompts-file {path} cannot be read: {error}") from error
    lines = [line for line in text.splitlines() if line.strip()]
    if path.suffix == ".jsonl":
        prompts = [_prompt_of(_parse(path, line), path) for line in lines]
    elif path.suffix == ".json":
        values = _parse(path, text)
        if not isinstance(values, list):
            raise ConfigError(f"{path.name} must hold a list, got {type(values).__name__}")
        prompts = [_prompt_of(value, path) for value in values]
    else:
        prompts = lines
    if not prompts:
        raise RequestError(f"{path.name} holds no prompt.")
    return prompts


def _parse(path: Path, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{path.name} is not valid {path.suffix}: {error}") from error


def _prompt_of(value: Any, path: Path) -> str:
    prompt = value.get("prompt") if isinstance(value, dict) else value
    if not isinstance(prompt, str):
        raise ConfigError(f"{path.name}: a prompt is a text or an object with 'prompt': {value!r}")
    return prompt
