# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Acceptance lengths that were published for known pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Published:
    """One line of a card or a report.

    Attributes:
        target: Part of the target's name.
        draft: Part of the draft's name.
        draft_len: Drafts per step.
        low: Smallest acceptance length of its datasets.
        high: Largest.
        source: Where it stands.
    """

    target: str
    draft: str
    draft_len: int
    low: float
    high: float
    source: str


TABLE: Final = (
    Published("kimi-k2.5", "kimi-k2.5-eagle3-mla", 3, 2.60, 3.14, "model card, vLLM, 7 datasets"),
    Published("kimi-k2.5", "kimi-k2.5-eagle3", 3, 2.30, 3.81, "model card, SGLang, 8 datasets"),
    Published("kimi-k2.6", "kimi-k2.6-eagle3.1-mla", 3, 3.18, 3.20, "sglang#26506, GSM8K"),
    Published("kimi-k2.6", "kimi-k2.6-eagle3-mla", 3, 2.80, 2.94, "sglang#23803, GPQA"),
    Published("kimi-k2.6", "kimi-k2.6-eagle3", 3, 2.62, 2.67, "model card, MT-Bench, SPEED-Bench"),
    Published(
        "kimi-k2.7", "k2.7-coder-eagle3.1-mla", 3, 2.26, 2.95, "tokenspeed#795, 10 categories"
    ),
    Published(
        "kimi-k2-instruct", "kimi-k2-eagle3", 3, 3.17, 3.49, "model card, SGLang, 3 datasets"
    ),
)


def published_for(target: str, draft: str, draft_len: int | None) -> tuple[Published, ...]:
    """Returns what is known of a pair, the most special name first."""
    t, d = target.lower(), draft.lower()
    found = [row for row in TABLE if row.target in t and row.draft in d]
    same = [row for row in found if draft_len in (None, row.draft_len)]
    return tuple(sorted(same, key=lambda row: -len(row.draft))[:1])


__all__ = ["TABLE", "Published", "published_for"]
