# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Invariants (a) and (e) with an NVFP4 target and draft, in every mode; no read on the host."""

from __future__ import annotations

import collections
import copy
import random

import pytest
import torch
from hypothesis import given, settings
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from tensorrt_llm_ext.configs.quant import QUANT_MODES
from tensorrt_llm_ext.engine.core import EngineCore
from tensorrt_llm_ext.quantization.experts import QuantExperts
from tensorrt_llm_ext.quantization.linear import QuantLinear
from tensorrt_llm_ext.speculative.step import one_model_step
from tests.speculative.test_step import without_values
from tests.support.oracle_draws import draw_plan, draw_works
from tests.support.oracle_engine import (
    SEEDS,
    Models,
    PathChecker,
    Plan,
    assert_same_outcomes,
    plain_outcomes,
    run,
)
from tests.support.quantized import quantized_models

FEWER = settings(max_examples=max(3, settings.default.max_examples // 4))
LAYOUTS = ("experts", "all_but_kv_b")
TIERS = ("layer_fc", "layer_fc_head", "layer_fc_fp8_head")


def draw_key(rng: random.Random) -> tuple[int, int, str, str]:
    return rng.randrange(4), rng.choice((3, 5, 12)), rng.choice(LAYOUTS), rng.choice(TIERS)


@pytest.mark.parametrize("mode", QUANT_MODES)
def test_output_with_speculation_equals_output_without(mode: str) -> None:
    accepted = collections.Counter()

    @FEWER
    @given(seed=SEEDS)
    def every_output(seed: int) -> None:
        rng = random.Random(seed)
        models = quantized_models(mode, *draw_key(rng))
        requests = draw_works(rng, models.vocab_size, rich=True)
        plan = draw_plan(rng)
        expected = plain_outcomes(models, requests, plan.max_seq_len)
        engine = EngineCore(models.target, models.draft, plan.config(with_draft=True))
        assert_same_outcomes(run(engine, requests, plan), expected)
        accepted["drafts"] += engine.stats.num_accepted

    every_output()
    assert accepted["drafts"] > 5


@pytest.mark.parametrize("mode", ["packed", "dequantized"])
def test_every_step_equals_the_stateless_oracle(mode: str) -> None:
    """The oracle multiplies by plain matrices: those of the same checkpoint, dequantized."""
    seen: collections.Counter[str] = collections.Counter()

    @FEWER
    @given(seed=SEEDS)
    def every_step(seed: int) -> None:
        rng = random.Random(seed)
        key = draw_key(rng)
        models, plain = quantized_models(mode, *key), quantized_models("dequantized", *key)
        requests, plan = draw_works(rng, models.vocab_size), draw_plan(rng)
        expected = plain_outcomes(models, requests, plan.max_seq_len)
        checker = PathChecker(plain, requests, expected)
        engine = EngineCore(models.target, models.draft, plan.config(with_draft=True))
        assert_same_outcomes(run(engine, requests, plan, checker), expected)
        seen.update(checker.seen)

    every_step()
    assert seen["proposals"] > 20


def valueless(model: nn.Module, mode: FakeTensorMode, memo: dict[int, torch.Tensor]) -> nn.Module:
    """The same model over tensors that have shapes only; shared ones stay shared."""

    def fake(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in memo:
            memo[id(tensor)] = mode.from_tensor(tensor.detach())
        return memo[id(tensor)]

    result = copy.deepcopy(model, {id(t): t for t in (*model.parameters(), *model.buffers())})
    for module in result.modules():
        for name, weight in list(module._parameters.items()):
            if weight is not None:
                module._parameters[name] = nn.Parameter(fake(weight), requires_grad=False)
        for name, buffer in list(module._buffers.items()):
            if buffer is not None:
                module._buffers[name] = fake(buffer)
    return result


@pytest.mark.parametrize("mode", ["packed", "w4a4"])
@pytest.mark.parametrize("layout", LAYOUTS)
@torch.no_grad()
def test_step_reads_nothing_on_the_host(mode: str, layout: str) -> None:
    models = quantized_models(mode, 1, 12, layout, "layer_fc_head")
    recorded = record(models)
    config = models.target.config
    with FakeTensorMode() as fake:
        memo: dict[int, torch.Tensor] = {}
        target, draft = (valueless(m, fake, memo) for m in (models.target, models.draft))
        kinds = [type(module) for module in (*target.modules(), *draft.modules())]
        assert QuantLinear in kinds
        assert QuantExperts in kinds
        num_layers, latent = config.num_layers + 1, config.mla.latent_size
        caches = torch.zeros((num_layers, 40, 4, latent), dtype=torch.float64).unbind(0)
        ring = torch.zeros((4 * 256 + 1, 3 * config.hidden_size), dtype=torch.float64)
        for inputs in recorded:
            outputs = one_model_step(target, draft, without_values(inputs, fake), caches, ring)
            assert outputs.tokens.shape == (inputs.batch_size, inputs.query_len)
            with pytest.raises(DataDependentOutputException):
                outputs.num_emitted.tolist()  # the mode notices a read


def record(models: Models) -> list:
    """The inputs of every step of a short run."""
    rng = random.Random(5)
    plan = Plan(chunk=18, max_draft_len=3, draft_lens=(3,))
    engine = EngineCore(models.target, models.draft, plan.config(with_draft=True))
    build, recorded = engine._inputs.build, []

    def recording_build(*args, **kwargs):
        recorded.append(build(*args, **kwargs))
        return recorded[-1]

    engine._inputs.build = recording_build  # type: ignore[method-assign]
    run(engine, draw_works(rng, models.vocab_size), plan)
    assert any(inputs.num_decode for inputs in recorded)
    assert any(inputs.num_prefill for inputs in recorded)
    return recorded
