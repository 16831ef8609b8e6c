# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.faults import FAULTS, plant, read_draft, write_draft

EXAMPLE = Path(__file__).parents[2] / "examples" / "tiny_kimi"
QUICK = ["--max-draft-len", "2", "--device", "cpu"]


@pytest.fixture
def run(run_cli: Any) -> Any:
    """Runs the command; returns exit code, standard output and standard error."""
    if not (EXAMPLE / "draft" / "config.json").is_file():
        pytest.skip("examples/tiny_kimi has no weights in this checkout")
    return partial(run_cli, "canary")


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("states") / "states.safetensors"


def test_the_examples_own_problems_are_the_default(run: Any, states: Path) -> None:
    code, out, _ = run(
        EXAMPLE / "target",
        EXAMPLE / "draft",
        *("--problems", "6", "--max-tokens", "40", "--save-states", states, *QUICK),
    )
    assert code == 0
    assert "declared setting fits" in out
    assert "captured layers one lower" in out
    assert "head rows" in out
    assert states.is_file()


def test_a_fault_is_told_and_mended(run: Any, states: Path, tmp_path: Path) -> None:
    if not states.is_file():
        pytest.skip("the states are made by the test before")
    fault = next(fault for fault in FAULTS if fault.name == "fc_norm")
    folder = write_draft(tmp_path / "in", *plant(fault, *read_draft(EXAMPLE / "draft")))
    code, out, _ = run(
        EXAMPLE / "target", folder, "--states", states, "--fix", tmp_path / "out", "--json", *QUICK
    )
    report = json.loads(out)
    assert code == report["exit_code"] == 1
    assert report["verdict"] == "other_fits"
    assert report["best"]["factors"] == ["fc_norm=on"]
    assert report["fixed"]["verdict"] == "declared_fits"
    assert report["problems"][0].startswith("V18")
    low, high = report["best"]["interval"]
    assert 0 < low < report["best"]["difference"] < high
    assert (tmp_path / "out" / "config.json").is_file()
    code, out, _ = run(EXAMPLE / "target", folder, "--states", states, *QUICK)
    assert code == 1
    assert "other setting fits: fc_norm on" in out
    assert "the loader refuses it: V18" in out


def test_a_ruined_draft_exits_with_three(run: Any, states: Path, tmp_path: Path) -> None:
    if not states.is_file():
        pytest.skip("the states are made by the first test")
    config, tensors = read_draft(EXAMPLE / "draft")
    tensors["fc.weight"] = torch.full_like(tensors["fc.weight"], 0.01)
    folder = write_draft(tmp_path / "in", config, tensors)
    code, out, _ = run(
        EXAMPLE / "target", folder, "--states", states, "--max-anchors", "60", *QUICK
    )
    assert code == 3
    assert "nothing fits; weights suspect (constant matrices)" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--problems", "2", "--states", "x"], "exclude each other"),
        (["--states", "missing.safetensors"], "does not exist"),
        (["--prompts-file", "missing.txt"], "cannot be read"),
        (["--boundaries", "a,b"], "takes integers"),
        (["--dtype", "int8"], "dtype is 'int8'"),
    ],
)
def test_bad_usage_is_a_message_and_exit_code_two(
    run: Any, arguments: list[str], message: str
) -> None:
    code, _, err = run(EXAMPLE / "target", EXAMPLE / "draft", *arguments)
    assert code == 2
    assert message in " ".join(err.split())


def test_another_target_needs_texts(run: Any, tmp_path: Path) -> None:
    code, _, err = run(tmp_path, EXAMPLE / "draft")
    assert code == 2
    assert "give prompts of the kind that the model will serve" in " ".join(err.split())
