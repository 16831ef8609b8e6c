# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The verdict names where speculation stops paying, and which part of a step is to blame."""

from __future__ import annotations

from typing import Any

from tensorrt_llm_ext.benchmarking.e2e.verdict import Level, explain, verdict


def level(concurrency: int, speedup: float, **values: Any) -> Level:
    defaults = {"step_ratio": 1.5, "length": 2.5, "verify_share": 0.7, "draft_share": 0.3}
    return Level(
        concurrency=concurrency,
        speedup=speedup,
        with_draft={},
        without={},
        **{**defaults, **values},
    )


def test_pays_everywhere() -> None:
    assert verdict([level(1, 1.6), level(8, 1.1)]) == (
        "Speculation pays at every measured concurrency, up to 8."
    )


def test_stops_between_two_levels() -> None:
    levels = [level(32, 0.8, step_ratio=3.0), level(1, 1.6), level(8, 1.2)]
    text = verdict(levels)
    assert text.startswith("Speculation stops paying between 8 and 32 requests at once.")
    assert "L / r = 0.83" in text


def test_pays_nowhere() -> None:
    assert verdict([level(1, 0.9)]).startswith("Speculation pays at no measured concurrency.")


def test_who_is_to_blame() -> None:
    verify = explain(level(64, 0.8, step_ratio=3.0, verify_share=0.9, draft_share=0.1))
    assert "verifying the drafts alone costs 2.70 steps" in verify
    draft = explain(level(1, 0.9, step_ratio=2.0, verify_share=0.5, draft_share=0.5))
    assert "the draft's own passes cost 1.00 steps" in draft
    assert "cost" not in explain(level(1, 1.5))
    assert explain(level(4, 1.2, step_ratio=None)) == "4 at once: 1.20x."
