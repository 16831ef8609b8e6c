# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The word problems: the same everywhere, disjoint by parameters, and right."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import re
from pathlib import Path

import problems
import pytest

from tensorrt_llm_ext.benchmarking.problems import exact_match, load_problems

HELDOUT = Path(problems.__file__).parent / "heldout.jsonl"
EQUATION = re.compile(r"(\d+) ([-+*/]) (\d+) = (\d+)")


def evaluate(left: int, sign: str, right: int) -> int:
    if sign == "/":
        assert left % right == 0
        return left // right
    return {"+": left + right, "-": left - right, "*": left * right}[sign]


def equations(text: str) -> list[tuple[int, int]]:
    """Returns left operand and result of each equation, and checks that it is true."""
    found = []
    for left, sign, right, result in EQUATION.findall(text):
        assert evaluate(int(left), sign, int(right)) == int(result)
        found.append((int(left), int(result)))
    return found


@pytest.mark.parametrize(
    ("ranges", "digest"),
    [(problems.NARROW, "0a479220ee9e66e2"), (problems.WIDE, "4e14f2c23bb4b48f")],
)
def test_draws_are_those_that_the_weights_saw(ranges: problems.Ranges, digest: str) -> None:
    text = "".join(map(problems.format_text, problems.generate("train", 0, 200, ranges)))
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == digest


def test_first_problems_do_not_depend_on_the_count() -> None:
    assert problems.generate("test", 1, 20)[:5] == problems.generate("test", 1, 5)
    assert problems.generate("test", 1, 5) != problems.generate("test", 2, 5)


def test_splits_are_disjoint_by_parameters() -> None:
    train, test = (
        {repr(p.calculation.parameters) for p in problems.generate(split, 3, 1500)}
        for split in ("train", "test")
    )
    assert len(train) > 1000
    assert len(test) > 400
    assert not train & test


def test_a_tenth_of_the_parameters_is_held_out() -> None:
    calculations = [problems.Calculation(("pair", a, b), ()) for a in range(60) for b in range(60)]
    share = sum(c.split == "test" for c in calculations) / len(calculations)
    assert share == pytest.approx(0.1, abs=0.02)


@pytest.mark.parametrize("ranges", [problems.NARROW, problems.WIDE], ids=["narrow", "wide"])
def test_answers_work_out_the_final(ranges: problems.Ranges) -> None:
    kinds = set()
    for problem in problems.generate("train", 4, 600, ranges):
        calculation = problem.calculation
        kinds |= {calculation.start[0], *(step.kind for step in calculation.steps)}
        chain = equations(problem.answer)
        assert len(chain) == len(calculation.steps) + (calculation.start[0] != "plain")
        for (_, result), (left, _) in itertools.pairwise(chain):
            assert left == result
        assert chain[-1][1] == problem.final == problems.extract_answer(problem.answer)
        assert all(1 <= result <= ranges.max_result for _, result in chain)
        for number in (*calculation.start[1:], *(step.number for step in calculation.steps)):
            assert str(number) in problem.question
    assert kinds == {"plain", "pair", "boxes", "earn", "read", "gain", "lose", "times", "share"}


def test_drill() -> None:
    rng = random.Random(5)
    for _ in range(200):
        lines = problems.drill(rng).split("\n")
        assert 6 <= len(lines) <= 12
        assert [line for line in lines if EQUATION.fullmatch(line)] == lines
        for _, result in equations("\n".join(lines)):
            assert 1 <= result <= problems.NARROW.max_result + 10


def test_extract_answer() -> None:
    assert problems.extract_answer("1 + 2 = 3.\n#### 3\n\nQuestion: x\n#### 4") == 3
    assert problems.extract_answer("#### -7") == -7
    assert problems.extract_answer("the answer is 3") is None


def test_heldout_file() -> None:
    text = HELDOUT.read_text(encoding="utf-8")
    expected = problems.heldout()
    assert text == "".join(problems.to_json(problem) + "\n" for problem in expected)
    assert len(expected) >= 1000
    assert HELDOUT.stat().st_size < 400_000
    assert {problem.calculation.split for problem in expected} == {"test"}
    assert len({repr(problem.calculation.parameters) for problem in expected}) == len(expected)
    assert list(json.loads(text.splitlines()[0])) == ["question", "answer", "final"]


def test_package_reads_the_heldout_file_alike() -> None:
    expected = problems.heldout(count=50)
    loaded = load_problems(HELDOUT, 50)
    assert [p.prompt for p in loaded] == [problems.format_prompt(p) for p in expected]
    assert exact_match(loaded, [p.answer for p in expected]) == 1.0
