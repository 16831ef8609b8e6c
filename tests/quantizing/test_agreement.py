# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from pathlib import Path

import torch

from tensorrt_llm_ext.quantization.tensors import quantize_nvfp4
from tensorrt_llm_ext.quantizing.agreement import compare, install_quantized
from tensorrt_llm_ext.quantizing.rollout import make_packs, rollout
from tests.support.quantizing import BOUNDARIES, dense, texts

STEPS = 3


def test_a_draft_agrees_with_itself(draft: Path) -> None:
    packs = make_packs(texts(), BOUNDARIES, STEPS)
    found = compare(dense(draft).core, dense(draft).core, packs, STEPS)
    assert [step.top1 for step in found.steps] == [1.0] * STEPS
    assert max(abs(step.kl) for step in found.steps) < 1e-6
    assert found.acceptance_length == found.float_acceptance_length
    assert found.num_anchors == sum(pack.anchors.numel() for pack in packs)


def test_every_module_counts(draft: Path) -> None:
    exact, other = dense(draft), dense(draft)
    packs = make_packs(texts(), BOUNDARIES, STEPS)
    name = "layers.0.mlp.down_proj"
    weight = exact.get_submodule(name).weight
    install_quantized(other, other.core, {name: quantize_nvfp4(-weight)}, "dequantized")
    found = compare(exact.core, other.core, packs, STEPS)
    assert found.steps[0].top1 < 1.0
    assert found.steps[0].kl > 1e-3


def test_one_wrong_draft_ends_acceptance(draft: Path) -> None:
    core = dense(draft).core
    (pack,) = make_packs(texts((12,)), BOUNDARIES, STEPS)
    with torch.no_grad():
        said = torch.stack([item.tokens for item in rollout(core, pack, STEPS)], dim=1)
    pack.labels.copy_(said)
    assert compare(core, core, [pack], STEPS).acceptance_length == 1 + STEPS
    pack.labels[:, 1] += 1
    assert compare(core, core, [pack], STEPS).acceptance_length == 2.0
