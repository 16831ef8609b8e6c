# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The step function is written for capture: no host reads, static buffers, harmless padding."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from tensorrt_llm_ext.configs.sampling import SamplingParams
from tensorrt_llm_ext.engine.core import EngineCore
from tensorrt_llm_ext.engine.model_runner import StepResult
from tensorrt_llm_ext.engine.settings import EngineConfig
from tensorrt_llm_ext.models.blocks import TorchBlocks
from tensorrt_llm_ext.models.deepseek import DeepseekV3
from tensorrt_llm_ext.models.eagle3 import Eagle3Draft
from tensorrt_llm_ext.speculative.metadata import StepInputs
from tensorrt_llm_ext.speculative.step import one_model_step
from tests.support.tiny_models import CPU, random_draft, random_target

GREEDY = SamplingParams(max_tokens=24, ignore_eos=True)
SAMPLED = SamplingParams(
    max_tokens=24,
    temperature=0.9,
    top_k=12,
    top_p=0.95,
    min_p=0.01,
    min_tokens=4,
    presence_penalty=0.2,
    frequency_penalty=0.1,
    repetition_penalty=1.2,
    logit_bias={3: 1.5},
    logprobs=2,
)


def make_core(seed: int, **limits: Any) -> EngineCore:
    config, target = random_target(seed)
    _, draft = random_draft(seed, config)
    draft.share_with(target)
    defaults = {"max_batch_size": 3, "max_num_tokens": 24, "block_size": 4, "max_draft_len": 3}
    return EngineCore(target, draft, EngineConfig(**{**defaults, **limits}))


def run(core: EngineCore, sampling: SamplingParams, num_requests: int = 3) -> list[list[int]]:
    rng = random.Random(5)
    prompts = [[rng.randrange(40) for _ in range(rng.randint(1, 20))] for _ in range(num_requests)]
    ids = [
        core.add_request(prompt, sampling, eos_token_ids=(1,), seed=index)
        for index, prompt in enumerate(prompts)
    ]
    tokens: dict[int, list[int]] = {request_id: [] for request_id in ids}
    num_steps = 0
    while core.has_unfinished():
        core.set_draft_len(0 if num_steps % 7 in (4, 5) else 3)  # so that a ring is flushed
        for update in core.step():
            tokens[update.request_id] += update.new_token_ids
        num_steps += 1
    core.check_integrity()
    assert core.block_manager.num_used == 0
    return [tokens[request_id] for request_id in ids]


def record(core: EngineCore, sampling: SamplingParams) -> list[StepInputs]:
    """Inputs of every step of a run."""
    recorded: list[StepInputs] = []
    build = core._inputs.build

    def recording_build(step: Any) -> StepInputs:
        inputs = build(step)
        recorded.append(inputs)
        return inputs

    core._inputs.build = recording_build  # type: ignore[method-assign]
    run(core, sampling)
    return recorded


def without_values(value: Any, mode: FakeTensorMode) -> Any:
    """The same inputs with tensors that have shapes only."""
    if isinstance(value, torch.Tensor):
        return mode.from_tensor(value)
    if isinstance(value, tuple):
        return tuple(without_values(item, mode) for item in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        return dataclasses.replace(
            value, **{name: without_values(item, mode) for name, item in fields.items()}
        )
    return value


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_step_reads_nothing_on_the_host(sampling):
    recorded = record(make_core(3), sampling)
    kinds = {(i.num_decode, i.num_prefill, i.draft_len, i.flush is not None) for i in recorded}
    assert any(decode and prefill for decode, prefill, _, _ in kinds)
    assert any(flush for *_, flush in kinds)
    target_config, _ = random_target(3)
    draft_config, _ = random_draft(3, target_config)
    with FakeTensorMode() as mode, torch.no_grad():
        blocks = TorchBlocks(CPU, torch.float64)
        target = DeepseekV3(target_config, blocks)
        draft = Eagle3Draft(draft_config, blocks, target_config.num_layers)
        draft.share_with(target)
        num_layers = target_config.num_layers + draft_config.num_layers
        latent = target_config.mla.latent_size
        caches = torch.zeros((num_layers, 40, 4, latent), dtype=torch.float64).unbind(0)
        width = draft_config.num_captured * draft_config.target_hidden_size
        ring = torch.zeros((3 * 256 + 1, width), dtype=torch.float64)
        for inputs in recorded:
            outputs = one_model_step(target, draft, without_values(inputs, mode), caches, ring)
            assert outputs.tokens.shape == (inputs.batch_size, inputs.query_len)
            assert outputs.num_emitted.shape == (inputs.batch_size,)
            if inputs.draft_len:
                assert outputs.drafts is not None
                assert outputs.drafts.shape == (inputs.batch_size, inputs.draft_len)
            with pytest.raises(DataDependentOutputException):
                outputs.num_emitted.tolist()  # the mode notices a read


class StaticBuffers:
    """Runs decode steps of one bucket over the same buffers, with poison in the padding."""

    def __init__(self, core: EngineCore, bucket: int, query_len: int, num_columns: int) -> None:
        self._core = core
        self._bucket, self._query_len, self._num_columns = bucket, query_len, num_columns
        self._eager_build = core._inputs.build
        self._eager_run = core._runner.run
        self._buffers: dict[int, StepInputs] = {}
        self._rng = random.Random(11)
        self.num_replays = 0
        for cache in core.latent_caches:
            cache[-1] = torch.nan  # a block that no request is given: padding points at it
        core._inputs.build = self._build  # type: ignore[method-assign]
        core._runner.run = self._run  # type: ignore[method-assign]

    def _build(self, step: Any) -> StepInputs:
        if step.chunks or any(request.num_ring_rows for request in step.requests):
            return self._eager_build(step)
        inputs = self._eager_build(
            step,
            pad_decodes_to=self._bucket,
            query_len=self._query_len,
            num_columns=self._num_columns,
        )
        self._poison(inputs, len(step.decodes))
        return inputs

    def _poison(self, inputs: StepInputs, num_real: int) -> None:
        first_row = num_real * self._query_len
        nan_block = self._core.latent_caches[0].shape[0] - 1
        inputs.token_ids[first_row:] = self._rng.randrange(40)
        inputs.positions[first_row:] = self._rng.randrange(30)
        inputs.block_table[num_real:] = nan_block
        inputs.num_drafts[num_real:] = self._query_len - 1
        inputs.first_generated[num_real:] = self._rng.randrange(30)

    def _run(self, inputs: StepInputs) -> StepResult:
        if inputs.num_decode != self._bucket or inputs.num_prefill or inputs.flush is not None:
            return self._eager_run(inputs)
        buffers = self._buffers.get(inputs.draft_len)
        if buffers is None:
            # has_padding is part of what a bucket is captured for; a full bucket is padding-free.
            inputs.metadata.has_padding = True
            buffers = self._buffers[inputs.draft_len] = inputs
        else:
            inputs.metadata.has_padding = True
            buffers.copy_(inputs)
            self.num_replays += 1
        return self._eager_run(buffers)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("seed", [0, 4, 9])
def test_static_buffers_with_poisoned_padding_equal_eager(seed, sampling):
    limits = {"num_blocks": 45, "max_seq_len": 60, "enable_block_reuse": False}
    expected = run(make_core(seed, **limits), sampling)
    core = make_core(seed, **limits)
    static = StaticBuffers(core, bucket=5, query_len=4, num_columns=17)

    got = run(core, sampling)

    assert got == expected
    assert static.num_replays > 5
    assert all(cache[0].eq(0).all() for cache in core.latent_caches)  # the null block stayed zero


def test_copying_into_static_buffers_refuses_another_bucket():
    recorded = record(make_core(1), GREEDY)
    decode = [inputs for inputs in recorded if inputs.num_prefill == 0]
    smaller = next(inputs for inputs in decode if inputs.num_decode < decode[0].num_decode)

    with pytest.raises(ValueError, match="static buffer"):
        decode[0].copy_(smaller)
