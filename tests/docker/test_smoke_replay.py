# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The embedded engine writes a given text, and counts what its draft would have had accepted."""

from __future__ import annotations

import pytest
import smoke
from smoke_replay import replayed_acceptance

from tensorrt_llm_ext.benchmarking.problems import load_problems
from tensorrt_llm_ext.benchmarking.runs import Workload, encode_all, make_core, measure
from tensorrt_llm_ext.configs.sampling import SamplingParams
from tensorrt_llm_ext.engine.loading import LoadedModels, load_models

MAX_TOKENS = 90
K = 3


@pytest.fixture(scope="module")
def models() -> LoadedModels:
    folder = smoke.EXAMPLES
    return load_models(folder / "target", draft=folder / "draft", device="cpu")


@pytest.fixture(scope="module")
def workload(models: LoadedModels) -> Workload:
    problems = load_problems(smoke.EXAMPLES / "heldout.jsonl", 2)
    return Workload(
        prompts=encode_all(models, [problem.prompt for problem in problems]),
        sampling=SamplingParams(max_tokens=MAX_TOKENS),
        batch_size=2,
    )


def test_its_own_text_is_accepted_as_before(models: LoadedModels, workload: Workload) -> None:
    run = measure(make_core(models, workload, K), workload, models.eos_token_ids)
    assert min(map(len, run.token_ids)) < MAX_TOKENS  # one ends by itself
    found = replayed_acceptance(models, workload, run.token_ids, K)
    assert found == run.acceptance
    assert found.num_accepted > found.num_drafted / 2


def test_a_text_that_nobody_would_write_is_written_and_hardly_accepted(
    models: LoadedModels, workload: Workload
) -> None:
    end = models.eos_token_ids[0]
    texts = [[*((7 * i * i + n) % 300 + 20 for i in range(12)), end] for n in range(2)]
    found = replayed_acceptance(models, workload, texts, K)
    assert found.num_steps >= 2 * 9
    assert found.num_accepted < found.num_drafted / 10


def test_a_text_that_ends_early_is_an_error(models: LoadedModels, workload: Workload) -> None:
    with pytest.raises(ValueError, match="replayed"):
        replayed_acceptance(models, workload, [[30, 31]] * 2, K)
