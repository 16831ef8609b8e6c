# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tensorrt_llm_ext.errors import ConfigError, UnsupportedError
from tensorrt_llm_ext.quantization.policy import TIERS, tier_formats
from tensorrt_llm_ext.quantizing.recipes import (
    find_recipe,
    is_distillation,
    read_plan,
    recipe_names,
)

MODULES = (
    "fc",
    *(f"layers.0.self_attn.{n}" for n in ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa")),
    *(f"layers.0.self_attn.{n}" for n in ("kv_b_proj", "o_proj")),
    *(f"layers.0.mlp.{n}" for n in ("gate_proj", "up_proj", "down_proj")),
    "lm_head",
)
RECIPE_OF_TIER = {tier: tier if tier.startswith("fp8") else f"nvfp4_{tier}" for tier in TIERS}
DRAFT_RECIPES = [name for name in recipe_names() if "eagle3" in name]


@pytest.mark.parametrize("tier", TIERS)
def test_recipes_are_their_tiers(tier: str) -> None:
    plan = read_plan(find_recipe(RECIPE_OF_TIER[tier]), MODULES)
    assert {n: p.weight for n, p in plan.modules.items()} == tier_formats(tier, MODULES)
    assert all(p.inputs == p.weight for p in plan.modules.values())
    assert plan.needs_data
    assert plan.kv_cache_algo == "FP8"


@pytest.mark.parametrize("name", DRAFT_RECIPES)
def test_every_draft_recipe_is_read(name: str) -> None:
    plan = read_plan(find_recipe(name), MODULES)
    assert plan.modules["layers.0.self_attn.kv_b_proj"].weight == "float"
    assert plan.needs_data == ("w4a16" not in name and "input_scale1" not in name)
    constants = {p.constant_amax for p in plan.modules.values() if p.weight != "float"}
    assert constants == ({2688.0} if "input_scale1" in name else {None})


def test_names_are_found() -> None:
    whole = "huggingface/eagle3_deepseek_mla/ptq/nvfp4_layer-kv_fp8_cast"
    assert find_recipe("nvfp4_layer") == find_recipe(whole)
    assert find_recipe("nvfp4_layer").parent.name == "ptq"
    distilled = find_recipe("qad/nvfp4_layer-kv_fp8_cast")
    assert is_distillation(distilled)
    assert not is_distillation(find_recipe("nvfp4_layer"))
    assert find_recipe(str(distilled)) == distilled
    assert find_recipe(str(distilled.with_suffix(""))) == distilled


@pytest.mark.parametrize("name", ["nvfp4_layers", "layer", "nosuch.yaml", "ptq"])
def test_unknown_names_list_what_there_is(name: str) -> None:
    with pytest.raises(ConfigError, match=r"names no file.*nvfp4_layer_fc_head"):
        find_recipe(name)


def write(path: Path, **changes: Any) -> Path:
    document = yaml.safe_load(find_recipe("nvfp4_layer").read_text(encoding="utf-8"))
    document["quantize"] |= changes
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algorithm": "awq_lite"}, "algorithm 'awq_lite'"),
        ({"quant_cfg": [{"$import": "configs/ptq/units/mamba"}]}, "unit"),
        ({"quant_cfg": [{"quantizer_name": "*", "cfg": {"num_bits": 4}}]}, "number format"),
        ({"quant_cfg": [{"quantizer_name": "*", "parent_class": "x", "enable": False}]}, "entry"),
        ({"quant_cfg": [{"quantizer_name": "*", "enable": True}]}, "entry"),
    ],
)
def test_what_only_modelopt_reads_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    path = write(tmp_path / "r.yaml", **changes)
    with pytest.raises(UnsupportedError, match=f"{message}.*only ModelOpt reads"):
        read_plan(path, MODULES)


@pytest.mark.parametrize("text", ["[1, 2", "7", "metadata: {}", "quantize: {quant_cfg: 3}"])
def test_no_recipes_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError):
        read_plan(path, MODULES)


def test_later_entries_win(tmp_path: Path) -> None:
    path = write(
        tmp_path / "r.yaml",
        quant_cfg=[
            {"quantizer_name": "*", "enable": False},
            {"quantizer_name": "*weight_quantizer", "cfg": {"$import": "nvfp4"}},
            {"quantizer_name": "*mlp*", "enable": False},
        ],
    )
    plan = read_plan(path, MODULES)
    assert plan.modules["fc"].weight == "nvfp4"
    assert plan.modules["layers.0.mlp.up_proj"].weight == "float"
    assert (plan.needs_data, plan.kv_cache_algo) == (False, None)
