# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""What the tests on host doubles share: the unwrapped target, and the embedded engine's answers."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tensorrt_llm_ext.benchmarking.runs import Workload, encode_all, make_core, measure
from tensorrt_llm_ext.configs.sampling import SamplingParams
from tensorrt_llm_ext.engine.loading import load_models
from tests.trtllm.serving import EXAMPLE, K, Served, prompts


@pytest.fixture(scope="session")
def unwrapped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The target without its Kimi wrapper."""
    out = tmp_path_factory.mktemp("targets") / "unwrapped"
    command = [sys.executable, str(EXAMPLE / "unwrap.py"), "--out", str(out)]
    subprocess.run(command, check=True, capture_output=True)
    return out


@cache
def embedded(
    draft: Path,
    count: int,
    max_tokens: int,
    target: str | Path = "target",
    draft_quant_mode: str = "w4a4",
) -> Served:
    """The embedded engine's answers in float64, quantized weights as Blackwell multiplies them."""
    models = load_models(
        EXAMPLE / target,
        draft=draft,
        dtype="float64",
        device="cpu",
        quant_mode="w4a4",
        draft_quant_mode=draft_quant_mode,
    )
    workload = Workload(
        prompts=encode_all(models, prompts(count)),
        sampling=SamplingParams(max_tokens=max_tokens, temperature=0.0),
        batch_size=count,
        seed=0,
    )
    core = make_core(models, workload, K)
    run = measure(core, workload, models.eos_token_ids, lambda _: None)
    stats = {"verify_steps": run.acceptance.num_steps, "accepted": run.acceptance.num_accepted}
    return Served([list(ids) for ids in run.token_ids], stats, [])
