# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tensorrt_llm_ext.errors import CheckpointError, ConfigError
from tensorrt_llm_ext.quantization.tensors import Fp8Tensor, Nvfp4Tensor
from tensorrt_llm_ext.quantizing.calibration import InputStatistics
from tensorrt_llm_ext.quantizing.dense import linear_names
from tensorrt_llm_ext.quantizing.packing import (
    pack_modules,
    packed_from,
    quant_config_of,
    stored_tensors,
)
from tensorrt_llm_ext.quantizing.recipes import ModulePlan, find_recipe, read_plan
from tests.support.quantizing import dense, read_draft

ATTENTION = "layers.0.self_attn."
Q_A, KV_A, KV_B = (f"{ATTENTION}{n}" for n in ("q_a_proj", "kv_a_proj_with_mqa", "kv_b_proj"))


@pytest.fixture
def weights(draft: Path) -> dict[str, torch.Tensor]:
    _, tensors = read_draft(draft)
    return {n: tensors[f"{n}.weight"] for n in linear_names(dense(draft))}


@pytest.fixture
def statistics(weights: dict[str, torch.Tensor]) -> InputStatistics:
    per_step = {n: (1.0 + i, 2.0 + i) for i, n in enumerate(weights)}
    return InputStatistics(per_step=per_step, num_rows=5)


def plans(name: str, weights: dict[str, torch.Tensor]) -> dict[str, ModulePlan]:
    return dict(read_plan(find_recipe(name), tuple(weights)).modules)


@pytest.mark.parametrize("name", ["nvfp4_layer_fc_head", "fp8_layer_fc_head"])
def test_siblings_share_scales(
    weights: dict[str, torch.Tensor], statistics: InputStatistics, name: str
) -> None:
    packed = pack_modules(weights, plans(name, weights), statistics)
    assert packed.keys() == weights.keys() - {KV_B}
    for first, second in ((Q_A, KV_A), ("layers.0.mlp.gate_proj", "layers.0.mlp.up_proj")):
        a, b = packed[first], packed[second]
        largest = max(statistics.amax(first), statistics.amax(second))
        if isinstance(a, Nvfp4Tensor) and isinstance(b, Nvfp4Tensor):
            assert torch.equal(a.global_scale, b.global_scale)
            assert float(a.input_scale) == pytest.approx(largest / 2688)
        else:
            assert isinstance(a, Fp8Tensor)
            assert isinstance(b, Fp8Tensor)
            assert torch.equal(a.scale, b.scale)
            assert float(a.input_scale) == pytest.approx(largest / 448)
        assert torch.equal(a.input_scale, b.input_scale)


def test_weights_come_back_near(
    weights: dict[str, torch.Tensor], statistics: InputStatistics
) -> None:
    packed = pack_modules(weights, plans("nvfp4_layer_fc_head", weights), statistics)
    for name, part in packed.items():
        error = (part.dequantize(torch.float32) - weights[name].float()).norm()
        assert 0.02 < float(error / weights[name].float().norm()) < 0.13, name


def test_without_data_input_scale_is_one_or_absent(weights: dict[str, torch.Tensor]) -> None:
    constant = pack_modules(weights, plans("nvfp4_layer_input_scale1", weights), None)
    assert {float(part.input_scale) for part in constant.values()} == {1.0}
    weight_only = pack_modules(weights, plans("w4a16_nvfp4_layer", weights), None)
    assert {part.input_scale for part in weight_only.values()} == {None}
    with pytest.raises(ConfigError, match="there are no texts"):
        pack_modules(weights, plans("nvfp4_layer", weights), None)


def test_what_must_stay_float_is_refused(
    weights: dict[str, torch.Tensor], statistics: InputStatistics
) -> None:
    chosen = plans("nvfp4_layer", weights) | {KV_B: ModulePlan(weight="nvfp4")}
    with pytest.raises(CheckpointError, match="absorb") as caught:
        pack_modules(weights, chosen, statistics)
    assert caught.value.check == "V24"


def test_siblings_must_be_treated_alike(
    weights: dict[str, torch.Tensor], statistics: InputStatistics
) -> None:
    chosen = plans("nvfp4_layer", weights) | {KV_A: ModulePlan()}
    with pytest.raises(ConfigError, match="run them as one product") as caught:
        pack_modules(weights, chosen, statistics)
    assert caught.value.check == "V23"


@pytest.mark.parametrize("amax", [0.0, float("inf"), float("nan")])
def test_useless_inputs_are_refused(
    weights: dict[str, torch.Tensor], statistics: InputStatistics, amax: float
) -> None:
    bad = replace(statistics, per_step=dict.fromkeys(statistics.per_step, (amax,)))
    with pytest.raises(ConfigError, match="largest input of"):
        pack_modules(weights, plans("nvfp4_layer", weights), bad)


@pytest.mark.parametrize(
    ("name", "algo", "group", "layers"),
    [
        ("nvfp4_layer", "NVFP4", 16, 0),
        ("w4a16_nvfp4_layer", "W4A16_NVFP4", 16, 0),
        ("fp8_layer", "FP8", None, 0),
        ("nvfp4_layer_fc_fp8_head", "MIXED_PRECISION", 16, 9),
    ],
)
def test_metadata_are_modelopts(
    weights: dict[str, torch.Tensor],
    statistics: InputStatistics,
    name: str,
    algo: str,
    group: int | None,
    layers: int,
) -> None:
    packed = pack_modules(weights, plans(name, weights), statistics)
    config = quant_config_of(packed, "FP8", "x")
    assert (config.algo, config.group_size, len(config.layers)) == (algo, group, layers)
    assert config.kv_cache_algo == "FP8"


def test_stored_tensors_come_back(
    weights: dict[str, torch.Tensor], statistics: InputStatistics
) -> None:
    packed = pack_modules(weights, plans("nvfp4_layer_fc_fp8_head", weights), statistics)
    floats = {f"{n}.weight": w for n, w in weights.items()}
    stored = stored_tensors(floats, packed)
    assert stored[f"{KV_B}.weight"] is floats[f"{KV_B}.weight"]
    again = packed_from(stored, tuple(weights))
    assert again.keys() == packed.keys()
    for name, part in packed.items():
        assert type(again[name]) is type(part)
        assert torch.equal(again[name].dequantize(torch.float32), part.dequantize(torch.float32))
    pointers = [t.data_ptr() for t in stored.values()]
    assert len(set(pointers)) == len(pointers)  # the file format refuses shared memory
