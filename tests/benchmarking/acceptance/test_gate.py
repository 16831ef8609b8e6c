# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The gate closes below the floor and below the baseline, and compares like with like."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tensorrt_llm_ext.benchmarking.acceptance.gate import Key, check, save_baseline
from tensorrt_llm_ext.benchmarking.acceptance.measurement import Measurement
from tensorrt_llm_ext.benchmarking.acceptance.published import published_for
from tensorrt_llm_ext.errors import ConfigError
from tensorrt_llm_ext.speculative.stats import AcceptanceStats

KEY = Key(target="t", draft="d", draft_len=3, template=True, host="embedded", layout="one device")


def run(accepted: int, steps: int = 100) -> Measurement:
    stats = AcceptanceStats(num_steps=steps, num_drafted=3 * steps, num_accepted=accepted)
    return Measurement(source="test", stats=stats)


def test_open_and_closed(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    save_baseline(path, KEY, run(200))  # length 3
    assert check(run(200), KEY, path, 2.9).reasons == ()
    assert check(run(186), KEY, path, None).reasons == ()  # 2.86, above 95 %
    (reason,) = check(run(184), KEY, path, None).reasons  # 2.84
    assert "below 95% of the baseline, 3.000" in reason
    (reason,) = check(run(200), KEY, None, 3.1).reasons
    assert "below the floor" in reason
    assert check(run(0), KEY, None, None).reasons == ()


def test_no_report_closes_it() -> None:
    silent = Measurement(source="not reported by this server")
    assert check(silent, KEY, None, 1.0).reasons == ("no acceptance was reported",)


@pytest.mark.parametrize(
    "change",
    [{"draft": "e"}, {"draft_len": 4}, {"template": False}, {"host": "vllm"}, {"layout": "tp8"}],
)
def test_other_keys_have_no_baseline(change: dict, tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    save_baseline(path, KEY, run(200))
    other = dataclasses.replace(KEY, **change)
    with pytest.raises(ConfigError, match=r"has no baseline of .*The nearest is: target=t"):
        check(run(200), other, path, None)
    save_baseline(path, other, run(100))
    assert check(run(100), other, path, None).baseline == 2.0
    assert check(run(200), KEY, path, None).baseline == 3.0


def test_nothing_to_save(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no acceptance to save"):
        save_baseline(tmp_path / "b.json", KEY, Measurement(source="none"))


def test_published_ranges_of_known_pairs() -> None:
    (row,) = published_for("moonshotai/Kimi-K2.5", "lightseekorg/kimi-k2.5-eagle3-mla", 3)
    assert (row.low, row.high) == (2.60, 3.14)
    assert published_for("moonshotai/Kimi-K2.5", "lightseekorg/kimi-k2.5-eagle3-mla", 5) == ()
    assert published_for("tiny_kimi", "draft", 3) == ()
