# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Targets read from real-world and tiny config.json files."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest

from tensorrt_llm_ext.configs.hf_target import LATENT_NORM_EPS, target_config_from_hf
from tensorrt_llm_ext.configs.mla import MLAConfig, RopeConfig, YarnConfig
from tensorrt_llm_ext.configs.target import MoEConfig, TargetConfig
from tensorrt_llm_ext.errors import ConfigError, UnsupportedError
from tests.support.tiny_checkpoints import model_config, target_json, wrapped

KIMI_MLA = MLAConfig(
    num_heads=64,
    q_lora_rank=1536,
    kv_lora_rank=512,
    qk_nope_head_dim=128,
    qk_rope_head_dim=64,
    v_head_dim=128,
    rms_norm_eps=1e-6,
    rope=RopeConfig(
        theta=50000.0,
        max_position_embeddings=262144,
        yarn=YarnConfig(
            factor=64.0, original_max_position_embeddings=4096, mscale=1.0, mscale_all_dim=1.0
        ),
    ),
)
KIMI = TargetConfig(
    architecture="KimiK25ForConditionalGeneration",
    vocab_size=163840,
    hidden_size=7168,
    num_layers=61,
    intermediate_size=18432,
    rms_norm_eps=1e-5,
    mla=KIMI_MLA,
    moe=MoEConfig(
        num_experts=384,
        num_experts_per_tok=8,
        num_shared_experts=1,
        intermediate_size=2048,
        num_groups=1,
        topk_group=1,
        norm_topk_prob=True,
        routed_scaling_factor=2.827,
    ),
    moe_layers=frozenset(range(1, 61)),
    tie_word_embeddings=False,
    max_position_embeddings=262144,
    bos_token_id=163584,
    eos_token_ids=(163585,),
    weight_prefix="language_model.",
    skipped_prefixes=("vision_tower.", "mm_projector.", "multi_modal_projector."),
)


def test_kimi_k25() -> None:
    config = target_config_from_hf(model_config("moonshotai/Kimi-K2.5"))
    assert config == KIMI
    assert config.mla.latent_size == 576
    assert config.mla.softmax_scale == pytest.approx(0.14468, abs=1e-5)  # facts page, 1.6


def test_deepseek_v3() -> None:
    config = target_config_from_hf(model_config("deepseek-ai/DeepSeek-V3"))
    assert config.architecture == "DeepseekV3ForCausalLM"
    assert (config.num_layers, config.mla.num_heads, config.vocab_size) == (61, 128, 129280)
    assert config.moe is not None
    assert (config.moe.num_groups, config.moe.topk_group) == (8, 4)
    assert config.moe_layers == frozenset(range(3, 61))
    assert config.mla.rope.theta == 10000.0
    # Its multi-token-prediction layer is known, and left out by name.
    assert config.skipped_prefixes == ("model.layers.61.",)


@pytest.mark.parametrize("name", ["moonshotai/Kimi-K2.5", "deepseek-ai/DeepSeek-V3"])
def test_real_configs_leave_nothing_unread(name: str, caplog: pytest.LogCaptureFixture) -> None:
    target_config_from_hf(model_config(name))
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING] == []


def transformers_5(config: dict[str, Any]) -> dict[str, Any]:
    """The same config as transformers 5 writes it: no routing keys, one rope mapping, `dtype`."""
    new = copy.deepcopy(config)
    rope = {**new.pop("rope_scaling"), "rope_theta": new.pop("rope_theta")}
    rope["rope_type"] = rope.pop("type")
    new["rope_parameters"] = rope
    new["dtype"] = new.pop("torch_dtype")
    for key in ("scoring_func", "topk_method", "moe_layer_freq"):
        new.pop(key, None)
    return {**new, "rope_interleave": True, "head_dim": 8, "qk_head_dim": 16}


def test_both_transformers_spellings_agree() -> None:
    assert target_config_from_hf(transformers_5(target_json())) == target_config_from_hf(
        target_json()
    )


@pytest.mark.parametrize(
    "identity",
    [
        {"model_type": "kimi_k2"},
        {"model_type": "deepseek_v3", "architectures": None},
        {"model_type": "kimi_k2", "architectures": None},
        {"model_type": "deepseek_v2", "architectures": ["DeepseekV2ForCausalLM"]},
    ],
    ids=str,
)
def test_other_names_of_the_same_shape(identity: dict[str, Any]) -> None:
    config = target_config_from_hf(target_json(**identity))
    reference = target_config_from_hf(target_json())
    assert config.mla == reference.mla
    assert config.moe == reference.moe


def test_wrapper_and_text_agree() -> None:
    inner = target_config_from_hf(target_json(num_nextn_predict_layers=2))
    outer = target_config_from_hf(wrapped(target_json(num_nextn_predict_layers=2)))
    assert outer.weight_prefix == "language_model."
    assert outer.mla == inner.mla
    assert inner.skipped_prefixes == ("model.layers.8.", "model.layers.9.")
    assert outer.skipped_prefixes[-2:] == (
        "language_model.model.layers.8.",
        "language_model.model.layers.9.",
    )


def test_latent_norms_keep_the_epsilon_of_the_modelling_code() -> None:
    config = target_config_from_hf(target_json(rms_norm_eps=1e-3))
    assert config.rms_norm_eps == 1e-3
    assert config.mla.rms_norm_eps == LATENT_NORM_EPS == 1e-6


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"n_routed_experts": None}, frozenset()),
        ({"n_routed_experts": 0}, frozenset()),
        ({"first_k_dense_replace": 0}, frozenset(range(8))),
        ({"first_k_dense_replace": 3, "moe_layer_freq": 2}, frozenset({4, 6})),
    ],
    ids=str,
)
def test_moe_layers(changes: dict[str, Any], expected: frozenset[int]) -> None:
    config = target_config_from_hf(target_json(**changes))
    assert config.moe_layers == expected
    assert (config.moe is None) == (not expected)


def test_q_lora_rank_may_be_null() -> None:
    assert target_config_from_hf(target_json(q_lora_rank=None)).mla.q_lora_rank is None


@pytest.mark.parametrize(
    ("eos", "generation", "expected"),
    [
        (1, None, (1,)),
        ([1, 2], None, (1, 2)),
        (None, None, ()),
        (163585, {"eos_token_id": 163586}, (163586, 163585)),
        (5, {"eos_token_id": [5, 7]}, (5, 7)),
        (5, {}, (5,)),
    ],
)
def test_end_tokens(eos: Any, generation: dict[str, Any] | None, expected: tuple[int, ...]) -> None:
    config = target_config_from_hf(target_json(eos_token_id=eos), generation_config=generation)
    assert config.eos_token_ids == expected


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, UnsupportedError, "'LlamaForCausalLM'.*Known:"),
        ({"architectures": [], "model_type": "llama"}, UnsupportedError, "model_type 'llama'"),
        ({"scoring_func": "softmax"}, UnsupportedError, "scoring_func='softmax'"),
        ({"topk_method": "group_limited_greedy"}, UnsupportedError, "group_limited_greedy"),
        (
            {"architectures": ["DeepseekV2ForCausalLM"], "scoring_func": None},
            UnsupportedError,
            "lacks 'scoring_func'",
        ),
        ({"attention_bias": True}, UnsupportedError, "attention_bias=True"),
        ({"hidden_act": "gelu"}, UnsupportedError, "hidden_act='gelu'"),
        ({"index_topk": 2048}, UnsupportedError, "DeepSeek-V3.2"),
        ({"mla_use_nope": True}, UnsupportedError, "Kimi-K3"),
        ({"kv_lora_rank": None}, ConfigError, "lacks 'kv_lora_rank'"),
        ({"hidden_size": "32"}, ConfigError, "'hidden_size' must be an integer"),
        ({"num_key_value_heads": 1}, ConfigError, r"num_key_value_heads \(1\) must equal"),
        ({"n_group": 3}, ConfigError, r"equal groups"),
        ({"n_group": 2, "topk_group": 3}, ConfigError, "topk_group"),
        ({"n_group": 4, "topk_group": 2}, ConfigError, "2 experts per group"),
        ({"num_experts_per_tok": 5}, ConfigError, r"num_experts_per_tok \(5\) exceeds the 4"),
        ({"qk_rope_head_dim": 7}, ConfigError, "qk_rope_head_dim must be even"),
        ({"rms_norm_eps": 0}, ConfigError, "'rms_norm_eps' must be a number above 0"),
        ({"tie_word_embeddings": "no"}, ConfigError, "'tie_word_embeddings' must be true or false"),
        (
            {"num_nextn_predict_layers": 1, "num_mtp_layers": 2},
            ConfigError,
            "num_nextn_predict_layers=1, num_mtp_layers=2 contradict",
        ),
    ],
)
def test_refusals(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        target_config_from_hf(target_json(**changes))
    if "architectures" not in changes:
        with pytest.raises(error, match=message):
            target_config_from_hf(wrapped(target_json(**changes)))


def test_wrapper_without_text() -> None:
    with pytest.raises(ConfigError, match="needs 'text_config'"):
        target_config_from_hf({"architectures": ["KimiK25ForConditionalGeneration"]})


def test_unknown_keys_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    target_config_from_hf(target_json(residual_multiplier=0.5))
    assert "residual_multiplier" in caplog.text
