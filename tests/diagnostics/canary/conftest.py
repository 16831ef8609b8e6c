# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The example models, and the target's states over a few of its own texts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tensorrt_llm_ext.benchmarking.problems import load_problems
from tensorrt_llm_ext.benchmarking.runs import encode_all
from tensorrt_llm_ext.configs.target import TargetConfig
from tensorrt_llm_ext.diagnostics.canary import TeacherSequence, TeacherStates
from tensorrt_llm_ext.engine.loading import LoadedModels, load_models
from tensorrt_llm_ext.engine.teacher_capture import states_from_prompts
from tensorrt_llm_ext.models.deepseek import DeepseekV3

EXAMPLE = Path(__file__).parents[3] / "examples" / "tiny_kimi"
NUM_TEXTS = 6
MAX_TOKENS = 192
MAX_DRAFT_LEN = 3


@pytest.fixture(scope="session")
def example() -> Path:
    if not (EXAMPLE / "target" / "config.json").is_file():
        pytest.skip("examples/tiny_kimi has no weights in this checkout")
    return EXAMPLE


@pytest.fixture(scope="session")
def models(example: Path) -> LoadedModels:
    return load_models(example / "target", draft=example / "draft", device="cpu")


@pytest.fixture(scope="session")
def prompts(example: Path, models: LoadedModels) -> tuple[tuple[int, ...], ...]:
    problems = load_problems(example / "heldout.jsonl", NUM_TEXTS)
    return encode_all(models, [problem.prompt for problem in problems])


@pytest.fixture(scope="session")
def target(models: LoadedModels) -> DeepseekV3:
    assert isinstance(models.target, DeepseekV3)
    return models.target


@pytest.fixture(scope="session")
def states(
    models: LoadedModels, target: DeepseekV3, prompts: tuple[tuple[int, ...], ...]
) -> TeacherStates:
    return states_from_prompts(
        target,
        prompts,
        boundaries=range(1, 9),
        max_tokens=MAX_TOKENS,
        max_draft_len=MAX_DRAFT_LEN,
        eos_token_ids=models.eos_token_ids,
    )


def random_states(
    config: TargetConfig, lengths: tuple[int, ...], seed: int = 0, labels: bool = True
) -> TeacherStates:
    """Texts of random tokens with random states of every boundary, all of them greedy."""
    generator = torch.Generator().manual_seed(seed)
    sequences = []
    for length in lengths:
        ids = torch.randint(config.vocab_size, (length,), generator=generator)
        sequences.append(
            TeacherSequence(
                input_ids=ids,
                states={
                    b: torch.randn(
                        (length, config.hidden_size), generator=generator, dtype=torch.float64
                    )
                    for b in range(config.num_layers + 1)
                },
                labels=ids.roll(-1) if labels else (ids + 1) % config.vocab_size,
                counted=torch.ones(length, dtype=torch.bool),
            )
        )
    return TeacherStates(sequences=tuple(sequences), source="random", labels="random")
