# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Captured steps give the eager engine's tokens; here they are recorded and run again on the CPU.

What a graph would do on a GPU is done by the same code over the same static buffers: `Recording`
runs the captured function at each replay and puts its results where the first ones were.
"""

from __future__ import annotations

import dataclasses
import logging
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tensorrt_llm_ext.configs.engine import CudaGraphConfig
from tensorrt_llm_ext.configs.sampling import SamplingParams
from tensorrt_llm_ext.engine.core import EngineCore
from tensorrt_llm_ext.engine.cuda_graphs import Captured, GraphedSteps
from tensorrt_llm_ext.engine.settings import EngineConfig
from tensorrt_llm_ext.engine.warmup import SamplingKind, plan_warmup
from tensorrt_llm_ext.speculative.metadata import StepOutputs
from tests.support.tiny_models import random_draft, random_target

PADDED = CudaGraphConfig(batch_sizes=[1, 2, 4], enable_padding=True)
GREEDY = SamplingParams(max_tokens=20, ignore_eos=True)
SAMPLED = SamplingParams(max_tokens=20, ignore_eos=True, temperature=0.9)
FILTERED = SamplingParams(max_tokens=20, ignore_eos=True, temperature=1.1, top_k=9, top_p=0.9)
PENALISED = SamplingParams(max_tokens=12, ignore_eos=True, presence_penalty=0.5)


class Recording:
    """Captures by remembering, replays by running again over the same buffers."""

    def __call__(self, run: Callable[[], StepOutputs]) -> Captured:
        outputs = run()

        def replay() -> None:
            again = run()
            for field in dataclasses.fields(outputs):
                into, new = getattr(outputs, field.name), getattr(again, field.name)
                if into is not None:
                    into.copy_(new)

        return Captured(outputs, replay)


def make_core(seed: int, *, has_draft: bool = True, **limits: Any) -> EngineCore:
    config, target = random_target(seed)
    draft = None
    if has_draft:
        _, draft = random_draft(seed, config)
        draft.share_with(target)
    defaults = {"max_batch_size": 4, "max_num_tokens": 24, "block_size": 4, "num_blocks": 60}
    defaults |= {"max_seq_len": 48, "max_draft_len": 3 if has_draft else 0}
    return EngineCore(target, draft, EngineConfig(**{**defaults, **limits}))


def graphed(core: EngineCore, config: CudaGraphConfig = PADDED) -> GraphedSteps:
    return core.use_graphs(config, Recording())


def run(core: EngineCore, plan: list[SamplingParams], seed: int = 5) -> list[list[int]]:
    """Requests come one after the other, so that batches grow and shrink."""
    rng = random.Random(seed)
    waiting = [
        ([rng.randrange(40) for _ in range(rng.randint(1, 12))], sampling) for sampling in plan
    ]
    tokens: dict[int, list[int]] = {}
    while waiting or core.has_unfinished():
        if waiting and rng.random() < 0.5:
            prompt, sampling = waiting.pop()
            tokens[core.add_request(prompt, sampling, seed=len(waiting))] = []
        for update in core.step():
            tokens[update.request_id] += update.new_token_ids
    core.check_integrity()
    assert core.block_manager.num_used == 0
    return list(tokens.values())


@pytest.mark.parametrize("has_draft", [True, False], ids=["draft", "target"])
@pytest.mark.parametrize(
    "plan",
    [[GREEDY] * 5, [SAMPLED] * 5, [FILTERED, GREEDY, SAMPLED, GREEDY, FILTERED, SAMPLED]],
    ids=["greedy", "sampled", "mixed"],
)
def test_tokens_are_the_eager_engines(plan: list[SamplingParams], has_draft: bool) -> None:
    for seed in (0, 4, 9):
        limits = {"has_draft": has_draft, "enable_block_reuse": False}
        core = make_core(seed, **limits)
        steps = graphed(core)
        got = run(core, plan)
        assert got == run(make_core(seed, **limits), plan)
        assert steps.num_replays > 10
        assert all(cache[0].eq(0).all() for cache in core.latent_caches)


@given(st.integers(0, 1000), st.lists(st.sampled_from([GREEDY, SAMPLED, FILTERED]), max_size=6))
def test_any_coming_and_going(seed: int, plan: list[SamplingParams]) -> None:
    short = [dataclasses.replace(sampling, max_tokens=6) for sampling in plan]
    core = make_core(seed % 7)
    graphed(core)
    assert run(core, short, seed) == run(make_core(seed % 7), short, seed)


def test_padding_changes_no_row_of_the_cache() -> None:
    """The caches are bit-equal to those of the same steps without padding."""
    exact = CudaGraphConfig(batch_sizes=[1, 2, 3, 4])
    wide = CudaGraphConfig(batch_sizes=[4], enable_padding=True)
    caches = []
    for config in (exact, wide):
        core = make_core(2, enable_block_reuse=False)
        steps = graphed(core, config)
        run(core, [GREEDY] * 5)
        assert steps.num_replays > 10
        caches.append(torch.stack(core.latent_caches))
    torch.testing.assert_close(caches[0], caches[1], rtol=1e-12, atol=1e-12)


def test_lengths_of_drafts_by_batch() -> None:
    """k shrinks with the batch, to zero and back: what has no graph runs eagerly, same tokens."""
    schedule = {"draft_len_for": lambda batch: {1: 3, 2: 2}.get(batch, 0), "ring_size": 8}
    core = make_core(3, **schedule)
    steps = graphed(core)
    assert {(s.query_len, s.draft_len) for s in steps.plan.shapes} == {(1, 0), (4, 2), (4, 3)}
    plan = [GREEDY, SAMPLED] * 4
    assert run(core, plan) == run(make_core(3, **schedule), plan)
    assert steps.num_replays > 5


def test_why_a_step_runs_eagerly(caplog: pytest.LogCaptureFixture) -> None:
    config = CudaGraphConfig(batch_sizes=[2])
    core = make_core(1, num_blocks=80)
    steps = graphed(core, config)
    plan = [PENALISED, GREEDY, dataclasses.replace(GREEDY, logprobs=1), GREEDY, GREEDY]
    with caplog.at_level(logging.INFO, logger="tensorrt_llm_ext.engine.cuda_graphs"):
        got = run(core, plan)
        run(core, [GREEDY] * 6)
    assert got == run(make_core(1, num_blocks=80), plan)
    reasons = [r.getMessage() for r in caplog.records if "runs eagerly" in r.getMessage()]
    assert len(reasons) == len(set(reasons))
    for part in ("prompt rows", "per token", "log-probabilities", "not captured", "larger than"):
        assert any(part in reason for reason in reasons), part
    assert steps.num_replays > 0


def test_a_failing_replay_returns_what_was_reserved() -> None:
    core = make_core(1)
    steps = graphed(core)
    core.add_request([1, 2, 3], GREEDY)
    core.step()
    used = core.block_manager.num_used
    captured = steps._captured.copy()

    def fail() -> None:
        raise RuntimeError("device lost")

    for shape, (buffers, step) in captured.items():
        steps._captured[shape] = buffers, Captured(step.outputs, fail)
    with pytest.raises(RuntimeError, match="device lost"):
        core.step()
    core.check_integrity()
    assert core.block_manager.num_used <= used
    steps._captured = captured
    while core.has_unfinished():
        core.step()


def engine(**values: Any) -> EngineConfig:
    return EngineConfig(**{"max_batch_size": 8, "max_draft_len": 3, **values})


def test_the_plan_lists_every_shape() -> None:
    graphs = CudaGraphConfig(batch_sizes=[1, 4, 16], enable_padding=True)
    plan = plan_warmup(graphs, engine(), has_draft=True)
    assert plan.batch_sizes == (1, 4, 8)  # 16 is more than ever runs; 8 takes its place
    assert len(plan.shapes) == 3 * len(SamplingKind)
    assert [s.bucket for s in plan.shapes][:3] == [8, 8, 8]
    assert all((s.query_len, s.draft_len) == (4, 3) for s in plan.shapes)
    assert plan.bucket_for(3) == 4
    assert "larger than the largest captured size, 8" in str(plan.bucket_for(9))
    alone = plan_warmup(graphs, engine(max_draft_len=0), has_draft=False)
    assert {(s.query_len, s.draft_len) for s in alone.shapes} == {(1, 0)}


def test_without_padding_only_the_sizes_themselves() -> None:
    plan = plan_warmup(CudaGraphConfig(batch_sizes=[1, 4, 16]), engine(), has_draft=True)
    assert plan.batch_sizes == (1, 4)
    assert "enable_padding is off" in str(plan.bucket_for(3))


@pytest.mark.gpu
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED, FILTERED], ids=["greedy", "t", "top-p"])
def test_graphs_on_a_gpu(sampling: SamplingParams) -> None:
    from pathlib import Path

    from tensorrt_llm_ext import LLM, EagleDecodingConfig

    example = Path(__file__).parents[2] / "examples" / "tiny_kimi"
    texts = []
    for graphs in (PADDED, None):
        draft = EagleDecodingConfig(max_draft_len=3, speculative_model=str(example / "draft"))
        with LLM(
            model=str(example / "target"),
            speculative_config=draft,
            device="cuda",
            dtype="float32",
            max_batch_size=4,
            cuda_graph_config=graphs,
        ) as llm:
            outputs = llm.generate(["Question: Tom has 12 pens."] * 3, sampling)
            texts.append([output.outputs[0].token_ids for output in outputs])
    assert texts[0] == texts[1]
