# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The product's promises on the trained example models."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tensorrt_llm_ext import LLM, EagleDecodingConfig, SamplingParams
from tensorrt_llm_ext.benchmarking.margins import find_divergences
from tensorrt_llm_ext.benchmarking.problems import load_problems
from tensorrt_llm_ext.benchmarking.runs import Workload, encode_all, make_core, measure
from tensorrt_llm_ext.cli.main import main
from tensorrt_llm_ext.engine.loading import LoadedModels, load_models
from tests.e2e.conftest import load_script


@pytest.fixture(scope="module")
def models(tiny_kimi: Path) -> LoadedModels:
    return load_models(tiny_kimi / "target", draft=tiny_kimi / "draft", device="cpu")


@pytest.fixture
def generate(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs `trtllm-ext generate … --json`; returns what it printed."""

    def call(*arguments: str) -> Any:
        monkeypatch.setattr(sys, "argv", ["trtllm-ext", "generate", *arguments, "--json"])
        with pytest.raises(SystemExit) as stop:
            main()
        assert not stop.value.code
        return json.loads(capsys.readouterr().out)

    return call


def check_comparison(result: Any) -> None:
    """What must hold for any number of problems, but for speed."""
    assert result["identical"] is True
    assert result["verdict"] == "identical"
    assert result["baseline"]["num_tokens"] == result["speculative"]["num_tokens"]
    assert result["baseline"]["exact_match"] == result["speculative"]["exact_match"]
    shares = result["speculative"]["per_position"]
    assert len(shares) == 3
    assert all(left > right for left, right in itertools.pairwise(shares))
    # Neither too predictable to show anything, nor worthless.
    assert 2.7 <= result["speculative"]["acceptance_length"] <= 3.6


@pytest.mark.usefixtures("tiny_kimi")
def test_the_draft_changes_speed_and_not_text(generate: Any) -> None:
    result = generate("--problems", "12", "--pairs", "1", "--device", "cpu")
    check_comparison(result)
    assert result["exact_match"] >= 0.5  # of few; the slow test asks for 0.75 of 500


@pytest.mark.usefixtures("tiny_kimi")
def test_sampled_text_is_the_same_with_the_draft(generate: Any) -> None:
    arguments = ["--problems", "3", "--pairs", "1", "--temperature", "0.8", "--seed", "3"]
    assert generate(*arguments, "--device", "cpu")["identical"] is True


def test_text_ends_by_itself_and_batches_give_the_same_text(
    tiny_kimi: Path, models: LoadedModels
) -> None:
    problems = load_problems(tiny_kimi / "heldout.jsonl", 6)
    params = SamplingParams(max_tokens=160)
    draft = EagleDecodingConfig(max_draft_len=3, speculative_model=tiny_kimi / "draft")
    with LLM(tiny_kimi / "target", speculative_config=draft, device="cpu") as llm:
        outputs = llm.generate([problem.prompt for problem in problems], params)
    work = Workload(prompts=encode_all(models, [p.prompt for p in problems]), sampling=params)
    core = make_core(models, work, 0)
    alone = measure(core, work, models.eos_token_ids).token_ids
    together = [output.outputs[0].token_ids for output in outputs]
    # Other batches round otherwise.
    found = find_divergences(models, work, alone, together, core=core)
    assert all(divergence.is_near_tie for divergence in found)
    for output in outputs:
        assert output.outputs[0].finish_reason == "stop"
        assert "####" in output.outputs[0].text


def test_greedy_tokens_are_those_of_transformers(tiny_kimi: Path, models: LoadedModels) -> None:
    script = load_script("vs_transformers")
    peer = script.Peer(tiny_kimi / "target", models)
    problems = load_problems(tiny_kimi / "heldout.jsonl", 2)
    work = Workload(
        prompts=encode_all(models, [problem.prompt for problem in problems]),
        sampling=SamplingParams(max_tokens=24, ignore_eos=True),
        batch_size=2,
    )
    core = make_core(models, work, 0)
    theirs, ours = peer.run(work, 24), measure(core, work, ())
    found = find_divergences(models, work, theirs.token_ids, ours.token_ids, core=core)
    assert all(divergence.is_near_tie for divergence in found)
    assert theirs.num_tokens == ours.num_tokens == 48


@pytest.mark.slow
@pytest.mark.usefixtures("tiny_kimi")
def test_exact_match(generate: Any) -> None:
    result = generate("--problems", "500", "--pairs", "1", "--batch-size", "8", "--device", "cpu")
    assert result["verdict"] in ("identical", "near_tie")
    assert result["baseline"]["exact_match"] >= 0.75
    assert result["speculative"]["exact_match"] >= 0.75
