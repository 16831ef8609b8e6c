# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tensorrt_llm_ext.checkpoints.convert_plan import TensorChange
from tensorrt_llm_ext.checkpoints.normalize import draft_config, open_draft
from tensorrt_llm_ext.checkpoints.writer import save_checkpoint
from tensorrt_llm_ext.cli.convert_report import _beginnings
from tests.support.nvfp4_drafts import QUANTIZED, hf_quant_config, nvfp4_tensors
from tests.support.tiny_checkpoints import (
    draft_json,
    draft_shapes,
    random_tensors,
    write_draft,
    write_target,
)


@pytest.fixture
def run(run_cli: Any) -> Any:
    """Runs the command; returns exit code, standard output and standard error."""
    return partial(run_cli, "convert")


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """A target and a draft with a prefix, noise and after-layer ids."""
    write_target(tmp_path / "target")
    write_draft(
        tmp_path / "draft",
        draft_json(
            n_routed_experts=384,
            eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 3, 4]},
            eos_token_id=9,
        ),
        rename=lambda name: f"model.{name}",
    )
    return tmp_path / "target", tmp_path / "draft"


def test_says_what_was_changed(run: Any, pair: tuple[Path, Path], tmp_path: Path) -> None:
    target, draft = pair
    code, out, _ = run(draft, tmp_path / "out", "--to", "vllm", "--target", target)
    assert code == 0
    words = " ".join(out.split())
    assert "[1, 3, 4] -> [2, 4, 5]" in words
    assert "model.* * renamed: 16" in words
    assert "n_routed_experts removed" in words
    assert "trtllm_ext_aux_boundaries [2, 4, 5]" in words
    assert "verified: read back as the same draft, bit for bit" in words
    assert draft_config(open_draft(tmp_path / "out")).boundaries == (2, 4, 5)


def test_json_has_everything(run: Any, pair: tuple[Path, Path], tmp_path: Path) -> None:
    _, draft = pair
    code, out, _ = run(draft, tmp_path / "out", "--to", "trtllm", "--target-layers", "8", "--json")
    assert code == 0
    report = json.loads(out)
    assert report["receiver"] == "trtllm"
    assert report["boundaries"] == [2, 4, 5]
    assert report["ids_before"] == [1, 3, 4]
    assert report["ids_after"] == [1, 3, 4]
    assert report["is_same_draft"] is True
    assert report["vocabulary"] is None
    assert report["config"]["changed"]["architectures"][1] == ["Eagle3DeepSeekV3ForCausalLM"]
    names = {change["before"]: change["after"] for change in report["tensors"]}
    assert names["model.layers.0.mlp.up_proj.weight"] == "midlayer.mlp.up_proj.weight"
    assert {finding["check"] for finding in report["findings"]} >= {"V5", "V10", "V21"}
    assert not [f for f in report["findings"] if f["status"] == "error"]
    assert any("eagle3_layers_to_capture to [1, 3, 4]" in note for note in report["notes"])


def test_prunes_by_counts_and_keeps_the_end_of_text(
    run: Any, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    _, draft = pair
    counts = tmp_path / "counts.json"
    counts.write_text('{"3": 60, "20": 30, "33": 10}')
    common = ["--to", "vllm", "--target-layers", "8", "--draft-vocab", counts]
    out = tmp_path / "out"
    _, text, _ = run(draft, out, *common, "--draft-vocab-size", "3", "--keep-tokens", "50")
    words = "3 of 64 tokens cover 60.00% of counts.json; 2 of them never counted"
    assert words in " ".join(text.split())
    _, text, _ = run(draft, out, *common, "--draft-vocab-size", "4", "--json", "--overwrite")
    report = json.loads(text)
    assert report["vocabulary"] == {
        "draft_vocab_size": 4,
        "vocab_size": 64,
        "coverage": 1.0,
        "coverage_before": 1.0,
        "num_unseen": 1,
        "source": "counts.json",
    }
    kept = {change["after"]: change["reason"] for change in report["tensors"]}
    assert kept["lm_head.weight"] == "4 of 64 rows kept"
    assert not report["is_same_draft"]


def test_bad_usage_is_refused_by_name(run: Any, pair: tuple[Path, Path], tmp_path: Path) -> None:
    target, draft = pair
    out = tmp_path / "out"
    counts = ["--draft-vocab", tmp_path / "none", "--draft-vocab-size", "4"]
    for arguments, words in (
        (["--to", "vllm", "--draft-vocab", "x.json"], "--draft-vocab-size belong together"),
        (["--to", "vllm", "--draft-vocab-size", "5"], "--draft-vocab-size belong together"),
        (["--to", "vllm", "--keep-tokens", "5"], "--keep-tokens is for --draft-vocab"),
        (["--to", "vllm", "--target", target, "--target-layers", "8"], "Leave out"),
        (["--to", "vllm", "--boundaries", "a,b"], "--boundaries takes integers"),
        (["--to", "vllm", "--boundaries", "5,6,7"], "contradict"),
        (["--to", "vllm", "--target-layers", "8", *counts], "is no file"),
        (["--to", "vlm", "--target-layers", "8"], "did you mean 'vllm'"),
        ([], "Missing option '--to'"),
    ):
        code, _, err = run(draft, out, *arguments)
        assert code == 2
        assert words in " ".join(err.split())
        assert not out.exists()


def test_a_fault_of_the_source_is_told_and_not_mended(run: Any, tmp_path: Path) -> None:
    modules = ("layers.0.self_attn.kv_b_proj", "lm_head", *QUANTIZED)
    tensors = nvfp4_tensors(random_tensors(draft_shapes(draft_json())), modules)
    hf = hf_quant_config(["*q_b_proj"])
    save_checkpoint(tmp_path / "in", draft_json(), tensors, extra_json={"hf_quant_config.json": hf})
    code, out, _ = run(tmp_path / "in", tmp_path / "out", "--to", "vllm", "--target-layers", "8")
    words = " ".join(out.split())
    assert code == 1
    assert "V24: layers.0.self_attn.kv_b_proj is nvfp4" in words
    assert "The draft fails V24, as it did before." in words
    assert "warning: vLLM: its draft class has a float lm_head" in words
    assert "not quantized *.self_attn.q_b_proj" in words


@pytest.mark.parametrize(
    ("before", "after", "beginnings"),
    [
        ("midlayer.a.b", "layers.0.a.b", ("midlayer.*", "layers.0.*")),
        ("model.fc.weight", "fc.weight", ("model.*", "*")),
        ("layers.0.x[0:3]", "layers.0.y", ("layers.0.x[0:3]", "layers.0.y")),
    ],
)
def test_renames_are_told_by_their_beginnings(
    before: str, after: str, beginnings: tuple[str, str]
) -> None:
    assert _beginnings(TensorChange(before=before, after=after)) == beginnings
