# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The models read no tensor on the host: they run where there are no values to read."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from tensorrt_llm_ext.models.blocks import TorchBlocks
from tensorrt_llm_ext.models.deepseek import DeepseekV3
from tensorrt_llm_ext.models.eagle3 import Eagle3Draft
from tensorrt_llm_ext.models.interfaces import ForwardContext
from tests.support.tiny_models import CPU, PagedSequences, Pass, random_draft, random_target


def without_values(mode: FakeTensorMode, plan: Pass) -> Pass:
    """The same pass over tensors that have shapes only."""
    metadata, fake = plan.ctx.metadata, mode.from_tensor
    decode = metadata.decode
    if decode is not None:
        decode = replace(
            decode, block_table=fake(decode.block_table), positions=fake(decode.positions)
        )
    metadata = replace(
        metadata,
        slot_mapping=fake(metadata.slot_mapping),
        decode=decode,
        prefill=tuple(
            replace(chunk, block_table=fake(chunk.block_table)) for chunk in metadata.prefill
        ),
    )
    ctx = ForwardContext(tuple(fake(cache) for cache in plan.ctx.latent_caches), metadata)
    return Pass(ctx, fake(plan.positions), plan.rows)


@pytest.mark.parametrize("seed", range(6))
def test_target_and_draft_run_under_fake_tensor_mode(seed: int) -> None:
    target_config, _ = random_target(seed)
    draft_config, _ = random_draft(seed, target_config)
    paged = PagedSequences(
        target_config.num_layers + draft_config.num_layers,
        target_config.mla.latent_size,
        num_sequences=4,
    )
    real = paged.plan(decode=[(0, 5, 3), (1, 2, 1)], prefill=[(2, 0, 6), (3, 4, 3)])
    with FakeTensorMode() as mode, torch.no_grad():
        blocks = TorchBlocks(CPU, torch.float32)
        target = DeepseekV3(target_config, blocks)
        draft = Eagle3Draft(draft_config, blocks, target_config.num_layers)
        draft.share_with(target)
        plan = without_values(mode, real)
        plan.ctx.latent_caches = tuple(cache.float() for cache in plan.ctx.latent_caches)
        num_rows = len(plan.rows)
        ids = torch.empty(num_rows, dtype=torch.int64)
        with pytest.raises(DataDependentOutputException):
            ids[0].item()  # the mode would notice
        hidden, captured = target(ids, plan.positions, plan.ctx, draft_config.boundaries)
        assert captured is not None
        state = draft(draft.combine(captured), ids, plan.positions, plan.ctx)
        draft_ids, target_ids = draft.propose(state)
        assert target.compute_logits(hidden).shape == (num_rows, target_config.vocab_size)
        assert draft.compute_logits(state).shape == (num_rows, draft_config.draft_vocab_size)
        assert draft_ids.shape == target_ids.shape == (num_rows,)
        assert state.shape == (num_rows, draft_config.hidden_size)
