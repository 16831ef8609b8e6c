# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Damaged checkpoints are refused in words or load correctly: nothing else, and never a pickle."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.fuzzing import Bench, no_pickle, run
from tests.support.mutations import MUTATIONS, mutate

ROOT = Path(__file__).parents[2]
QUICK = 500
SLOW = 10_000
STEP = 125
pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs links and FIFOs")


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("fuzz") / "bench")


@pytest.mark.timeout(120)
@pytest.mark.parametrize("first", range(0, QUICK, STEP))
def test_damage_is_refused_or_harmless(bench: Bench, first: int) -> None:
    tally = run(bench, range(first, first + STEP))
    assert not tally.faults, "\n".join(tally.faults)
    # Cases that test nothing would pass as well: most are refused, some get through.
    assert tally.outcomes["refused"] > STEP // 4
    assert tally.outcomes["loaded"] + tally.outcomes["judged, not loaded"] > STEP // 20


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_ten_thousand_within_a_gigabyte(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.support.fuzzing", str(QUICK), str(QUICK + SLOW)]
    done = subprocess.run(
        [*command, str(tmp_path / "bench"), "1024"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert not result["faults"], "\n".join(result["faults"][:40])
    assert sum(result["outcomes"].values()) == SLOW


def test_the_same_seed_gives_the_same_damage(bench: Bench) -> None:
    first, second = (dict(bench.drafts[1]) for _ in range(2))
    for seed in range(50):
        assert mutate(first, random.Random(seed)) == mutate(second, random.Random(seed))
        assert first == second


def test_every_mutation_changes_the_folder(bench: Bench) -> None:
    for mutation in set(MUTATIONS):
        changed = 0
        for seed in range(20):
            files = dict(bench.drafts[1])
            mutation(files, random.Random(seed))
            changed += files != bench.drafts[1]
        assert changed > 15, mutation.__name__


def test_an_opened_pickle_would_be_seen(tmp_path: Path) -> None:
    import torch

    torch.save({"a": torch.ones(1)}, tmp_path / "a.pt")
    with no_pickle(), pytest.raises(AssertionError, match="pickle"):
        torch.load(tmp_path / "a.pt")


@pytest.mark.parametrize("fault", [KeyError("x"), TypeError("x"), ValueError("x"), MemoryError()])
def test_a_fault_would_be_seen(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    def broken(_: object) -> None:
        raise fault

    monkeypatch.setattr("tensorrt_llm_ext.checkpoints.normalize.open_draft", broken)
    faults = run(bench, range(10)).faults
    assert faults
    assert all(type(fault).__name__ in text for text in faults)
