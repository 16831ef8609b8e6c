# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Synthetic grade-school word problems with worked answers, in the form of GSM8K.

A problem is a start (a number of things, or two numbers that make one) and up to three steps that
change it, told in one of several wordings each. Its parameters are the kinds and numbers of start
and steps, without the wording. Their hash puts a tenth of all parameters into the split "test" and
the rest into "train", so no training problem has the calculation of a held-out one, whatever
the seeds. (Single equations, such as 7 + 8 = 15, occur in both: they are what is learnt.)

The numbers are small on purpose: about ten million parameters learn these equations as a table.
Drills hold bare equations of that table, all of them, as a child learns them before using them.

    python examples/tiny_kimi/problems.py --split test --seed 2026 --count 1000 --out heldout.jsonl
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Split = Literal["train", "test"]
# ("plain", n), or a kind with its two numbers.
Start = tuple[str, int] | tuple[str, int, int]

HELDOUT_SEED = 2026
HELDOUT_COUNT = 1000

_GIRLS = ("Ana", "Mia", "Lena", "Ruth", "Kate", "Nora")
_BOYS = ("Tom", "Ben", "Sam", "Leo", "Max", "Paul")
_ITEMS = (
    *("apples", "books", "cards", "shells", "stamps", "coins"),
    *("pens", "marbles", "cookies", "eggs", "flowers", "beads"),
)
_BOXES = ("boxes", "bags", "baskets", "jars", "trays", "rows")
_START_KINDS = ("plain", "plain", "plain", "boxes", "boxes", "pair", "earn", "read")
_STEP_KINDS = ("gain", "gain", "lose", "lose", "times", "share")
_FINAL = re.compile(r"#### (-?\d+)")


@dataclass(frozen=True, kw_only=True)
class Ranges:
    """How large numbers get.

    Attributes:
        max_start: A single number at the start.
        max_term: What is added or taken away in one step.
        max_factor: The larger factor of a product, and a quotient; the smaller is at most 9.
        max_result: Of any step.
    """

    max_start: int = 40
    max_term: int = 20
    max_factor: int = 10
    max_result: int = 90


NARROW = Ranges()
# The first minutes of training, and the text that the tokenizer comes from, had larger numbers.
WIDE = Ranges(max_term=40, max_factor=12, max_result=150)


@dataclass(frozen=True)
class Wordings:
    """Ways to tell one start or step, and ways to work it out."""

    question: tuple[str, ...]
    answer: tuple[str, ...]
    item: str | None = None  # instead of the drawn one


# {n} and {b} are the numbers of a start in the order of its parameters, {v} is what they make.
_STARTS = {
    "plain": Wordings(
        (
            "{name} has {v} {item}.",
            "{name} owns {v} {item}.",
            "There are {v} {item} on {name}'s table.",
            "{name} collected {v} {item}.",
        ),
        (
            "{name} starts with {v} {item}.",
            "At first there are {v} {item}.",
            "The start is {v}.",
            "",
        ),
    ),
    "pair": Wordings(
        (
            "{name} has {n} red {item} and {b} blue {item}.",
            "{name} finds {n} {item} on Monday and {b} {item} on Friday.",
            "{friend} brings {n} {item} and {name} adds {b} {item}.",
        ),
        (
            "Together there are {n} + {b} = {v} {item}.",
            "{n} + {b} = {v} {item}.",
            "Both parts make {n} + {b} = {v} {item}.",
            "{name} has {n} + {b} = {v} {item}.",
        ),
    ),
    "earn": Wordings(
        (
            "{name} earns {n} dollars an hour and works {b} hours.",
            "{name} sells {b} toys for {n} dollars each.",
            "{name} saves {n} dollars a week for {b} weeks.",
        ),
        (
            "This brings {n} * {b} = {v} dollars.",
            "{name} gets {n} * {b} = {v} dollars.",
            "That is {n} * {b} = {v} dollars.",
            "{n} * {b} = {v} dollars.",
        ),
        item="dollars",
    ),
    "read": Wordings(
        (
            "{name} reads {n} pages a day for {b} days.",
            "{name} writes {b} letters of {n} pages.",
            "{name} prints {n} pages an hour for {b} hours.",
        ),
        (
            "These are {n} * {b} = {v} pages.",
            "{n} * {b} = {v} pages.",
            "{name} has {n} * {b} = {v} pages.",
            "So many pages: {n} * {b} = {v}.",
        ),
        item="pages",
    ),
    "boxes": Wordings(
        (
            "{name} has {n} {box} with {b} {item} in each.",
            "{name} fills {n} {box} with {b} {item} each.",
            "There are {n} {box} of {b} {item} in {name}'s room.",
        ),
        (
            "The {box} hold {n} * {b} = {v} {item}.",
            "In all {box} there are {n} * {b} = {v} {item}.",
            "{name} has {n} * {b} = {v} {item}.",
            "{n} * {b} = {v} {item}.",
        ),
    ),
}
# {x} is the number of a step, {before} and {after} what it changes into what.
_STEPS = {
    "gain": Wordings(
        (
            "{He} buys {x} more {item}.",
            "{friend} gives {him} {x} {item}.",
            "Then {he} finds {x} {item}.",
            "{x} more {item} come in the mail.",
        ),
        (
            "With the new ones, {name} has {before} + {x} = {after} {item}.",
            "Now there are {before} + {x} = {after}.",
            "That makes {before} + {x} = {after} {item}.",
            "Adding {x} gives {before} + {x} = {after}.",
        ),
    ),
    "lose": Wordings(
        (
            "{He} gives {x} {item} to {friend}.",
            "{He} loses {x} of them.",
            "Then {he} sells {x} {item}.",
            "{friend} takes {x} {item} away.",
        ),
        (
            "After that {name} has {before} - {x} = {after} {item}.",
            "There are {before} - {x} = {after} left.",
            "Taking {x} away leaves {before} - {x} = {after} {item}.",
            "What remains is {before} - {x} = {after}.",
        ),
    ),
    "times": Wordings(
        (
            "{friend} has {x} times as many, and they swap.",
            "A machine makes {x} times as many of them.",
            "The number of {item} grows to {x} times as many.",
        ),
        (
            "{x} times as many is {before} * {x} = {after} {item}.",
            "This becomes {before} * {x} = {after}.",
            "Now it is {before} * {x} = {after} {item}.",
        ),
    ),
    "share": Wordings(
        (
            "{He} shares them equally among {x} friends and counts one share.",
            "{He} splits them into {x} equal parts and keeps one.",
            "They are put into {x} equal {box}, and {he} keeps one of the {box}.",
        ),
        (
            "One share is {before} / {x} = {after} {item}.",
            "Each part has {before} / {x} = {after}.",
            "Split by {x} this is {before} / {x} = {after} {item}.",
        ),
    ),
}
_END = Wordings(
    (
        "How many {item} does {name} have now?",
        "How many {item} are there in the end?",
        "How many {item} is that?",
        "Count the {item} of {name} now.",
    ),
    (
        "So the answer is {final}.",
        "{name} has {final} {item} now.",
        "The result is {final} {item}.",
        "In the end there are {final}.",
        "",
    ),
)


@dataclass(frozen=True)
class Step:
    """One change: its kind and number, the value before it and after it."""

    kind: str
    number: int
    before: int
    after: int


@dataclass(frozen=True)
class Calculation:
    """What a problem computes, without its wording."""

    start: Start
    steps: tuple[Step, ...]

    @property
    def first(self) -> int:
        """The value before any step."""
        if self.start[0] == "plain":
            return self.start[1]
        _, n, b = self.start
        return n + b if self.start[0] == "pair" else n * b

    @property
    def final(self) -> int:
        """The value after the last step."""
        return self.steps[-1].after if self.steps else self.first

    @property
    def parameters(self) -> tuple[Start, list[tuple[str, int]]]:
        """What decides the split."""
        return self.start, [(step.kind, step.number) for step in self.steps]

    @property
    def split(self) -> Split:
        """The split that these parameters belong to."""
        digest = hashlib.sha256(repr(self.parameters).encode()).digest()
        return "test" if int.from_bytes(digest[:4], "big") % 10 == 0 else "train"


@dataclass(frozen=True)
class Problem:
    """A question, its worked answer that ends in `#### {final}`, and what they compute."""

    question: str
    answer: str
    calculation: Calculation

    @property
    def final(self) -> int:
        """The final answer."""
        return self.calculation.final


def _draw_step(rng: random.Random, before: int, ranges: Ranges) -> Step | None:
    """Draws one step; None when the kind drawn does not fit the value."""
    most = ranges.max_factor
    kind = rng.choice(_STEP_KINDS)
    if kind == "gain":
        number = rng.randint(2, ranges.max_term)
        after = before + number
    elif kind == "lose":
        if before < 5:
            return None
        number = rng.randint(2, min(ranges.max_term, before - 1))
        after = before - number
    elif kind == "times":
        number = rng.randint(2, 9)
        if before > most:
            return None
        after = before * number
    else:
        divisors = [d for d in range(2, 10) if before % d == 0 and 1 < before // d <= most]
        if not divisors:
            return None
        number = rng.choice(divisors)
        after = before // number
    return Step(kind, number, before, after) if 1 <= after <= ranges.max_result else None


def _draw_calculation(rng: random.Random, num_steps: int, ranges: Ranges) -> Calculation:
    """Draws a calculation of so many equations, beginning anew when a step does not fit."""
    while True:
        amount = rng.randint(2, ranges.max_start)
        kind = rng.choice(_START_KINDS)
        start: Start
        if kind == "plain":
            start = (kind, amount)
        elif kind == "pair":
            start = (kind, amount, rng.randint(2, ranges.max_term))
        else:
            start = (kind, rng.randint(2, 9), rng.randint(2, ranges.max_factor))
        value = Calculation(start, ()).first
        steps: list[Step] = []
        remaining = num_steps - (kind != "plain")
        while len(steps) < remaining:
            step = _draw_step(rng, value, ranges)
            if step is None:
                break
            steps.append(step)
            value = step.after
        if len(steps) == remaining:
            return Calculation(start, tuple(steps))


def _tell(rng: random.Random, calculation: Calculation) -> Problem:
    """Draws the wording."""
    is_girl = rng.random() < 0.5
    fields: dict[str, str | int] = {
        "name": rng.choice(_GIRLS if is_girl else _BOYS),
        "friend": rng.choice(_BOYS if is_girl else _GIRLS),
        "item": rng.choice(_ITEMS),
        "box": rng.choice(_BOXES),
        "final": calculation.final,
        **dict(zip(("He", "he", "him"), _pronouns(is_girl), strict=True)),
    }
    question: list[str] = []
    answer: list[str] = []

    def add(wordings: Wordings, **numbers: int) -> None:
        if wordings.item is not None:
            fields["item"] = wordings.item
        question.append(rng.choice(wordings.question).format(**fields, **numbers))
        answer.append(rng.choice(wordings.answer).format(**fields, **numbers))

    names = ("v",) if calculation.start[0] == "plain" else ("n", "b")
    add(_STARTS[calculation.start[0]], **_numbers(calculation, names))
    for step in calculation.steps:
        add(_STEPS[step.kind], x=step.number, before=step.before, after=step.after)
    add(_END)
    worked = " ".join(sentence for sentence in answer if sentence)
    return Problem(" ".join(question), f"{worked}\n#### {calculation.final}", calculation)


def _pronouns(is_girl: bool) -> tuple[str, str, str]:
    return ("She", "she", "her") if is_girl else ("He", "he", "him")


def _numbers(calculation: Calculation, names: Sequence[str]) -> dict[str, int]:
    return {**dict(zip(names, calculation.start[1:], strict=True)), "v": calculation.first}


def draw(split: Split, rng: random.Random, ranges: Ranges = NARROW) -> Problem:
    """Draws one problem of a split."""
    while True:
        calculation = _draw_calculation(rng, rng.choice((1, 2, 2, 3)), ranges)
        if calculation.split == split:
            return _tell(rng, calculation)


def generate(split: Split, seed: int, count: int, ranges: Ranges = NARROW) -> list[Problem]:
    """Returns problems of a split; the same for the same seed on every machine.

    Args:
        split: "train" or "test".
        seed: Which problems.
        count: How many. The first ones do not depend on it.
        ranges: How large numbers get.
    """
    rng = random.Random(f"{split}-{seed}")
    return [draw(split, rng, ranges) for _ in range(count)]


def heldout(seed: int = HELDOUT_SEED, count: int = HELDOUT_COUNT) -> list[Problem]:
    """Returns test problems of which no two have the same parameters."""
    rng = random.Random(f"test-{seed}")
    problems: dict[str, Problem] = {}
    while len(problems) < count:
        problem = draw("test", rng)
        problems.setdefault(repr(problem.calculation.parameters), problem)
    return list(problems.values())


def _sum_terms(rng: random.Random) -> tuple[int, int]:
    """Draws terms of one digit, terms without a carry, or any: easy ones teach what a digit is."""
    kind = rng.random()
    if kind < 0.4:
        return rng.randint(1, 9), rng.randint(1, 9)
    b = rng.randint(2, NARROW.max_term)
    if kind < 0.7:
        units = rng.randint(0, 9 - b % 10)
        tens = rng.randint(0, (NARROW.max_result - b - units) // 10)
        return max(1, 10 * tens + units), b
    return rng.randint(2, NARROW.max_result - b), b


def _difference_terms(rng: random.Random) -> tuple[int, int]:
    """Draws terms of one digit, terms without a borrow, or any."""
    kind = rng.random()
    if kind < 0.4:
        b, difference = rng.randint(1, 9), rng.randint(1, 9)
        return b + difference, b
    if kind < 0.7:
        b = rng.randint(2, NARROW.max_term)
        units = rng.randint(b % 10, 9)
        least = b // 10 + (units == b % 10)  # tens that keep the difference above 0
        return 10 * rng.randint(least, max(least, NARROW.max_result // 10 - 1)) + units, b
    a = rng.randint(3, NARROW.max_result)
    return a, rng.randint(2, min(NARROW.max_term, a - 1))


def drill(rng: random.Random) -> str:
    """Returns six to twelve bare equations, one a line: the table that worked answers need."""
    lines = []
    for _ in range(rng.randint(6, 12)):
        operator = rng.choice("+++---*/")
        if operator == "+":
            a, b = _sum_terms(rng)
            lines.append(f"{a} + {b} = {a + b}")
        elif operator == "-":
            a, b = _difference_terms(rng)
            lines.append(f"{a} - {b} = {a - b}")
        elif operator == "*":
            a, b = rng.randint(2, NARROW.max_factor), rng.randint(2, 9)
            a, b = (a, b) if rng.random() < 0.5 else (b, a)
            lines.append(f"{a} * {b} = {a * b}")
        else:
            a, b = rng.randint(2, NARROW.max_factor), rng.randint(2, 9)
            lines.append(f"{a * b} / {b} = {a}")
    return "\n".join(lines)


def format_prompt(problem: Problem) -> str:
    """Returns what the model is asked; its answer begins with a space."""
    return f"Question: {problem.question}\nAnswer:"


def format_text(problem: Problem) -> str:
    """Returns prompt and worked answer."""
    return f"{format_prompt(problem)} {problem.answer}"


def extract_answer(text: str) -> int | None:
    """Returns the first number after `####`, or None when there is none."""
    match = _FINAL.search(text)
    return None if match is None else int(match.group(1))


def to_json(problem: Problem) -> str:
    """Returns the line of a JSON-lines file."""
    row = {"question": problem.question, "answer": problem.answer, "final": problem.final}
    return json.dumps(row, separators=(",", ":"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--split", choices=("train", "test"), default="test")
    parser.add_argument("--seed", type=int, default=HELDOUT_SEED)
    parser.add_argument("--count", type=int, default=HELDOUT_COUNT)
    parser.add_argument("--out", type=Path, help="JSON lines; printed as text when absent")
    options = parser.parse_args()
    if options.split == "test":
        problems = heldout(options.seed, options.count)
    else:
        problems = generate(options.split, options.seed, options.count)
    if options.out is None:
        print("\n\n".join(map(format_text, problems)))
    else:
        lines = "".join(to_json(problem) + "\n" for problem in problems)
        options.out.write_text(lines, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
