# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tensorrt_llm_ext.errors import ConfigError
from tensorrt_llm_ext.quantizing.backends import trainable
from tensorrt_llm_ext.quantizing.calibration import collect_inputs
from tensorrt_llm_ext.quantizing.dense import DenseDraft, linear_names
from tensorrt_llm_ext.quantizing.distill import (
    DistillOptions,
    distill,
    divergence,
    mean_divergence,
)
from tensorrt_llm_ext.quantizing.fake_quant import insert_fake_quant
from tensorrt_llm_ext.quantizing.packing import pack_modules
from tensorrt_llm_ext.quantizing.recipes import find_recipe, read_plan
from tensorrt_llm_ext.quantizing.rollout import make_packs
from tests.support.quantizing import BOUNDARIES, dense, texts

STEPS = 2


@pytest.fixture
def student(draft: Path) -> DenseDraft:
    module = dense(draft)
    packs = make_packs(texts(), BOUNDARIES, STEPS)
    plan = read_plan(find_recipe("nvfp4_layer_fc_head"), linear_names(module))
    statistics = collect_inputs(module, module.core, packs, STEPS)
    weights = {n: module.get_submodule(n).weight.detach() for n in plan.modules}
    packed = pack_modules(weights, plan.modules, statistics)
    insert_fake_quant(module, module.core, plan.modules, packed)
    return module


def test_training_brings_the_draft_nearer(draft: Path, student: DenseDraft) -> None:
    teacher = dense(draft)
    train = make_packs(texts((30, 30)), BOUNDARIES, STEPS)
    held_out = make_packs(texts((25, 25), seed=9), BOUNDARIES, STEPS)
    before = {n: p.clone() for n, p in student.named_parameters()}
    report = distill(
        student.core, trainable(student), teacher.core, train, held_out, STEPS,
        DistillOptions(seconds=60, max_updates=10, learning_rate=5e-4),
    )  # fmt: skip
    assert report.is_kept
    assert report.updates == 10
    assert report.loss_after < 0.97 * report.loss_before
    now = mean_divergence(student.core, teacher.core, held_out, STEPS)
    assert now == pytest.approx(report.loss_after)
    moved = [n for n, p in student.named_parameters() if not torch.equal(p, before[n])]
    assert "layers.0.self_attn.kv_b_proj.weight" in moved
    assert not any(p.requires_grad for p in student.parameters())


def test_training_that_hurts_is_undone(draft: Path, student: DenseDraft) -> None:
    teacher = dense(draft)
    packs = make_packs(texts(), BOUNDARIES, STEPS)
    before = {n: p.clone() for n, p in student.named_parameters()}
    report = distill(
        student.core, trainable(student), teacher.core, packs, packs, STEPS,
        DistillOptions(seconds=60, max_updates=4, learning_rate=0.5),
    )  # fmt: skip
    assert not report.is_kept
    assert report.loss_after > report.loss_before
    assert all(torch.equal(p, before[n]) for n, p in student.named_parameters())


def test_teacher_is_not_moved(draft: Path, student: DenseDraft) -> None:
    teacher = dense(draft)
    before = {n: p.clone() for n, p in teacher.named_parameters()}
    packs = make_packs(texts(), BOUNDARIES, STEPS)
    distill(
        student.core, trainable(student), teacher.core, packs, packs, STEPS,
        DistillOptions(seconds=60, max_updates=2, learning_rate=1e-3),
    )  # fmt: skip
    assert all(torch.equal(p, before[n]) for n, p in teacher.named_parameters())


def test_divergence_is_kullback_leibler() -> None:
    teacher, student = torch.randn(5, 7), torch.randn(5, 7)
    p, q = teacher.double().softmax(-1), student.double().softmax(-1)
    expected = (p * (p / q).log()).sum(-1)
    torch.testing.assert_close(
        divergence(teacher, student).double(), expected, atol=1e-5, rtol=1e-4
    )
    assert float(divergence(teacher, teacher).abs().max()) < 1e-6


@pytest.mark.parametrize("bad", [{"seconds": 0.0}, {"learning_rate": -1.0}])
def test_options_that_train_nothing_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="both must be positive"):
        DistillOptions(**bad)
