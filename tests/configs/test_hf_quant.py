# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Quantization metadata of every tool, in every place, and where two places contradict."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrt_llm_ext.configs.hf_quant import quant_config_from_hf
from tensorrt_llm_ext.configs.quant import QuantConfig
from tensorrt_llm_ext.errors import ConfigError
from tests.support.tiny_checkpoints import model_config

EXCLUDE = ["fc", "layers.0.self_attn.kv_b_proj", "lm_head"]
FILE: dict[str, Any] = {
    "producer": {"name": "modelopt", "version": "0.47.0"},
    "quantization": {
        "quant_algo": "NVFP4",
        "kv_cache_quant_algo": "FP8",
        "group_size": 16,
        "exclude_modules": EXCLUDE,
    },
}
FLAT: dict[str, Any] = {
    "quant_method": "modelopt",
    "quant_algo": "NVFP4",
    "config_groups": {
        "group_0": {
            "input_activations": {"num_bits": 4, "type": "float", "group_size": 16},
            "weights": {"num_bits": 4, "type": "float", "group_size": 16},
            "targets": ["Linear"],
        }
    },
    "ignore": EXCLUDE,
    "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
    "producer": {"name": "modelopt", "version": "0.47.0"},
}


def read(inline: Any = None, file: Any = None, **config: Any) -> QuantConfig:
    document = config if inline is None else {**config, "quantization_config": inline}
    return quant_config_from_hf(document, file)


def summary(quant: QuantConfig) -> tuple[Any, ...]:
    return quant.method, quant.algo, quant.group_size, quant.kv_cache_algo, quant.exclude


@pytest.mark.parametrize(
    ("inline", "file", "source"),
    [
        (None, FILE, "hf_quant_config.json"),
        (FILE, None, "quantization_config in config.json"),  # the nested spelling
        (FLAT, None, "quantization_config in config.json"),
        (FLAT, FILE, "hf_quant_config.json"),
        (FILE, FILE, "hf_quant_config.json"),
        (None, FILE["quantization"], "hf_quant_config.json"),
    ],
    ids=["file", "nested", "flat", "file+flat", "file+nested", "bare"],
)
def test_modelopt_in_all_its_spellings(inline: Any, file: Any, source: str) -> None:
    quant = read(inline, file)
    assert summary(quant) == ("modelopt", "NVFP4", 16, "FP8", tuple(EXCLUDE))
    assert quant.source == source
    assert quant.is_quantized
    assert quant.describe() == "NVFP4 (modelopt, group 16, KV FP8)"


@pytest.mark.parametrize(
    ("body", "kv"), [({"quant_algo": None}, None), ({"kv_cache_quant_algo": "FP8"}, "FP8")]
)
def test_a_null_algorithm_is_not_quantized(body: dict[str, Any], kv: str | None) -> None:
    for quant in (read(body), read({"quantization": body}), read(None, {"quantization": body})):
        assert not quant.is_quantized
        assert quant.method == "none"
        assert quant.kv_cache_algo == kv


def test_nothing_and_an_empty_file() -> None:
    assert read() == QuantConfig()
    assert read({}) == QuantConfig()
    assert read("NVFP4") == QuantConfig()
    assert read(None, {}).algo == "UNKNOWN"  # the file is there, so somebody quantized


def test_mixed_precision_lists_its_layers() -> None:
    layers = {
        "fc": {"quant_algo": "NVFP4", "group_size": 16},
        "lm_head": {"quant_algo": "FP8"},
        "norm": {"quant_algo": None},
    }
    body = {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    for quant in (read({"quantization": body}), read(None, {"quantization": body})):
        assert quant.algo == "MIXED_PRECISION"
        assert quant.layers == {"fc": "NVFP4", "lm_head": "FP8"}
    assert read({"quantized_layers": layers}).algo == "MIXED_PRECISION"


def test_kimi_int4_release_repeats_itself_in_the_text_config() -> None:
    config = model_config("moonshotai/Kimi-K2.5")
    inner = config["text_config"]["quantization_config"]
    quant = quant_config_from_hf(config)
    assert summary(quant)[:4] == ("compressed-tensors", "INT4", 32, None)
    assert "lm_head" in quant.exclude
    assert quant.source == "text_config.quantization_config in config.json"
    config["quantization_config"] = copy.deepcopy(inner)
    assert quant_config_from_hf(config).source == "quantization_config in config.json"
    inner["config_groups"]["group_0"]["weights"]["group_size"] = 128
    with pytest.raises(ConfigError, match="contradict each other about the group size: 32 against"):
        quant_config_from_hf(config)


def weights(**values: Any) -> dict[str, Any]:
    return {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": values}}}


@pytest.mark.parametrize(
    ("inline", "algo", "group"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "FP8_BLOCK_SCALES", 128),
        ({"quant_method": "fp8"}, "FP8", None),
        ({"quant_method": "FP8", "weight_block_size": None}, "FP8", None),
        (weights(num_bits=8, type="float", strategy="tensor"), "FP8", None),
        (weights(num_bits=8, type="float", strategy="block"), "FP8_BLOCK_SCALES", None),
        (weights(num_bits=4, type="float", group_size=16), "NVFP4", 16),
        (weights(num_bits=8, type="int"), "INT8", None),
        ({"quant_method": "compressed-tensors", "format": "pack-quantized"}, "INT4", None),
        ({"quant_method": "compressed-tensors", "format": "marlin-24"}, "MARLIN-24", None),
        ({"quant_method": "compressed-tensors"}, "COMPRESSED_TENSORS", None),
        (
            {
                "quant_method": "quark",
                "global_quant_config": {"weight": {"dtype": "fp8_e4m3", "qscheme": "per_channel"}},
            },
            "FP8",
            None,
        ),
        (
            {
                "quant_method": "quark",
                "global_quant_config": {"weight": {"dtype": "int4", "group_size": 128}},
            },
            "INT4",
            128,
        ),
        ({"quant_method": "quark"}, "QUARK", None),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "W4A16_AWQ", 128),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, "W8A16_GPTQ", None),
        ({"quant_method": "nvfp4"}, "NVFP4", 16),
        ({"quant_method": "mxfp4"}, "MXFP4", 32),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "BITSANDBYTES", None),
        ({"quant_method": 7, "something": 1}, "UNKNOWN", None),
    ],
    ids=str,
)
def test_other_tools_are_described(inline: dict[str, Any], algo: str, group: int | None) -> None:
    quant = read(inline)
    assert (quant.algo, quant.group_size) == (algo, group)
    assert algo in quant.describe()


@pytest.mark.parametrize(
    "key",
    ["exclude_modules", "ignore", "exclude", "modules_to_not_convert", "ignored_layers"],
)
def test_exclusions_under_every_name(key: str) -> None:
    assert read({"quant_method": "fp8", key: ["lm_head", 3]}).exclude == ("lm_head",)


@pytest.mark.parametrize(
    ("scheme", "kv"),
    [
        ({"num_bits": 8, "type": "float", "dynamic": False}, "FP8"),
        ({"num_bits": 8, "type": "int"}, "INT8"),
        ("NVFP4", "NVFP4"),
        (None, None),
    ],
)
def test_kv_cache_schemes(scheme: Any, kv: str | None) -> None:
    assert read({**FLAT, "kv_cache_scheme": scheme}).kv_cache_algo == kv


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"quant_algo": "FP8"}, "algorithm: NVFP4 against FP8"),
        ({"quant_algo": None}, "algorithm: NVFP4 against none"),
        ({"kv_cache_scheme": "NVFP4"}, "KV cache: FP8 against NVFP4"),
    ],
)
def test_two_files_that_contradict_each_other(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        read({**FLAT, **change}, FILE)
    assert raised.value.check == "V23"


@pytest.mark.parametrize(
    ("inline", "rotation"),
    [
        ({"quant_method": "x", "quarot": True}, "quarot"),
        ({"quant_method": "x", "nested": {"spinquant_config": {"r1": 1}}}, "spinquant_config"),
        ({"quant_method": "x", "rotation": "hadamard"}, "rotation"),
        ({**weights(num_bits=4, type="int"), "transform_config": {"R1": {}}}, "transform_config"),
        ({"quant_method": "x", "algorithm": "W4A8 with QuaRot"}, "W4A8 with QuaRot"),
        ({"quant_method": "x", "rotation": None}, ""),
        ({"quant_method": "x", "rotate": False, "hadamard": "none"}, ""),
        ({"quant_method": "x", "transform_config": {}}, ""),
        # The cache alone: hidden states stay as they are.
        ({**FLAT, "kv_cache_rotation": True}, ""),
        ({**FLAT, "ignore": ["model.rotary_emb", "quarot"]}, ""),
        (FLAT, ""),
    ],
    ids=str,
)
def test_rotations_of_the_hidden_states(inline: dict[str, Any], rotation: str) -> None:
    assert read(inline).rotation == rotation


def test_a_rotation_outside_of_the_quantization_settings() -> None:
    quant = read(quarot_config={"seed": 1})
    assert (quant.rotation, quant.source, quant.is_quantized) == (
        "quarot_config",
        "config.json",
        False,
    )


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-4, 300) | st.text(max_size=5) | st.floats(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    *("quant_method", "quant_algo", "quantization", "config_groups", "weights"),
                    *("group_size", "num_bits", "type", "ignore", "kv_cache_scheme", "bits"),
                    *("quantized_layers", "weight_block_size", "global_quant_config", "rotation"),
                ]
            ),
            inner | st.sampled_from(["modelopt", "quark", "awq", "fp8", "compressed-tensors"]),
            max_size=5,
        )
    ),
    max_leaves=12,
)


@given(VALUES, VALUES, VALUES)
def test_odd_metadata_never_fall_over(inline: Any, file: Any, text: Any) -> None:
    config = {"quantization_config": inline, "text_config": {"quantization_config": text}}
    try:
        quant = quant_config_from_hf(config, file)
    except ConfigError as error:
        assert error.check == "V23"  # noqa: PT017 - other metadata are fine
        return
    assert quant.describe()
