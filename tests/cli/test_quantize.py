# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tensorrt_llm_ext.engine.teacher_files import save_states
from tests.support.quantizing import texts, write_pair


@pytest.fixture
def run(run_cli: Any) -> Any:
    """Runs the command; returns exit code, standard output and standard error."""
    return partial(run_cli, "quantize")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    folder = tmp_path_factory.mktemp("inputs")
    save_states(texts((14, 12)), folder / "states.safetensors")
    return (*write_pair(folder), folder / "states.safetensors")


def test_report_is_a_table(run: Any, inputs: tuple[Path, Path, Path], tmp_path: Path) -> None:
    target, draft, states = inputs
    code, out, _ = run(
        draft, tmp_path / "out", "--target", target, "--states", states, "--max-draft-len", 2,
        "--backend", "builtin",
    )  # fmt: skip
    assert code == 0
    for word in (
        "nvfp4_layer-kv_fp8_cast",
        "top-1 at 2",
        "W4A16",
        "W4A4",
        "|x| at step 1",
        "checks:",
    ):
        assert word in out
    assert (tmp_path / "out" / "hf_quant_config.json").is_file()


def test_json_is_json(run: Any, inputs: tuple[Path, Path, Path], tmp_path: Path) -> None:
    target, draft, states = inputs
    code, out, _ = run(
        draft, tmp_path / "out", "--recipe", "w4a16_nvfp4_layer", "--target", target,
        "--states", states, "--max-draft-len", 2, "--backend", "builtin", "--json",
    )  # fmt: skip
    assert code == 0
    report = json.loads(out)
    assert report["formats"]["layers.0.mlp.down_proj"] == "W4A16_NVFP4"
    assert report["formats"]["lm_head"] == "float"
    assert list(report["agreement"]) == ["W4A16"]
    assert {f["check"] for f in report["findings"]} >= {f"V{i}" for i in range(1, 32)}


def test_export_is_fixed(run: Any, inputs: tuple[Path, Path, Path], tmp_path: Path) -> None:
    target, draft, states = inputs
    made, fixed = tmp_path / "made", tmp_path / "fixed"
    run(
        draft,
        made,
        "--target",
        target,
        "--states",
        states,
        "--max-draft-len",
        2,
        "--backend",
        "builtin",
    )
    config = json.loads((made / "config.json").read_text(encoding="utf-8"))
    quant = json.loads((made / "hf_quant_config.json").read_text(encoding="utf-8"))
    quant["quantization"]["exclude_modules"].append("model*")
    config["quantization_config"] = quant
    (made / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (made / "hf_quant_config.json").write_text(json.dumps(quant), encoding="utf-8")
    code, out, _ = run(made, fixed, "--fix-export", "--target", target)
    assert code == 0
    assert "'model*' dropped" in out
    code, out, _ = run(fixed, tmp_path / "again", "--fix-export", "--target", target, "--json")
    assert (code, json.loads(out)["changes"]) == (0, [])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "--target is missing"),
        (["--target", "T"], "There are no texts"),
        (["--target", "T", "--states", "s", "--problems", "3"], "exclude each other"),
        (["--target", "T", "--states", "s", "--recipe", "nosuch"], "names no file"),
        (["--target", "T", "--states", "s", "--backend", "x"], "backend"),
        (["--target", "T", "--states", "s", "--boundaries", "a"], "--boundaries"),
    ],
)
def test_bad_usage_is_one_line(
    run: Any, inputs: tuple[Path, Path, Path], tmp_path: Path, words: list[str], message: str
) -> None:
    words = [str(inputs[0]) if word == "T" else word for word in words]
    code, _, err = run(inputs[1], tmp_path / "out", *words)
    assert code == 2
    assert message in err
    assert len(err.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()
