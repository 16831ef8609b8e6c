# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The same prompts with and without the draft: is the text the same, and how much faster is it?"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tensorrt_llm_ext.benchmarking.margins import Divergence, find_divergences
from tensorrt_llm_ext.benchmarking.runs import (
    Progress,
    RunResult,
    Workload,
    make_core,
    measure,
    warm_up,
)
from tensorrt_llm_ext.engine.loading import LoadedModels
from tensorrt_llm_ext.speculative.stats import AcceptanceStats

Verdict = Literal["identical", "near_tie", "different"]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Interleaved runs of one workload with and without speculation.

    Attributes:
        baseline: Runs without the draft, in the order in which they ran.
        speculative: Runs with it; run i of both is a pair, run back to back.
        divergences: One per prompt whose tokens differ, the first differing position of each.
    """

    baseline: tuple[RunResult, ...]
    speculative: tuple[RunResult, ...]
    divergences: tuple[Divergence, ...]

    @property
    def verdict(self) -> Verdict:
        """`near_tie` when every divergence begins at a near-tie; only `different` is a failure."""
        if not self.divergences:
            return "identical"
        near = all(divergence.is_near_tie for divergence in self.divergences)
        return "near_tie" if near else "different"

    @property
    def first_divergence(self) -> Divergence | None:
        """The divergence to report: the widest, which is no near-tie if any is none."""
        return max(self.divergences, key=lambda item: item.margin, default=None)

    @property
    def divergent_prompts(self) -> frozenset[int]:
        """Indices of the prompts whose tokens differ."""
        return frozenset(item.prompt_index for item in self.divergences)

    @property
    def speedup(self) -> float:
        """Median over the pairs of speculative over baseline tokens per second.

        A pair runs back to back, so a machine that drifts between pairs moves both its sides.
        """
        pairs = zip(self.baseline, self.speculative, strict=True)
        return statistics.median(fast.tokens_per_s / slow.tokens_per_s for slow, fast in pairs)

    @property
    def acceptance(self) -> AcceptanceStats:
        """Acceptance of the first speculative run; the others repeat it."""
        return self.speculative[0].acceptance


def median_tokens_per_s(runs: Sequence[RunResult]) -> float:
    """Returns the median speed of runs."""
    return statistics.median(run.tokens_per_s for run in runs)


def num_requests(workload: Workload, num_pairs: int) -> int:
    """Returns how many requests `compare_runs` reports to its `progress`."""
    return 2 * num_pairs * len(workload.prompts)


def compare_runs(
    models: LoadedModels,
    workload: Workload,
    *,
    max_draft_len: int,
    num_pairs: int = 5,
    progress: Progress | None = None,
) -> Comparison:
    """Runs a workload `num_pairs` times with and without the draft, alternating which goes first.

    Args:
        models: A target and a draft, loaded once and shared by both engines.
        workload: What to generate.
        max_draft_len: Drafts per step, at least 1.
        num_pairs: Pairs of runs; speeds are medians over them.
        progress: Called whenever requests end.

    Returns:
        All runs, and where their tokens part if they do.
    """
    eos = models.eos_token_ids
    cores = [make_core(models, workload, length) for length in (0, max_draft_len)]
    for core in cores:
        warm_up(core, workload, eos)
    runs: tuple[list[RunResult], list[RunResult]] = ([], [])
    for pair in range(num_pairs):
        # Whatever slows a machine down with time hits both sides alike.
        for side in (0, 1) if pair % 2 == 0 else (1, 0):
            runs[side].append(measure(cores[side], workload, eos, progress))
    found = {
        (item.prompt_index, item.position, item.baseline_token, item.speculative_token): item
        for slow, fast in zip(*runs, strict=True)
        for item in find_divergences(
            models, workload, slow.token_ids, fast.token_ids, core=cores[0]
        )
    }
    return Comparison(
        baseline=tuple(runs[0]), speculative=tuple(runs[1]), divergences=tuple(found.values())
    )
