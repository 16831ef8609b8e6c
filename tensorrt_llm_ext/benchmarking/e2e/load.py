# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Load: clients that wait for their answers, or arrivals that wait for nobody."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Trace:
    """One request, in seconds of a monotonic clock.

    Attributes:
        begin: When it was sent.
        arrivals: When pieces came, and how many tokens each had.
        tokens: All generated tokens, if known.
    """

    begin: float
    arrivals: tuple[tuple[float, int], ...]
    tokens: tuple[int, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Generated tokens."""
        return sum(count for _, count in self.arrivals)

    @property
    def ttft(self) -> float:
        """Until the first token."""
        return self.arrivals[0][0] - self.begin

    @property
    def seconds(self) -> float:
        """Until the last token."""
        return self.arrivals[-1][0] - self.begin

    def gaps(self) -> list[float]:
        """Time per token after the first; tokens of one piece share the wait for it."""
        found = []
        times = [self.arrivals[0][0]] + [at for at, _ in self.arrivals]
        counts = [self.arrivals[0][1] - 1] + [count for _, count in self.arrivals[1:]]
        for count, (before, now) in zip(counts, itertools.pairwise(times), strict=True):
            found += [(now - before) / max(count, 1)] * count
        return found


Send = Callable[[int], Trace]


def closed_loop(send: Send, num_requests: int, concurrency: int) -> tuple[Trace, ...]:
    """So many clients, each of which sends its next request when its last is answered."""
    with ThreadPoolExecutor(concurrency) as pool:
        return tuple(pool.map(send, range(num_requests)))


def open_loop(send: Send, num_requests: int, rate: float, seed: int = 0) -> tuple[Trace, ...]:
    """Poisson arrivals, whatever the answers do.

    Args:
        send: Sends request i.
        num_requests: In all.
        rate: Arrivals per second.
        seed: Of the gaps between them.
    """
    rng = random.Random(seed)
    found: list[Trace | BaseException | None] = [None] * num_requests

    def run(index: int) -> None:
        try:
            found[index] = send(index)
        except BaseException as error:  # noqa: BLE001 - raised below, on the caller's thread
            found[index] = error

    threads = []
    due = time.monotonic()
    for index in range(num_requests):
        due += rng.expovariate(rate)
        time.sleep(max(0.0, due - time.monotonic()))
        threads.append(threading.Thread(target=run, args=(index,)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    traces = []
    for item in found:
        if not isinstance(item, Trace):
            raise item if isinstance(item, BaseException) else RuntimeError("a request was lost")
        traces.append(item)
    return tuple(traces)


def percentile(values: Sequence[float], share: float) -> float:
    """The value that so large a share lies at or below, between neighbours in proportion.

    Args:
        values: At least one.
        share: 0 to 1.
    """
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def summary(traces: Sequence[Trace]) -> dict[str, Any]:
    """Speed and latencies of a run."""
    begin = min(trace.begin for trace in traces)
    end = max(trace.arrivals[-1][0] for trace in traces)
    gaps = [gap for trace in traces for gap in trace.gaps()] or [0.0]
    first = [trace.ttft for trace in traces]
    whole = [trace.seconds for trace in traces]
    shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
    return {
        "requests": len(traces),
        "tokens": sum(trace.num_tokens for trace in traces),
        "seconds": end - begin,
        "tokens_per_s": sum(trace.num_tokens for trace in traces) / (end - begin),
        "ttft_s": {name: percentile(first, share) for name, share in shares.items()},
        "itl_s": {name: percentile(gaps, share) for name, share in shares.items()},
        "e2e_s": {name: percentile(whole, share) for name, share in shares.items()},
    }


__all__ = ["Send", "Trace", "closed_loop", "open_loop", "percentile", "summary"]
