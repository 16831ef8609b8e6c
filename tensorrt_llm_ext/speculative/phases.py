# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Where a step spends its time: verify, accept, extend, chain."""

from __future__ import annotations

import time
from typing import Any, Final, Protocol

import torch

PHASES: Final = ("verify", "accept", "extend", "chain")


class PhaseClock(Protocol):
    """Told when a phase of a step ends; the step itself reads nothing of it."""

    def begin(self) -> None:
        """A step begins."""

    def end(self, phase: str) -> None:
        """A phase ended here."""


class PhaseTimer:
    """Adds up the seconds of each phase; on CUDA by events, read when asked for.

    Args:
        device: Where steps run.
    """

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        self._sums = dict.fromkeys(PHASES, 0.0)
        self._marks: list[tuple[str, Any]] = []
        self._last: Any = None
        self.num_steps = 0

    def begin(self) -> None:
        """See `PhaseClock`."""
        self._last = self._now()
        self.num_steps += 1

    def end(self, phase: str) -> None:
        """See `PhaseClock`."""
        now = self._now()
        self._marks.append((phase, (self._last, now)))
        self._last = now
        if not self._is_cuda:
            self._collect()

    def seconds(self) -> dict[str, float]:
        """Seconds of each phase so far."""
        if self._is_cuda:
            torch.cuda.synchronize()
        self._collect()
        return dict(self._sums)

    def _now(self) -> Any:
        if not self._is_cuda:
            return time.perf_counter()
        event: Any = torch.cuda.Event
        mark = event(enable_timing=True)
        mark.record()
        return mark

    def _collect(self) -> None:
        for phase, (begin, end) in self._marks:
            taken = begin.elapsed_time(end) / 1e3 if self._is_cuda else end - begin
            self._sums[phase] += taken
        self._marks.clear()


__all__ = ["PHASES", "PhaseClock", "PhaseTimer"]
