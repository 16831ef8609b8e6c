# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""What was measured, request by request where that is known, and what follows from it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch

from tensorrt_llm_ext.speculative.stats import AcceptanceStats

_RESAMPLES = 2000
_MIN_REQUESTS = 8
_Z95 = 1.959963984540054
_EDGES = (128, 512, 2048, 8192, 32768)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One request.

    Attributes:
        category: Of its question.
        num_prompt_tokens: Length of the prompt; 0 if it is not known.
        num_tokens: Generated tokens; 0 if it is not known.
        text: What was generated.
        stats: Its acceptance; None where only the whole run's is known.
    """

    category: str
    num_prompt_tokens: int
    num_tokens: int
    text: str
    stats: AcceptanceStats | None = None


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A mean with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One run.

    Attributes:
        source: Where the counts are from.
        is_estimate: Whether they are inferred from sizes of stream pieces.
        stats: Pooled; None where the server reports nothing.
        answers: Of all requests.
        has_template: Whether prompts went through a chat template.
        notes: What a reader must know.
    """

    source: str
    is_estimate: bool = False
    stats: AcceptanceStats | None = None
    answers: tuple[Answer, ...] = ()
    has_template: bool = False
    notes: tuple[str, ...] = field(default=())

    @property
    def length(self) -> Interval | None:
        """Acceptance length; requests are resampled where they are known one by one."""
        if self.stats is None or not self.stats.num_steps:
            return None
        known = [a.stats for a in self.answers if a.stats is not None and a.stats.num_steps]
        if len(known) >= _MIN_REQUESTS:
            return _bootstrap(known)
        return _from_steps(self.stats)

    def by_category(self) -> dict[str, AcceptanceStats]:
        """Pooled per category; empty where requests are not known one by one."""
        return _pooled((a.category, a.stats) for a in self.answers if a.stats is not None)

    def by_context(self, edges: Sequence[int] = _EDGES) -> dict[str, AcceptanceStats]:
        """Pooled by length of the context at the middle of the answer, in tokens."""
        rows = []
        for answer in self.answers:
            if answer.stats is not None and answer.num_prompt_tokens:
                middle = answer.num_prompt_tokens + answer.num_tokens // 2
                rows.append((_bucket(middle, edges), answer.stats))
        found = _pooled(rows)
        order = [_bucket(edge, edges) for edge in (0, *edges)]
        return {name: found[name] for name in dict.fromkeys(order) if name in found}


def _bucket(value: int, edges: Sequence[int]) -> str:
    low = 0
    for edge in edges:
        if value < edge:
            return f"{low} to {edge - 1}"
        low = edge
    return f"{low} and more"


def _pooled(rows: Iterable[tuple[str, AcceptanceStats]]) -> dict[str, AcceptanceStats]:
    found: dict[str, AcceptanceStats] = {}
    for name, stats in rows:
        found.setdefault(name, AcceptanceStats()).merge(stats)
    return found


def accepted_counts(stats: AcceptanceStats) -> list[int]:
    """How many steps accepted exactly 0, 1, 2 … drafts."""
    at_least = [stats.num_steps, *stats.accepted_per_position, 0]
    return [a - b for a, b in itertools.pairwise(at_least)]


def step_variance(stats: AcceptanceStats) -> float:
    """Variance of the accepted drafts of a step."""
    counts = accepted_counts(stats)
    total = sum(counts)
    mean = sum(i * c for i, c in enumerate(counts)) / total
    return sum(c * (i - mean) ** 2 for i, c in enumerate(counts)) / total


def _from_steps(stats: AcceptanceStats) -> Interval:
    """As if steps were independent, which they are not within a request: a little too narrow."""
    value = 1 + stats.num_accepted / stats.num_steps
    error = _Z95 * math.sqrt(step_variance(stats) / stats.num_steps)
    return Interval(value=value, low=value - error, high=value + error)


def _bootstrap(known: Sequence[AcceptanceStats]) -> Interval:
    counts = torch.tensor([[s.num_accepted, s.num_steps] for s in known], dtype=torch.float64)
    total = counts.sum(dim=0)
    generator = torch.Generator().manual_seed(0)
    picks = torch.randint(len(known), (_RESAMPLES, len(known)), generator=generator)
    sums = counts[picks].sum(dim=1)
    ends = (1 + sums[:, 0] / sums[:, 1]).quantile(torch.tensor([0.025, 0.975]).double())
    return Interval(value=1 + float(total[0] / total[1]), low=float(ends[0]), high=float(ends[1]))


__all__ = ["Answer", "Interval", "Measurement", "accepted_counts", "step_variance"]
