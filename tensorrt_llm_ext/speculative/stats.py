# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Acceptance statistics, by the definitions of DESIGN section 4."""

from __future__ import annotations

from dataclasses import dataclass, field

DEFINITIONS = (
    "Counted per verify step with at least one draft, before truncation by a stop or max_tokens, "
    "pooled over requests. acceptance length = 1 + accepted / verify steps; acceptance rate = "
    "accepted / drafted; per position i = share of verify steps with at least i drafts whose "
    "first i drafts were all accepted. Prefill and steps without drafts are not counted."
)


@dataclass
class AcceptanceStats:
    """Counters of verify steps; add two with `merge`, read rates from the properties."""

    num_steps: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    steps_per_position: list[int] = field(default_factory=list)
    accepted_per_position: list[int] = field(default_factory=list)

    def record(self, num_drafts: int, num_accepted: int) -> None:
        """Counts one verify step of one request; a step without drafts counts nothing."""
        if num_drafts == 0:
            return
        self.num_steps += 1
        self.num_drafted += num_drafts
        self.num_accepted += num_accepted
        self._grow(num_drafts)
        for position in range(num_drafts):
            self.steps_per_position[position] += 1
            self.accepted_per_position[position] += position < num_accepted

    def merge(self, other: AcceptanceStats) -> None:
        """Adds the counters of another set."""
        self.num_steps += other.num_steps
        self.num_drafted += other.num_drafted
        self.num_accepted += other.num_accepted
        self._grow(len(other.steps_per_position))
        for position, steps in enumerate(other.steps_per_position):
            self.steps_per_position[position] += steps
            self.accepted_per_position[position] += other.accepted_per_position[position]

    def copy(self) -> AcceptanceStats:
        """Returns an independent copy."""
        copy = AcceptanceStats()
        copy.merge(self)
        return copy

    def _grow(self, length: int) -> None:
        missing = length - len(self.steps_per_position)
        self.steps_per_position.extend([0] * missing)
        self.accepted_per_position.extend([0] * missing)

    @property
    def acceptance_length(self) -> float | None:
        """Tokens per verify step, the target's own token included; None without a step."""
        return 1 + self.num_accepted / self.num_steps if self.num_steps else None

    @property
    def acceptance_rate(self) -> float | None:
        """Share of drafted tokens that were accepted; None without a step."""
        return self.num_accepted / self.num_drafted if self.num_drafted else None

    @property
    def per_position(self) -> list[float]:
        """Share of steps whose first i drafts were all accepted, for i = 1, 2 and so on."""
        return [
            accepted / steps
            for accepted, steps in zip(
                self.accepted_per_position, self.steps_per_position, strict=True
            )
        ]
