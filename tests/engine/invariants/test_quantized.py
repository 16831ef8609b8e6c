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
from tensorrt_llm_ext.ops.nvfp4 import nvfp4_dequantize, nvfp4_quantize
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

FEWER = settings(max_examples=settings.default.max_examples // 6)
LAYOUTS = ("experts", "all_but_kv_b")
TIERS = ("layer_fc", "layer_fc_head", "layer_fc_fp8_head")


def draw_key(rng: random.Random) -> tuple[int, int, str, str]:
    return rng.randrange(4), rng.choice((3, 5, 12)), rng.choice(LAYOUTS), rng.choice(TIERS)


@pytest.mark.parametrize("mode", [mode for mode in QUANT_MODES if mode != "auto"])
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


class EmulatedMatrix:
    """Stands in for a weight in the oracle's `x @ weight.data.T`: rounds `x` to NVFP4 first."""

    def __init__(self, weight: torch.Tensor, input_scale: torch.Tensor) -> None:
        self.weight, self.input_scale = weight.data, input_scale
        self.data = self.T = self

    def __rmatmul__(self, x: torch.Tensor) -> torch.Tensor:
        codes = nvfp4_quantize(x, self.input_scale, activation=True)
        return nvfp4_dequantize(*codes, self.input_scale, torch.float64) @ self.weight.T


def emulated_twin(models: Models, plain: Models) -> Models:
    """Copies of the plain models whose matrices stand for the quantized layers of the others."""
    copies = copy.deepcopy(plain)  # at once, so that a borrowed head stays shared
    num_replaced = 0
    for twin, model in ((copies.target, models.target), (copies.draft, models.draft)):
        for name, layer in model.named_modules():
            if isinstance(layer, QuantLinear):
                module, (stack,) = twin.get_submodule(name), layer.stacks
                matrix = EmulatedMatrix(module.weight, stack.input_scale)
                del module.weight
                module.weight = matrix
                num_replaced += 1
    assert num_replaced > 15
    return copies


def test_every_step_of_emulated_activations_equals_the_oracle() -> None:
    seen: collections.Counter[str] = collections.Counter()

    @FEWER
    @given(seed=SEEDS)
    def every_step(seed: int) -> None:
        rng = random.Random(seed)
        key = (rng.randrange(4), rng.choice((3, 5, 12)), "all_but_experts", "layer_fc_head")
        models, plain = quantized_models("w4a4", *key), quantized_models("dequantized", *key)
        requests, plan = draw_works(rng, models.vocab_size), draw_plan(rng)
        expected = plain_outcomes(models, requests, plan.max_seq_len)
        checker = PathChecker(emulated_twin(models, plain), requests, expected)
        engine = EngineCore(models.target, models.draft, plan.config(with_draft=True))
        assert_same_outcomes(run(engine, requests, plan, checker), expected)
        seen.update(checker.seen)

    every_step()
    assert seen["proposals"] > 20


def valueless(model: nn.Module, mode: FakeTensorMode, memo: dict[int, torch.Tensor]) -> nn.Module:
    """The same model over tensors that have shapes only; shared ones stay shared."""

    def fake(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in memo:
            memo[id(tensor)] = mode.from_tensor(tensor.data)
        return memo[id(tensor)]

    result = copy.deepcopy(model, {id(t): t for t in (*model.parameters(), *model.buffers())})
    for module in result.modules():
        for name, weight in list(module._parameters.items()):
            if weight is not None:
                module._parameters[name] = fake(weight)  # type: ignore[assignment]
        for name, buffer in list(module._buffers.items()):
            if buffer is not None:
                module._buffers[name] = fake(buffer)
    return result


@pytest.mark.parametrize(("mode", "layout"), [("packed", "all_but_kv_b"), ("w4a4", "experts")])
@torch.no_grad()
def test_step_reads_nothing_on_the_host(mode: str, layout: str) -> None:
    models = quantized_models(mode, 1, 12, layout, "layer_fc_head")
    recorded = record(models)
    config = models.target.config
    fake, memo = FakeTensorMode(), {}
    target, draft = (valueless(model, fake, memo) for model in (models.target, models.draft))
    kinds = [type(module) for module in (*target.modules(), *draft.modules())]
    assert QuantLinear in kinds
    assert QuantExperts in kinds
    with fake:
        num_layers, latent = config.num_layers + 1, config.mla.latent_size
        caches = torch.zeros((num_layers, 40, 4, latent), dtype=torch.float64).unbind(0)
        ring = torch.zeros((4 * 256 + 1, 3 * config.hidden_size), dtype=torch.float64)
        for inputs in recorded:
            outputs = one_model_step(target, draft, without_values(inputs, fake), caches, ring)
            assert outputs.tokens.shape == (inputs.batch_size, inputs.query_len)
            with pytest.raises(DataDependentOutputException):
                outputs.num_emitted.tolist()  # the mode notices a read


def record(models: Models) -> list:
    """Inputs of a short run, one of each kind of step."""
    rng = random.Random(5)
    plan = Plan(chunk=18, max_draft_len=3, draft_lens=(3,))
    engine = EngineCore(models.target, models.draft, plan.config(with_draft=True))
    build, recorded = engine._inputs.build, []

    def recording_build(*args, **kwargs):
        recorded.append(build(*args, **kwargs))
        return recorded[-1]

    engine._inputs.build = recording_build  # type: ignore[method-assign]
    run(engine, draw_works(rng, models.vocab_size), plan)
    kinds = {(bool(i.num_decode), bool(i.num_prefill), i.draft_len): i for i in recorded}
    assert {kind[:2] for kind in kinds} == {(True, False), (False, True), (True, True)}
    return list(kinds.values())
