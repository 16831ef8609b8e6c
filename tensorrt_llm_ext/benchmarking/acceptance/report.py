# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The report of a run: the table, its doubts, and the gate."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tensorrt_llm_ext.benchmarking.acceptance.gate import Key, Verdict
from tensorrt_llm_ext.benchmarking.acceptance.measurement import Measurement
from tensorrt_llm_ext.benchmarking.acceptance.published import Published
from tensorrt_llm_ext.benchmarking.acceptance.suspect import Mark
from tensorrt_llm_ext.errors import ConfigError
from tensorrt_llm_ext.speculative.stats import AcceptanceStats


@dataclass(frozen=True, kw_only=True)
class AcceptanceReport:
    """Everything that is printed."""

    key: Key
    measurement: Measurement
    marks: tuple[Mark, ...]
    published: tuple[Published, ...]
    verdict: Verdict

    @property
    def is_suspect(self) -> bool:
        """Whether the number means nothing."""
        return any(mark.is_suspect for mark in self.marks)

    def to_dict(self) -> dict[str, Any]:
        """Returns everything as plain data."""
        run = self.measurement
        length = run.length
        return {
            "key": asdict(self.key),
            "source": run.source,
            "is_estimate": run.is_estimate,
            "acceptance_length": None if length is None else asdict(length),
            "pooled": None if run.stats is None else _row(run.stats),
            "by_category": {name: _row(s) for name, s in run.by_category().items()},
            "by_context_tokens": {name: _row(s) for name, s in run.by_context().items()},
            "num_requests": len(run.answers),
            "notes": list(run.notes),
            "suspect": self.is_suspect,
            "marks": [asdict(mark) for mark in self.marks],
            "published": [asdict(row) for row in self.published],
            "gate": {"reasons": list(self.verdict.reasons), "baseline": self.verdict.baseline},
        }


def _row(stats: AcceptanceStats) -> dict[str, Any]:
    return {
        "num_steps": stats.num_steps,
        "num_draft_tokens": stats.num_drafted,
        "num_accepted_tokens": stats.num_accepted,
        "acceptance_length": stats.acceptance_length,
        "acceptance_rate": stats.acceptance_rate,
        "per_position": stats.per_position,
    }


def plot(report: AcceptanceReport, path: Path) -> None:
    """Draws acceptance by position and over context length.

    Raises:
        ConfigError: If matplotlib is not installed, or there is nothing to draw.
    """
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise ConfigError(
            "--plot needs matplotlib: pip install 'tensorrt-llm-ext[plot]'"
        ) from error
    mpl.use("Agg")
    from matplotlib import pyplot

    run = report.measurement
    if run.stats is None:
        raise ConfigError("There is nothing to draw: the server reports no acceptance.")
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4))
    shares = run.stats.per_position
    left.bar(range(1, len(shares) + 1), shares)
    left.set(xlabel="draft position", ylabel="accepted", ylim=(0, 1), title="by position")
    context = run.by_context()
    lengths = [stats.acceptance_length or 0.0 for stats in context.values()]
    right.plot(list(context), lengths, marker="o")
    right.set(xlabel="context, tokens", ylabel="acceptance length", title="over context")
    figure.suptitle(f"{report.key.draft} on {report.key.target}")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


__all__ = ["AcceptanceReport", "plot"]
