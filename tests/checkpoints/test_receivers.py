# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Each receiver gets the ids, keys and module names that it reads, or a refusal by name."""

from __future__ import annotations

import dataclasses
import fnmatch
import itertools
from typing import Any

import pytest

from tensorrt_llm_ext.checkpoints.quantized import match_excludes
from tensorrt_llm_ext.checkpoints.receiver_config import changed_keys, receiver_config
from tensorrt_llm_ext.checkpoints.receiver_quant import module_name, module_pattern, quant_metadata
from tensorrt_llm_ext.checkpoints.receivers import RECEIVERS, limits_of, receiver_named
from tensorrt_llm_ext.configs.draft import DraftConfig
from tensorrt_llm_ext.configs.hf_draft import draft_config_from_hf
from tensorrt_llm_ext.configs.quant import QuantConfig
from tensorrt_llm_ext.errors import ConfigError
from tests.support.tiny_checkpoints import draft_json

Stored = dict[str, tuple[str, tuple[int, ...]]]
NVFP4 = QuantConfig(method="modelopt", algo="NVFP4", group_size=16, source="hf_quant_config.json")


def draft(boundaries: tuple[int, ...] = (2, 4, 5), **overrides: Any) -> DraftConfig:
    document = draft_json(trtllm_ext_aux_boundaries=list(boundaries))
    del document["eagle_config"]
    return dataclasses.replace(draft_config_from_hf(document), **overrides)


def engine_reading(receiver: str, ids: tuple[int, ...]) -> tuple[int, ...]:
    """The boundaries that the receiver's own code makes of its ids (facts of each engine)."""
    if receiver == "vllm":
        return ids
    if receiver == "sglang":
        return tuple(i + 1 for i in ids) if ids[0] == 1 else ids
    return tuple(i + 1 for i in ids)


@pytest.mark.parametrize("name", RECEIVERS)
def test_ids_mean_the_boundaries_to_the_receiver(name: str) -> None:
    receiver = receiver_named(name)
    for boundaries in itertools.combinations(range(1, 9), 3):
        if name == "sglang" and boundaries[0] == 1:
            with pytest.raises(ConfigError, match="boundary 1 as the first has no spelling"):
                receiver.layer_ids(boundaries)
        else:
            assert engine_reading(name, receiver.layer_ids(boundaries)) == boundaries
    with pytest.raises(ConfigError, match=rf"begin with 0.*{receiver.title}"):
        receiver.layer_ids((0, 2, 4))


def test_ids_that_begin_with_one_suit_every_sglang() -> None:
    assert receiver_named("sglang").layer_ids((2, 30, 58)) == (1, 29, 57)
    assert receiver_named("sglang").layer_ids((3, 30, 58)) == (3, 30, 58)


def test_unknown_receiver_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'sglang'"):
        receiver_named("sglan")


@pytest.mark.parametrize("name", RECEIVERS)
def test_config_says_what_the_receiver_reads(name: str) -> None:
    receiver = receiver_named(name)
    judged = draft(fc_norm=True, norm_output=True, target_hidden_size=48, draft_vocab_size=60)
    config = receiver_config(receiver, judged, {}, dtype="bfloat16")
    assert config["architectures"] == [receiver.architecture]
    assert config["model_type"] == "kimi_k2"
    expected = {
        "draft_vocab_size": 60,
        "target_hidden_size": 48,
        "num_aux_hidden_states": 3,
        "max_position_embeddings": 128,
        "rope_theta": 10000.0,
        "fc_norm": True,
        "norm_output": True,
        "torch_dtype": "bfloat16",
    }
    assert expected.items() <= config.items()
    assert config["rope_scaling"]["type"] == "yarn"
    shared = config["rope_scaling"].keys() & config["rope_parameters"].keys()
    assert len(shared) == 7
    assert all(config["rope_scaling"][k] == config["rope_parameters"][k] for k in shared)
    nested = config["eagle_config"]
    assert nested["eagle_aux_hidden_state_layer_ids"] == list(receiver.layer_ids((2, 4, 5)))
    assert ("eagle_aux_hidden_state_layer_ids" in config) == (name == "vllm")
    assert config["trtllm_ext_aux_boundaries"] == [2, 4, 5]
    if name == "trtllm":
        assert nested["return_hidden_post_norm"] is True
    # Read alone, without knowing N, it is the same draft again.
    again = draft_config_from_hf(config)
    assert dataclasses.replace(again, boundaries_evidence="") == dataclasses.replace(
        judged, boundaries_evidence="", has_d2t=True
    )


@pytest.mark.parametrize("name", RECEIVERS)
def test_flags_stand_where_each_engine_looks(name: str) -> None:
    judged = draft(norm_before_fc=True, norm_before_residual=True)
    config = receiver_config(receiver_named(name), judged, {}, dtype="bfloat16")
    for section in (config, config["eagle_config"]):
        assert section["norm_before_fc"] is True
        assert section["norm_before_residual"] is True
        assert not {"fc_norm", "norm_output"} & section.keys()
    assert "return_hidden_post_norm" not in config["eagle_config"]


def test_unscaled_rope_has_no_section_that_engines_take_for_yarn() -> None:
    plain = draft()
    rope = dataclasses.replace(plain.mla.rope, yarn=None)
    plain = dataclasses.replace(plain, mla=dataclasses.replace(plain.mla, rope=rope))
    config = receiver_config(receiver_named("vllm"), plain, {}, dtype="bfloat16")
    assert not {"rope_scaling", "rope_parameters"} & config.keys()
    assert config["rope_theta"] == 10000.0


def test_full_rank_query_stays_null() -> None:
    plain = draft()
    full = dataclasses.replace(plain, mla=dataclasses.replace(plain.mla, q_lora_rank=None))
    config = receiver_config(receiver_named("vllm"), full, {}, dtype="bfloat16")
    assert config["q_lora_rank"] is None
    assert [key for key, value in config.items() if value is None] == ["q_lora_rank"]
    assert "needs q_lora_rank" in " ".join(limits_of(receiver_named("sglang"), full, NVFP4))


def test_changes_are_told_apart() -> None:
    before = {"a": 1, "b": 2, "eagle_config": {"x": 1, "y": 2}}
    after = {"a": 1, "b": 3, "c": 4, "eagle_config": {"x": 5}}
    assert changed_keys(before, after) == {
        "added": {"c": 4},
        "changed": {"b": (2, 3), "eagle_config.x": (1, 5)},
        "removed": ("eagle_config.y",),
    }


def stored(quantized: set[str]) -> Stored:
    """A draft of K2.5's module names, some of them NVFP4."""
    widths = {
        "fc": (64, 192),
        "lm_head": (128, 64),
        "layers.0.self_attn.q_a_proj": (32, 128),
        "layers.0.self_attn.kv_a_proj_with_mqa": (32, 128),
        "layers.0.self_attn.q_b_proj": (64, 32),
        "layers.0.self_attn.kv_b_proj": (64, 32),
        "layers.0.self_attn.o_proj": (64, 64),
        "layers.0.mlp.gate_proj": (96, 64),
        "layers.0.mlp.up_proj": (96, 64),
        "layers.0.mlp.down_proj": (64, 96),
    }
    tensors: Stored = {"embed_tokens.weight": ("BF16", (128, 64)), "norm.weight": ("BF16", (64,))}
    for module, (rows, columns) in widths.items():
        if module in quantized:
            tensors |= {
                f"{module}.weight": ("U8", (rows, columns // 2)),
                f"{module}.weight_scale": ("F8_E4M3", (rows, columns // 16)),
                f"{module}.weight_scale_2": ("F32", ()),
                f"{module}.input_scale": ("F32", ()),
            }
        else:
            tensors[f"{module}.weight"] = ("BF16", (rows, columns))
    return tensors


MLP = {f"layers.0.mlp.{name}_proj" for name in ("gate", "up", "down")}
ATTENTION = {
    f"layers.0.self_attn.{name}"
    for name in ("q_a_proj", "kv_a_proj_with_mqa", "q_b_proj", "o_proj")
}
# Names of the receiver's modules in its own class, fused as it fuses them.
ENGINE_MODULES = {
    "trtllm": {
        "model.fc": "fc",
        "lm_head": "lm_head",
        "model.midlayer.self_attn.kv_a_proj_with_mqa": "layers.0.self_attn.q_a_proj",
        "model.midlayer.self_attn.q_b_proj": "layers.0.self_attn.q_b_proj",
        "model.midlayer.self_attn.kv_b_proj": "layers.0.self_attn.kv_b_proj",
        "model.midlayer.self_attn.o_proj": "layers.0.self_attn.o_proj",
        "model.midlayer.mlp.gate_up_proj": "layers.0.mlp.gate_proj",
        "model.midlayer.mlp.down_proj": "layers.0.mlp.down_proj",
    },
    "vllm": {
        "model.fc": "fc",
        "lm_head": "lm_head",
        "model.layers.61.self_attn.fused_qkv_a_proj": "layers.0.self_attn.q_a_proj",
        "model.layers.61.self_attn.q_b_proj": "layers.0.self_attn.q_b_proj",
        "model.layers.61.self_attn.kv_b_proj": "layers.0.self_attn.kv_b_proj",
        "model.layers.61.self_attn.o_proj": "layers.0.self_attn.o_proj",
        "model.layers.61.mlp.gate_up_proj": "layers.0.mlp.gate_proj",
        "model.layers.61.mlp.down_proj": "layers.0.mlp.down_proj",
    },
}
ENGINE_MODULES["sglang"] = {
    name.replace("layers.61.", "").replace("fused_qkv_a_proj", "fused_qkv_a_proj_with_mqa"): module
    for name, module in ENGINE_MODULES["vllm"].items()
}


@pytest.mark.parametrize("quantized", [MLP, ATTENTION, MLP | ATTENTION | {"fc"}, {"lm_head"}])
@pytest.mark.parametrize("name", ENGINE_MODULES)
def test_exclude_list_matches_the_engines_own_modules(name: str, quantized: set[str]) -> None:
    metadata = quant_metadata(receiver_named(name), NVFP4, stored(quantized), {}, 1)
    for module, canonical in ENGINE_MODULES[name].items():
        hits = [pattern for pattern in metadata.exclude if fnmatch.fnmatchcase(module, pattern)]
        assert bool(hits) == (canonical not in quantized), (module, hits)
    # A bare kv_b_proj would send older TensorRT-LLM to a dequantization that needs scales.
    if name == "trtllm":
        assert not any(fnmatch.fnmatchcase("kv_b_proj", p) for p in metadata.exclude)


@pytest.mark.parametrize("name", RECEIVERS)
def test_every_pattern_is_understood_by_our_own_reader(name: str) -> None:
    tensors = stored(ATTENTION)
    metadata = quant_metadata(receiver_named(name), NVFP4, tensors, {}, 1)
    modules = {n.rpartition(".")[0] for n in tensors if n.endswith(".weight")}
    report = match_excludes(metadata.exclude, sorted(modules))
    assert report.stale == ()
    matched = {module for hits in report.matched.values() for module in hits}
    assert matched == modules - ATTENTION - {"embed_tokens", "norm"}
    section = metadata.quantization_config
    assert section is not None
    assert section["quant_method"] == "modelopt"
    assert section["ignore"] == list(metadata.exclude)
    assert section["config_groups"]["group_0"]["weights"]["num_bits"] == 4
    assert metadata.hf_quant_config is not None
    assert metadata.hf_quant_config["quantization"] == {
        "quant_algo": "NVFP4",
        "kv_cache_quant_algo": None,
        "group_size": 16,
        "exclude_modules": list(metadata.exclude),
    }


def test_half_a_fused_projection_is_refused() -> None:
    tensors = stored({"layers.0.self_attn.q_a_proj"})
    with pytest.raises(ConfigError, match=r"q_a_proj is quantized and .*kv_a_proj.* as one"):
        quant_metadata(receiver_named("vllm"), NVFP4, tensors, {}, 1)


def test_mixed_precision_lists_modules_by_the_receivers_names() -> None:
    quant = QuantConfig(
        method="modelopt",
        algo="MIXED_PRECISION",
        layers={
            "eagle_module.fc": "FP8",
            "eagle_module.layers.0.mlp.up_proj": "NVFP4",
            "model.layers.7.mlp.up_proj": "NVFP4",
        },
    )
    metadata = quant_metadata(receiver_named("trtllm"), quant, stored({"fc", *MLP}), {}, 1)
    assert metadata.hf_quant_config is not None
    assert metadata.hf_quant_config["quantization"]["quantized_layers"] == {
        "model.fc": {"quant_algo": "FP8"},
        "model.midlayer.mlp.up_proj": {"quant_algo": "NVFP4", "group_size": 16},
    }


def test_weight_only_quantization_says_so() -> None:
    tensors = {n: t for n, t in stored(MLP).items() if not n.endswith("input_scale")}
    metadata = quant_metadata(receiver_named("vllm"), NVFP4, tensors, {}, 1)
    assert metadata.quantization_config is not None
    group = metadata.quantization_config["config_groups"]["group_0"]
    assert group["input_activations"] is None


def test_other_tools_keep_their_section_with_new_names() -> None:
    source = {
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "ignore": ["lm_head", "re:eagle_module.*"],
        }
    }
    quant = QuantConfig(method="compressed-tensors", algo="INT4", group_size=128)
    metadata = quant_metadata(receiver_named("vllm"), quant, stored(MLP), source, 1)
    assert metadata.hf_quant_config is None
    assert metadata.quantization_config is not None
    assert metadata.quantization_config["format"] == "pack-quantized"
    ignore = metadata.quantization_config["ignore"]
    assert "lm_head" in ignore
    assert r"re:.*\.self_attn\.kv_b_proj" in ignore
    assert source["quantization_config"]["ignore"] == ["lm_head", "re:eagle_module.*"]


def test_float_drafts_get_no_metadata() -> None:
    metadata = quant_metadata(receiver_named("vllm"), QuantConfig(), stored(set()), {}, 1)
    assert metadata.quantization_config is None
    assert metadata.hf_quant_config is None


def test_later_layers_are_named_as_trtllm_names_them() -> None:
    trtllm = receiver_named("trtllm")
    assert module_name(trtllm, "layers.0.input_layernorm", 2) == "midlayer.0.input_layernorm"
    assert module_name(trtllm, "layers.1.input_layernorm", 2) == "midlayer.1.hidden_norm"
    assert module_pattern(trtllm, "layers.1.mlp.down_proj", 2) == "model.midlayer.1.mlp.down_proj"
    vllm = receiver_named("vllm")
    assert module_name(vllm, "layers.1.input_layernorm", 2) == "layers.1.input_layernorm"


@pytest.mark.parametrize(
    ("name", "overrides", "quant", "words"),
    [
        ("trtllm", {"draft_vocab_size": 32}, QuantConfig(), "d2t beside MLA"),
        ("trtllm", {"norm_before_residual": True}, QuantConfig(), "norm_before_residual"),
        ("trtllm", {}, NVFP4, "does not load in the stock releases"),
        ("vllm", {"norm_before_fc": True}, QuantConfig(), "norm_before_fc"),
        ("sglang", {}, NVFP4, "packed weights as bf16"),
        ("modelopt", {"norm_output": True}, QuantConfig(), "neither fc_norm nor norm_output"),
        ("specforge", {"has_own_lm_head": False}, QuantConfig(), "a head of its own"),
    ],
)
def test_what_a_receiver_cannot_run_is_said(
    name: str, overrides: dict[str, Any], quant: QuantConfig, words: str
) -> None:
    receiver = receiver_named(name)
    assert words in " ".join(limits_of(receiver, draft(**overrides), quant))
    assert words not in " ".join(limits_of(receiver, draft(), QuantConfig()))
