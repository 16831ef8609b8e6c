# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Load and its statistics: who waits for whom, and what a token's time is."""

from __future__ import annotations

import threading
import time

import pytest

from tensorrt_llm_ext.benchmarking.e2e.load import (
    Trace,
    closed_loop,
    open_loop,
    percentile,
    summary,
)


def test_times_of_tokens() -> None:
    """Tokens of one piece share the wait; the first piece is the prompt's time."""
    trace = Trace(begin=1.0, arrivals=((1.5, 1), (1.8, 3), (2.0, 1)))
    assert trace.num_tokens == 5
    assert trace.ttft == 0.5
    assert trace.seconds == 1.0
    assert trace.gaps() == pytest.approx([0.1, 0.1, 0.1, 0.2])
    several = Trace(begin=0.0, arrivals=((1.0, 2), (2.0, 1)))
    assert several.gaps() == pytest.approx([0.0, 1.0])
    assert Trace(begin=0.0, arrivals=((1.0, 1),)).gaps() == []


def test_percentiles_lie_between_neighbours() -> None:
    values = [4.0, 1.0, 3.0, 2.0]
    assert [percentile(values, share) for share in (0.0, 0.5, 1.0)] == [1.0, 2.5, 4.0]
    assert percentile([7.0], 0.99) == 7.0


def test_summary_counts_from_the_first_to_the_last() -> None:
    traces = [
        Trace(begin=0.0, arrivals=((1.0, 1), (2.0, 1))),
        Trace(begin=1.0, arrivals=((3.0, 2),)),
    ]
    row = summary(traces)
    assert row["tokens"] == 4
    assert row["tokens_per_s"] == pytest.approx(4 / 3)
    assert row["ttft_s"]["p50"] == 1.5


class Counter:
    """A server that notes how many requests it holds."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.now, self.most, self.lock = seconds, 0, 0, threading.Lock()
        self.begins: list[float] = []

    def send(self, index: int) -> Trace:
        begin = time.monotonic()
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
            self.begins.append(begin)
        time.sleep(self.seconds)
        with self.lock:
            self.now -= 1
        return Trace(begin=begin, arrivals=((time.monotonic(), 1),), tokens=(index,))


@pytest.mark.parametrize("concurrency", [1, 3])
def test_a_closed_loop_waits(concurrency: int) -> None:
    counter = Counter(0.01)
    traces = closed_loop(counter.send, 9, concurrency)
    assert counter.most == concurrency
    assert [trace.tokens for trace in traces] == [(i,) for i in range(9)]


def test_an_open_loop_waits_for_nobody() -> None:
    counter = Counter(0.2)
    traces = open_loop(counter.send, 20, rate=200.0, seed=3)
    assert counter.most > 5  # arrivals do not wait for answers
    assert len(traces) == 20
    mean = (max(counter.begins) - min(counter.begins)) / 19
    assert 0.001 < mean < 0.03
    with pytest.raises(RuntimeError, match="gone"):
        open_loop(lambda _: (_ for _ in ()).throw(RuntimeError("gone")), 2, rate=1000.0)
