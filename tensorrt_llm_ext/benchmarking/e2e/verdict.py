# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Whether speculation pays at a batch size, and why not where it does not.

With it a request gets L tokens per step, and a step takes r times as long: the speed-up is L / r.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Level:
    """One concurrency, with and without the draft.

    Attributes:
        concurrency: Requests at once.
        speedup: Tokens/s with the draft over those without.
        step_ratio: Time of a step with the draft over one without, r; None if it is not known.
        length: Acceptance length, L; None if it is not known.
        verify_share: Verification's part of a step with the draft.
        draft_share: The draft's part: extend and chain.
        with_draft: Summary of the load.
        without: The same.
    """

    concurrency: int
    speedup: float
    step_ratio: float | None
    length: float | None
    verify_share: float | None
    draft_share: float | None
    with_draft: dict[str, Any]
    without: dict[str, Any]

    @property
    def pays(self) -> bool:
        """Whether it is faster with the draft."""
        return self.speedup > 1.0


def explain(level: Level) -> str:
    """One sentence: what the speed-up is made of."""
    head = f"{level.concurrency} at once: {level.speedup:.2f}x"
    if level.step_ratio is None or level.length is None:
        return f"{head}."
    text = (
        f"{head}; {level.length:.2f} tokens per step, and a step takes {level.step_ratio:.2f} "
        f"times as long (L / r = {level.length / level.step_ratio:.2f})"
    )
    if level.pays or level.verify_share is None or level.draft_share is None:
        return f"{text}."
    verify = level.verify_share * level.step_ratio  # in steps without the draft
    if verify - 1.0 >= level.draft_share * level.step_ratio:
        return (
            f"{text}: verifying the drafts alone costs {verify:.2f} steps, because the batch is no "
            "longer bound by reading weights. Draft fewer tokens at this load."
        )
    return (
        f"{text}: the draft's own passes cost {level.draft_share * level.step_ratio:.2f} steps. "
        "Quantize the draft, prune its vocabulary, or draft fewer tokens."
    )


def verdict(levels: Sequence[Level]) -> str:
    """Where speculation stops paying."""
    ordered = sorted(levels, key=lambda level: level.concurrency)
    losing = [level for level in ordered if not level.pays]
    if not losing:
        most = ordered[-1].concurrency
        return f"Speculation pays at every measured concurrency, up to {most}."
    if len(losing) == len(ordered):
        return f"Speculation pays at no measured concurrency. {explain(losing[0])}"
    first = losing[0]
    before = [level for level in ordered if level.concurrency < first.concurrency]
    at = f"{before[-1].concurrency} and {first.concurrency}" if before else "the lowest"
    return f"Speculation stops paying between {at} requests at once. {explain(first)}"


__all__ = ["Level", "explain", "verdict"]
