# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The commands of the bench group that need no server."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from tensorrt_llm_ext.cli.main import app

EXAMPLE = Path(__file__).parents[2] / "examples" / "tiny_kimi"


def invoke(*arguments: str):
    return CliRunner().invoke(app, ["bench", *arguments])


def test_op_prints_a_table_and_json() -> None:
    done = invoke("op", "verify_greedy", "--shapes", "small")
    assert done.exit_code == 0, done.output
    assert "says nothing of a GPU" in done.output
    done = invoke("op", "verify_greedy", "--shapes", "small", "--json")
    report = json.loads(done.stdout)
    assert report["results"][0]["timing"]["median"] > 0
    assert report["is_gpu"] is False


def test_warmup_lists_what_is_captured() -> None:
    pair = (str(EXAMPLE / "target"), "--draft", str(EXAMPLE / "draft"))
    done = invoke("warmup", *pair, "--max-batch-size", "4", "--batch-sizes", "1,4", "--json")
    assert done.exit_code == 0, done.output
    graphs = json.loads(done.stdout)["graphs"]
    assert {(g["batch_size"], g["query_len"], g["draft_len"]) for g in graphs} == {
        (1, 4, 3),
        (4, 4, 3),
    }
    assert {g["sampling"] for g in graphs} == {"greedy", "sampled", "filtered"}
    assert all(g["static_bytes"] > 0 for g in graphs)
    assert "12 graphs" in invoke("warmup", *pair, "--max-batch-size", "4").output


def test_acceptance_saves_a_baseline_and_holds_to_it(tmp_path: Path) -> None:
    pair = (str(EXAMPLE / "target"), "--draft", str(EXAMPLE / "draft"), "--num-questions", "6")
    saved = tmp_path / "baseline.json"
    done = invoke("acceptance", *pair, "--max-tokens", "30", "--save-baseline", str(saved))
    assert done.exit_code == 0, done.output
    assert "mean acceptance length" in done.output
    options = ("--max-tokens", "30", "--baseline", str(saved), "--json")
    report = json.loads(invoke("acceptance", *pair, *options).stdout)
    assert report["gate"] == {
        "baseline": report["acceptance_length"]["value"],
        "reasons": [],
    }
    assert report["pooled"]["num_steps"] > 20
    assert len(report["pooled"]["per_position"]) == 3
    done = invoke("acceptance", *pair, "--max-tokens", "30", "--min-length", "3.99")
    assert done.exit_code == 1
    assert "gate closed" in done.output
