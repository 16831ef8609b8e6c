# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tensorrt_llm_ext.configs.quant import QuantConfig
from tensorrt_llm_ext.errors import ConfigError
from tensorrt_llm_ext.planning.host_matrix import FEATURES
from tensorrt_llm_ext.planning.host_names import host_module_names
from tensorrt_llm_ext.planning.hosts import (
    ERAS,
    EXTENSION_STATUS,
    DraftTraits,
    HostVerdict,
    check_era,
    judge_hosts,
    judge_mha_draft,
)
from tests.planning.kimi_pairs import KIMI, NVFP4, draft, mla, target, without_yarn

EXCLUDES = ("model.midlayer.self_attn.kv_b_proj", "model.fc", "lm_head")
CLEAN_NVFP4 = replace(NVFP4, exclude=EXCLUDES)


def judged(**changes: Any) -> dict[str, HostVerdict]:
    values: dict[str, Any] = {
        "target": target(),
        "draft": draft(),
        "quant": QuantConfig(),
        "facts": DraftTraits(),
    }
    return {verdict.era: verdict for verdict in judge_hosts(**{**values, **changes})}


def quantized(*modules: str) -> DraftTraits:
    return DraftTraits(quantized_modules=frozenset(modules))


def test_a_plain_draft_is_served_by_every_stock_host() -> None:
    verdicts = judged()
    assert tuple(verdicts) == ERAS
    for verdict in verdicts.values():
        assert verdict.can_serve
        assert verdict.with_extension
        assert verdict.reasons == verdict.extension_reasons == ()
        assert verdict.source == "from source, not run"
        assert verdict.extension == EXTENSION_STATUS
    # Only what holds for every MLA draft on Hopper is left to say, on 1.2.
    assert [v.features for v in verdicts.values()] == [("hopper_block_table",), (), ()]


# S: served, C: served with care, B: blocked; one letter per era.
MATRIX: list[tuple[str, dict[str, Any], str, str]] = [
    # feature, what the pair has, stock host per era, with the extension per era
    ("kimi_k25_wrapper", {"target": target(architecture=KIMI)}, "BCC", "BSS"),
    ("target", {"target": target(architecture="LlamaForCausalLM")}, "BBB", "BBB"),
    ("q_lora_rank_null", {"draft": draft(mla=mla(q_lora_rank=None))}, "BBB", "BBB"),
    ("latent_size", {"draft": draft(mla=mla(kv_lora_rank=256))}, "BBB", "BBB"),
    ("latent_size", {"target": target(mla=mla(qk_rope_head_dim=32))}, "BBB", "BBB"),
    ("layers_names", {"facts": DraftTraits(uses_layers_names=True)}, "BCS", "SSS"),
    ("stored_prefix", {"facts": DraftTraits(stored_prefix="model.")}, "BBB", "SSS"),
    ("eagle31_flags", {"draft": draft(fc_norm=True, norm_output=True)}, "BCS", "SSS"),
    ("eagle31_flags", {"draft": draft(norm_before_fc=True)}, "BCS", "SSS"),
    ("norm_before_residual", {"draft": draft(norm_before_residual=True)}, "BBB", "SSS"),
    ("reduced_vocabulary", {"draft": draft(draft_vocab_size=32000)}, "BBB", "SSS"),
    ("layers", {"draft": draft(num_layers=2)}, "BBB", "SSS"),
    ("moe_draft", {"facts": DraftTraits(has_experts=True)}, "BBB", "BBB"),
    ("capture_ids", {"draft": draft(boundaries=(4, 48, 58))}, "CCC", "SSS"),
    ("capture_ids", {"draft": draft(boundaries=(2, 20, 40, 58))}, "CCC", "SSS"),
    ("embeddings_captured", {"draft": draft(boundaries=(0, 30, 58))}, "BBB", "BBB"),
    ("one_captured_layer", {"draft": draft(boundaries=(58,))}, "BBB", "SSS"),
    (
        "square_fc",
        {"draft": draft(hidden_size=3 * 7168, has_own_embedding=True)},
        "BBB",
        "SSS",
    ),
    (
        "hidden_size_mismatch",
        {"draft": draft(hidden_size=3584, has_own_embedding=True)},
        "CCC",
        "SSS",
    ),
    ("hidden_size_mismatch_shared", {"draft": draft(hidden_size=3584)}, "BBB", "BBB"),
    ("own_embedding", {"draft": draft(has_own_embedding=True)}, "CCC", "SSS"),
    (
        "null_target_hidden_size",
        {"facts": DraftTraits(null_keys=("target_hidden_size",))},
        "BBB",
        "SSS",
    ),
    (
        "no_max_position_embeddings",
        {"facts": DraftTraits(has_max_position_embeddings=False)},
        "CCC",
        "SSS",
    ),
    ("model_type_kimi_k2", {"facts": DraftTraits(model_type="kimi_k2")}, "CCS", "SSS"),
    ("rope_without_yarn", {"draft": draft(mla=without_yarn(mla()))}, "CCC", "SSS"),
    ("nvfp4_draft", {"quant": CLEAN_NVFP4}, "BBC", "SSS"),
    ("nvfp4_fc", {"quant": CLEAN_NVFP4, "facts": quantized("fc")}, "BCS", "SSS"),
    ("nvfp4_fc_not_excluded", {"quant": replace(NVFP4, exclude=EXCLUDES[:1])}, "SCB", "SSS"),
    ("kv_b_not_excluded", {"quant": replace(NVFP4, exclude=("layers.0.*",))}, "BBB", "SSS"),
    ("kv_b_bare_exclude", {"quant": replace(NVFP4, exclude=("*kv_b_proj*",))}, "BBC", "SSS"),
    (
        "kv_b_quantized",
        {"quant": CLEAN_NVFP4, "facts": quantized("layers.0.self_attn.kv_b_proj")},
        "BBB",
        "BBB",
    ),
    ("quantized_head", {"quant": CLEAN_NVFP4, "facts": quantized("lm_head")}, "BBC", "SSS"),
    ("other_quantization", {"quant": QuantConfig(method="fp8", algo="FP8")}, "CCC", "SSS"),
    ("hopper_block_table", {}, "CSS", "SSS"),
]


@pytest.mark.parametrize(("feature", "changes", "stock", "extended"), MATRIX)
def test_each_row_of_the_matrix(
    feature: str, changes: dict[str, Any], stock: str, extended: str
) -> None:
    (row,) = (row for row in FEATURES if row.name == feature)
    levels = {"ok": "S", "caution": "C", "blocks": "B"}
    assert "".join(levels[level] for level in row.stock) == stock
    verdicts = judged(**changes)
    for index, (era, expected, planned) in enumerate(zip(ERAS, stock, extended, strict=True)):
        verdict, says = verdicts[era], row.text(index)
        assert (feature in verdict.features) == (expected in "CB")
        if expected == "B":
            assert not verdict.can_serve
            assert any(f": {says} (" in reason for reason in verdict.reasons)
        if expected == "C":
            assert any(f": {says} (" in caution for caution in verdict.cautions)
        assert verdict.with_extension == (planned == "S")
        assert bool(verdict.extension_reasons) == (planned == "B")


def test_every_row_is_in_the_table_above() -> None:
    assert {row.name for row in FEATURES} == {row[0] for row in MATRIX}
    assert len({row.name for row in FEATURES}) == len(FEATURES)
    for row in FEATURES:
        assert row.evidence
        for index, level in enumerate(row.stock):
            assert row.text(index) or level.value == "ok"
        # What the stock host can do the extension does not undo.
        for stock, extended in zip(row.stock, row.extended, strict=True):
            assert not (extended.value == "blocks" and stock.value != "blocks")


def test_reasons_say_what_was_found_and_what_happens() -> None:
    verdict = judged(draft=draft(draft_vocab_size=32000))["1.3"]
    (reason,) = verdict.reasons
    assert reason.startswith("the draft has a reduced vocabulary of 32000 tokens (d2t) with MLA: ")
    assert reason.endswith("(modeling_deepseekv3.DeepseekV3WeightLoader.load_weights)")
    (reason,) = judged(draft=draft(num_layers=3))["1.4"].reasons
    assert reason.startswith("the draft has 3 layers: the MLA path looks for hidden_norm")


@pytest.mark.parametrize(
    "patterns",
    [
        ("*self_attn*", "*fc*"),
        ("re:model\\.midlayer\\.self_attn\\..*", "model.fc"),
        ("model.midlayer.self_attn", "model.fc.*"),
        ("model.midlayer.*", "model.*"),
    ],
)
def test_patterns_that_reach_the_hosts_names(patterns: tuple[str, ...]) -> None:
    verdict = judged(quant=replace(NVFP4, exclude=patterns))["1.4"]
    assert verdict.features == ("nvfp4_draft",)


def test_patterns_that_reach_nothing() -> None:
    stale = ("eagle_module.layers.0.self_attn*", "layers.0.self_attn.kv_b_proj", "fc", "re:(")
    features = judged(quant=replace(NVFP4, exclude=stale))["1.4"].features
    assert {"kv_b_not_excluded", "nvfp4_fc_not_excluded"} <= set(features)
    mixed = QuantConfig(method="modelopt", algo="MIXED_PRECISION", layers={"lm_head": "NVFP4"})
    features = judged(quant=mixed)["1.4"].features
    assert "kv_b_not_excluded" not in features
    assert "nvfp4_draft" in features


def test_host_names() -> None:
    assert host_module_names("lm_head") == ("lm_head",)
    assert host_module_names("fc") == ("model.fc",)
    assert host_module_names("layers.0.mlp.up_proj")[0] == "model.midlayer.mlp.up_proj"
    assert host_module_names("layers.1.mlp.up_proj")[0] == "model.midlayer.1.mlp.up_proj"


def test_traits_are_read_from_names_and_config() -> None:
    names = ["model.layers.0.mlp.experts.0.up_proj.weight", "model.fc.weight"]
    traits = DraftTraits.of(names, {"target_hidden_size": None, "model_type": "kimi_k2"}, ["fc"])
    assert traits == DraftTraits(
        stored_prefix="model.",
        uses_layers_names=True,
        quantized_modules=frozenset({"fc"}),
        null_keys=("target_hidden_size",),
        has_max_position_embeddings=False,
        model_type="kimi_k2",
        has_experts=True,
    )
    plain = DraftTraits.of(["midlayer.hidden_norm.weight"], {"max_position_embeddings": 4096})
    assert plain == DraftTraits()


def test_mha_drafts_take_the_hosts_own_path() -> None:
    verdicts = judge_mha_draft()
    assert [v.era for v in verdicts] == list(ERAS)
    assert [v.can_serve for v in verdicts] == [False, True, True]
    assert "extra_attrs" in verdicts[0].reasons[0]
    assert "KV cache of its own" in verdicts[2].cautions[0]


def test_as_plain_data() -> None:
    verdict = judged(draft=draft(mla=mla(q_lora_rank=None)))["1.2"]
    plain = json.loads(json.dumps(verdict.to_dict()))
    assert plain["can_serve"] is plain["with_extension"] is False
    assert plain["reasons"] == list(verdict.reasons)
    assert (plain["source"], plain["extension"]) == ("from source, not run", EXTENSION_STATUS)


def test_unknown_eras() -> None:
    assert check_era("1.3") == "1.3"
    with pytest.raises(ConfigError, match=r"none of 1\.2, 1\.3, 1\.4"):
        check_era("1.1")
