# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from pathlib import Path

import torch

from tensorrt_llm_ext.quantizing.calibration import collect_inputs
from tensorrt_llm_ext.quantizing.dense import linear_names
from tensorrt_llm_ext.quantizing.rollout import make_packs, rollout
from tests.support.quantizing import BOUNDARIES, dense, texts

STEPS = 3


def test_amax_is_over_every_row_of_every_step(draft: Path) -> None:
    module = dense(draft)
    packs = make_packs(texts(), BOUNDARIES, STEPS, max_rows=20)
    assert len(packs) > 1
    seen: dict[str, list[float]] = {name: [] for name in linear_names(module)}
    for name, values in seen.items():
        module.get_submodule(name).register_forward_hook(
            lambda _m, inputs, _o, values=values: values.append(float(inputs[0].abs().max()))
        )
    with torch.no_grad():
        for pack in packs:
            list(rollout(module.core, pack, STEPS))
    statistics = collect_inputs(module, module.core, packs, STEPS)
    for name, values in seen.items():
        assert statistics.amax(name) == max(values[: len(values) // 2]), name
        assert len(statistics.per_step[name]) == STEPS
    assert statistics.num_rows == sum(pack.successors.numel() for pack in packs)


def test_steps_are_told_apart(draft: Path) -> None:
    module = dense(draft)
    packs = make_packs(texts(), BOUNDARIES, STEPS)
    statistics = collect_inputs(module, module.core, packs, STEPS)
    assert statistics.per_step["fc"][1:] == (0.0, 0.0)  # runs on captured states only
    down = statistics.per_step["layers.0.mlp.down_proj"]
    assert len(set(down)) == STEPS
    first = collect_inputs(module, module.core, packs, 1)
    assert first.per_step["layers.0.mlp.down_proj"] == down[:1]


def test_siblings_see_the_same(draft: Path) -> None:
    module = dense(draft)
    packs = make_packs(texts(), BOUNDARIES, STEPS)
    per_step = collect_inputs(module, module.core, packs, STEPS).per_step
    layer = "layers.0.self_attn."
    assert per_step[f"{layer}q_a_proj"] == per_step[f"{layer}kv_a_proj_with_mqa"]


def test_hooks_are_removed(draft: Path) -> None:
    module = dense(draft)
    collect_inputs(module, module.core, make_packs(texts(), BOUNDARIES, 2), 2)
    assert not any(part._forward_pre_hooks for part in module.modules())
