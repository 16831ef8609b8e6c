# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Every doubt has a run in which it is raised, and one in which it is not."""

from __future__ import annotations

import dataclasses
import random

from tensorrt_llm_ext.benchmarking.acceptance.measurement import Answer, Measurement
from tensorrt_llm_ext.benchmarking.acceptance.suspect import judge
from tensorrt_llm_ext.speculative.stats import AcceptanceStats

TEXTS = (
    "Tom has twelve pens and buys seven more, so that he owns nineteen pens in the end.",
    "The train leaves at nine in the morning and needs three hours for the whole way home.",
    "If a baker sells forty rolls a day, then in one week he sells two hundred and eighty.",
    "Water boils at a lower temperature on a mountain because the pressure is lower there.",
    "She read half of the book on Monday, a quarter on Tuesday and the rest of it on Friday.",
    "A square with sides of five metres has an area of twenty-five square metres, as we know.",
)


def counts(pattern: list[int], repeats: int = 40, k: int = 3) -> AcceptanceStats:
    stats = AcceptanceStats()
    for accepted in pattern * repeats:
        stats.record(k, accepted)
    return stats


def healthy() -> Measurement:
    stats = counts([3, 1, 2, 3, 0])
    answers = tuple(
        Answer(category="all", num_prompt_tokens=20, num_tokens=30, text=text, stats=stats)
        for text in TEXTS
    )
    return Measurement(source="test", stats=stats, answers=answers, has_template=True)


def names(measurement: Measurement, environ: dict[str, str] | None = None) -> list[str]:
    return [mark.name for mark in judge(measurement, 3, environ or {})]


def with_texts(texts: list[str]) -> Measurement:
    run = healthy()
    answers = tuple(dataclasses.replace(run.answers[0], text=text) for text in texts)
    return dataclasses.replace(run, answers=answers)


def with_counts(stats: AcceptanceStats) -> Measurement:
    return dataclasses.replace(healthy(), stats=stats)


def test_a_healthy_run_has_no_marks() -> None:
    assert names(healthy()) == []


def test_forced_by_the_environment() -> None:
    assert names(healthy(), {"TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS": "2"}) == ["forced"]
    assert names(healthy(), {"TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS": ""}) == []


def test_no_variance() -> None:
    assert names(with_counts(counts([2]))) == []  # 40 steps can be chance
    assert names(with_counts(counts([2], repeats=64))) == ["no variance"]
    assert names(with_counts(counts([2, 2, 2, 1], repeats=20))) == []


def test_exactly_one_and_exactly_everything() -> None:
    assert names(with_counts(counts([0], repeats=10))) == ["nothing accepted"]
    assert names(with_counts(counts([0, 0, 1], repeats=10))) == []
    assert names(with_counts(counts([3], repeats=10))) == ["everything accepted"]
    assert names(with_counts(counts([3, 3, 2], repeats=10))) == []


def test_raw_prompts_are_a_warning_only() -> None:
    raw = dataclasses.replace(healthy(), has_template=False)
    (mark,) = judge(raw, 3, {})
    assert mark.name == "raw prompts"
    assert not mark.is_suspect


def test_looping() -> None:
    loop = "so the answer is " * 20
    assert "looping" in names(with_texts([loop, loop, *TEXTS]))
    assert "looping" not in names(with_texts([loop, *TEXTS]))  # one answer of seven
    assert "looping" not in names(with_texts(["yes yes yes", *TEXTS]))


def test_random_tokens() -> None:
    rng = random.Random(0)
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 "
    noise = ["".join(rng.choice(letters) for _ in range(200)) for _ in range(6)]
    assert names(with_texts(noise)) == ["random tokens"]
    assert names(with_texts([noise[0][:100]])) == []  # too little to tell
