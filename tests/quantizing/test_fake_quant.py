# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tensorrt_llm_ext.quantization.policy import Format
from tensorrt_llm_ext.quantizing.agreement import install_quantized
from tensorrt_llm_ext.quantizing.calibration import collect_inputs
from tensorrt_llm_ext.quantizing.dense import linear_names
from tensorrt_llm_ext.quantizing.fake_quant import FakeQuantLinear, insert_fake_quant, rounded
from tensorrt_llm_ext.quantizing.packing import pack_modules
from tensorrt_llm_ext.quantizing.recipes import find_recipe, read_plan
from tensorrt_llm_ext.quantizing.rollout import make_packs, rollout
from tests.support.quantizing import BOUNDARIES, dense, read_draft, texts

STEPS = 2


@pytest.mark.parametrize(
    "recipe", ["nvfp4_layer_fc_head", "nvfp4_layer_fc_fp8_head", "w4a16_nvfp4_layer"]
)
def test_rounds_as_the_packed_checkpoint_does(draft: Path, recipe: str) -> None:
    student, packed_draft = dense(draft), dense(draft)
    packs = make_packs(texts(), BOUNDARIES, STEPS)
    names = linear_names(student)
    plan = read_plan(find_recipe(recipe), names)
    statistics = collect_inputs(student, student.core, packs, STEPS)
    _, tensors = read_draft(draft)
    packed = pack_modules({n: tensors[f"{n}.weight"] for n in names}, plan.modules, statistics)
    insert_fake_quant(student, student.core, plan.modules, packed)
    mode = "dequantized" if recipe.startswith("w4a16") else "emulated"
    install_quantized(packed_draft, packed_draft.core, packed, mode)
    with torch.no_grad():
        for pack in packs:
            ours = list(rollout(student.core, pack, STEPS))
            fed = [item.tokens for item in ours]
            theirs = rollout(packed_draft.core, pack, STEPS, tokens=fed)
            for mine, other in zip(ours, theirs, strict=True):
                # Sums in another order may move an input across a rounding threshold.
                error = (mine.logits - other.logits).norm() / other.logits.norm()
                assert float(error) < 0.02


@pytest.mark.parametrize("kind", ["nvfp4", "fp8"])
def test_gradient_passes_straight_through(kind: Format) -> None:
    x = torch.randn(3, 32, requires_grad=True)
    y = rounded(x, torch.tensor(0.002), kind)
    assert not torch.equal(x, y)
    (3.0 * y).sum().backward()
    assert torch.equal(x.grad, torch.full_like(x, 3.0))


def test_float_is_left_alone() -> None:
    x = torch.randn(2, 16)
    assert rounded(x, torch.tensor(1.0), "float") is x


def test_modules_are_replaced_in_tree_and_draft(draft: Path) -> None:
    student = dense(draft)
    plan = read_plan(find_recipe("w4a16_nvfp4_layer"), linear_names(student))
    _, tensors = read_draft(draft)
    weights = {n: tensors[f"{n}.weight"] for n in plan.modules}
    packed = pack_modules(weights, plan.modules, None)
    insert_fake_quant(student, student.core, plan.modules, packed)
    down = student.get_submodule("layers.0.mlp.down_proj")
    assert isinstance(down, FakeQuantLinear)
    assert student.core.first_layer.mlp.down_proj is down
    gate, up = (student.get_submodule(f"layers.0.mlp.{n}_proj") for n in ("gate", "up"))
    assert torch.equal(gate.weight_scale(), up.weight_scale())
    assert student.state_dict().keys() == tensors.keys()
