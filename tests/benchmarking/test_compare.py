# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from tensorrt_llm_ext.benchmarking.compare import (
    Comparison,
    compare_runs,
    median_tokens_per_s,
    num_requests,
)
from tensorrt_llm_ext.benchmarking.margins import (
    TOLERANCES,
    Divergence,
    find_divergences,
    first_difference,
    next_logprobs,
)
from tensorrt_llm_ext.benchmarking.runs import RunResult, Workload, make_core, measure
from tensorrt_llm_ext.configs.sampling import SamplingParams
from tensorrt_llm_ext.engine.llm import LLM
from tensorrt_llm_ext.engine.loading import LoadedModels
from tensorrt_llm_ext.engine.settings import EngineConfig
from tensorrt_llm_ext.errors import RequestError
from tensorrt_llm_ext.speculative.stats import AcceptanceStats
from tests.support.cycling_models import cycling_models
from tests.support.tiny_models import random_draft, random_target

VOCAB = 40
CYCLE = [5, 9, 13, 30, 2]


@pytest.fixture(scope="module")
def models() -> LoadedModels:
    config, target = random_target(3, vocab_size=VOCAB)
    _, draft = random_draft(4, config)
    draft.share_with(target)
    return LoadedModels(target=target, draft=draft)


def workload(**sampling: Any) -> Workload:
    prompts = ((3, 4, 5), (6,), (7, 8, 9, 10))
    return Workload(prompts=prompts, sampling=SamplingParams(max_tokens=12, **sampling))


@pytest.mark.parametrize("batch_size", [1, 3])
def test_measure_generates_what_the_llm_generates(models: LoadedModels, batch_size: int) -> None:
    work = replace(workload(temperature=1.0), batch_size=batch_size, seed=11)
    core = make_core(models, work, 2)
    ended: list[int] = []
    result = measure(core, work, (), ended.append)
    with LLM.from_loaded(models, EngineConfig(max_draft_len=2, seed=11)) as llm:
        outputs = llm.generate([list(p) for p in work.prompts], work.sampling)
    assert [list(ids) for ids in result.token_ids] == [o.outputs[0].token_ids for o in outputs]
    assert result.num_tokens == 36
    assert result.tokens_per_s == pytest.approx(36 / result.seconds)
    assert sum(ended) == 3
    assert result.acceptance == core.stats
    assert not core.has_unfinished()


def test_a_prompt_that_does_not_fit_leaves_the_engine_idle(models: LoadedModels) -> None:
    work = workload()
    core = make_core(models, work, 0)
    with pytest.raises(RequestError):
        measure(core, replace(work, prompts=((1, 2), (VOCAB + 5,))), ())
    assert not core.has_unfinished()
    core.check_integrity()


@pytest.mark.parametrize("temperature", [None, 0.9])
def test_compare_runs_pairs_and_finds_no_difference(
    models: LoadedModels, temperature: float | None
) -> None:
    work = workload(temperature=temperature)
    ended: list[int] = []
    result = compare_runs(models, work, max_draft_len=3, num_pairs=3, progress=ended.append)
    assert result.verdict == "identical"
    assert result.first_divergence is None
    assert len(result.baseline) == len(result.speculative) == 3
    assert sum(ended) == num_requests(work, 3) == 18
    assert result.baseline[0].token_ids == result.speculative[2].token_ids
    assert result.acceptance.num_drafted > 0
    assert result.baseline[0].acceptance.num_steps == 0
    slow = [run.tokens_per_s for run in result.baseline]
    ratios = sorted(run.tokens_per_s / slow[i] for i, run in enumerate(result.speculative))
    assert result.speedup == pytest.approx(ratios[1])
    assert median_tokens_per_s(result.baseline) in [run.tokens_per_s for run in result.baseline]


def test_prefix_reuse_does_not_flatter_repeated_runs(models: LoadedModels) -> None:
    work = workload()
    core = make_core(models, work, 2)
    assert not core.config.enable_block_reuse
    first, second = measure(core, work, ()), measure(core, work, ())
    assert first.acceptance == second.acceptance


def test_drafts_at_the_end_are_not_clipped_by_the_measurement() -> None:
    models = cycling_models([66])
    work = Workload(prompts=((66,),), sampling=SamplingParams(max_tokens=21))
    result = measure(make_core(models, work, 4), work, ())
    assert result.acceptance.acceptance_length == 5.0
    assert result.acceptance.steps_per_position == [4, 4, 4, 4]


def run_of(tokens: list[int]) -> RunResult:
    return RunResult(token_ids=(tuple(tokens),), seconds=1.0, acceptance=AcceptanceStats())


def divergence(margin: float, prompt_index: int = 0) -> Divergence:
    return Divergence(
        prompt_index=prompt_index,
        position=0,
        baseline_token=1,
        speculative_token=2,
        margin=margin,
        tolerance=TOLERANCES[torch.float32],
    )


@pytest.mark.parametrize(
    ("margins", "verdict"),
    [
        ([], "identical"),
        ([1e-5], "near_tie"),
        ([0.3], "different"),
        ([1e-5, 0.3], "different"),
        ([float("inf")], "different"),
    ],
)
def test_verdicts(margins: list[float], verdict: str) -> None:
    found = tuple(divergence(margin, i) for i, margin in enumerate(margins))
    runs = (run_of([1]),)
    result = Comparison(baseline=runs, speculative=runs, divergences=found)
    assert result.verdict == verdict
    assert result.divergent_prompts == frozenset(range(len(margins)))
    if margins:
        assert result.first_divergence is not None
        assert result.first_divergence.margin == max(margins)


def test_first_difference() -> None:
    assert first_difference([1, 2], [1, 2]) is None
    assert first_difference([1, 2, 3], [1, 4, 3]) == 1
    assert first_difference([1, 2], [1, 2, 3]) == 2
    assert first_difference([], [1]) == 0


def test_margins_come_from_the_target_on_the_common_prefix(models: LoadedModels) -> None:
    work = workload()
    core = make_core(models, work, 0)
    tokens = [list(ids) for ids in measure(core, work, ()).token_ids]
    other = [list(ids) for ids in tokens]
    logprobs = next_logprobs(models, core, [*work.prompts[1], *tokens[1][:4]])
    assert float(logprobs.exp().sum()) == pytest.approx(1.0)
    assert int(logprobs.argmax()) == tokens[1][4]
    other[1][4] = int(logprobs.topk(2).indices[1])
    (found,) = find_divergences(models, work, tokens, other, core=core)
    best, second = logprobs.topk(2).values.tolist()
    assert (found.prompt_index, found.position) == (1, 4)
    assert found.margin == pytest.approx(best - second)
    assert found.tolerance == TOLERANCES[torch.float64]
    assert not found.is_near_tie
    cut = [ids[:3] for ids in tokens]
    assert all(
        d.margin == float("inf") for d in find_divergences(models, work, tokens, cut, core=core)
    )


def test_a_tie_is_a_near_tie() -> None:
    models = cycling_models(CYCLE)
    head = models.target.lm_head.weight  # type: ignore[attr-defined]
    with torch.no_grad():
        head[77] = head[CYCLE[1]]
    work = Workload(prompts=((CYCLE[0],),), sampling=SamplingParams(max_tokens=1))
    core = make_core(models, work, 0)
    (found,) = find_divergences(models, work, [[CYCLE[1]]], [[77]], core=core)
    assert found.margin == pytest.approx(0.0, abs=1e-12)
    assert found.is_near_tie


def test_a_sampled_margin_is_the_distance_of_the_draw_from_the_token(models: LoadedModels) -> None:
    work = workload(temperature=1.0)
    core = make_core(models, work, 0)
    tokens = [list(ids) for ids in measure(core, work, ()).token_ids]
    probs = next_logprobs(models, core, list(work.prompts[0])).exp()
    drawn = tokens[0][0]
    margins = {}
    for token in range(VOCAB):
        if token != drawn:
            other = [[token, *tokens[0][1:]], *tokens[1:]]
            (found,) = find_divergences(models, work, tokens, other, core=core)
            margins[token] = found.margin
    # Neighbours of the drawn token share the interval's ends; farther ones lie beyond them.
    below = [margins[t] for t in range(drawn)]
    above = [margins[t] for t in range(drawn + 1, VOCAB)]
    assert below == sorted(below, reverse=True)
    assert above == sorted(above)
    if drawn > 0 and drawn < VOCAB - 1:
        assert below[-1] + above[0] == pytest.approx(float(probs[drawn]))


def test_a_token_that_rounding_cannot_explain_is_no_near_tie(models: LoadedModels) -> None:
    """The margin is that of the emitted tokens, not of the two most likely ones."""
    work = replace(workload(), prompts=((3, 4, 5),))
    core = make_core(models, work, 0)
    right = measure(core, work, ()).token_ids
    logprobs = next_logprobs(models, core, (3, 4, 5))
    wrong = [[int(logprobs.argmin()), *right[0][1:]]]

    (found,) = find_divergences(models, work, right, wrong, core=core)

    assert found.position == 0
    assert found.margin == pytest.approx(float(logprobs.max() - logprobs.min()))
    assert not found.is_near_tie
