# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The benchmark checks tokens first, and shows no time when they are wrong."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.e2e.conftest import load_script
from tests.support.cycling_models import write_cycling_checkpoints

CYCLE = [5, 9, 13, 30, 2]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("vs_transformers")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_cycling_checkpoints(tmp_path_factory.mktemp("models"), CYCLE)[0]


@pytest.fixture
def run(
    script: ModuleType,
    target: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Any:
    # Trials of every implementation take long; `test_the_fastest…` is about them.
    monkeypatch.setattr(script, "ATTENTION", ("sdpa",))
    monkeypatch.setattr(script, "EXPERTS", ("default",))
    # Prompts of a cycling target end in its cycle.
    monkeypatch.setattr(script, "prompts_for", lambda models, model, n: ((7, 5), (9,), (3, 30))[:n])

    def call(*arguments: str) -> tuple[int, str]:
        options = ["--model", str(target), "--rounds", "1", "--new-tokens", "6"]
        monkeypatch.setattr(sys, "argv", ["vs_transformers", *options, *arguments])
        capsys.readouterr()
        return script.main(), capsys.readouterr().out

    return call


def test_equal_tokens_are_timed(run: Any) -> None:
    code, out = run("--json", "--batch-sizes", "1", "3")
    assert code == 0
    rows = json.loads(out)["rows"]
    assert [row["batch_size"] for row in rows] == [1, 3]
    for row in rows:
        assert row["verdict"] == "identical"
        assert row["ratio"] == pytest.approx(
            row["engine_tokens_per_s"] / row["transformers_tokens_per_s"]
        )


def test_wrong_tokens_show_no_time(
    run: Any, script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = script.measure

    def measure(*args: Any) -> Any:
        result = original(*args)
        return replace(result, token_ids=tuple((*ids[:-1], 77) for ids in result.token_ids))

    monkeypatch.setattr(script, "measure", measure)
    code, out = run("--json", "--batch-sizes", "1")
    assert code == 1
    (row,) = json.loads(out)["rows"]
    assert row["verdict"] == "different"
    assert set(row) == {"batch_size", "verdict", "transformers_implementation", "margin"}
    code, out = run("--batch-sizes", "1")
    assert code == 1
    assert "different" in out


def test_a_ratio_can_be_demanded(run: Any) -> None:
    assert run("--batch-sizes", "1", "--min-ratio", "1000000")[0] == 1
    assert run("--batch-sizes", "1", "--min-ratio", "0.000001")[0] == 0


def test_the_fastest_implementation_is_chosen_and_missing_ones_are_skipped(
    script: ModuleType,
) -> None:
    seconds = {
        ("sdpa", "default"): 3.0,
        ("eager", "default"): 2.0,
        ("eager", "batched_mm"): 1.0,
        ("eager", "grouped_mm"): 4.0,
    }

    class Peer:
        choice = ("", "")

        def use(self, *choice: str) -> None:
            if choice not in seconds:
                raise ValueError("not in this version")
            self.choice = choice

        def run(self, workload: Any, num_tokens: int) -> Any:
            return SimpleNamespace(seconds=seconds[self.choice])

        @property
        def implementation(self) -> str:
            return ", ".join(self.choice)

    assert script.fastest(Peer(), None) == "eager, batched_mm"


def test_wrapped_checkpoints_are_unwrapped(script: ModuleType, tmp_path: Path) -> None:
    from tests.support.tiny_checkpoints import target_json, write_target

    tensors = write_target(tmp_path / "kimi", target_json(num_hidden_layers=2), wrapper=True)
    script.unwrap(tmp_path / "kimi", tmp_path / "plain")
    config = json.loads((tmp_path / "plain" / "config.json").read_text(encoding="utf-8"))
    assert config["architectures"] == ["DeepseekV3ForCausalLM"]
    from safetensors.torch import load_file

    stored = load_file(tmp_path / "plain" / "model.safetensors")
    assert set(stored) == set(tensors)
