# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""A Kimi-K2 sized target and draft, from numbers and not from files."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tensorrt_llm_ext.configs.draft import DraftConfig
from tensorrt_llm_ext.configs.mla import MLAConfig, RopeConfig, YarnConfig
from tensorrt_llm_ext.configs.quant import QuantConfig
from tensorrt_llm_ext.configs.target import MoEConfig, TargetConfig
from tensorrt_llm_ext.planning.serve_config import ServePair

DEEPSEEK, KIMI = "DeepseekV3ForCausalLM", "KimiK25ForConditionalGeneration"
NVFP4 = QuantConfig(method="modelopt", algo="NVFP4", group_size=16)
FP8_KV = QuantConfig(method="modelopt", algo="NVFP4", group_size=16, kv_cache_algo="FP8")


def mla(**changes: Any) -> MLAConfig:
    """The MLA of Kimi-K2."""
    yarn = YarnConfig(factor=64.0, original_max_position_embeddings=4096)
    values: dict[str, Any] = {
        "num_heads": 64,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "rms_norm_eps": 1e-5,
        "rope": RopeConfig(theta=50000.0, max_position_embeddings=262144, yarn=yarn),
    }
    return MLAConfig(**{**values, **changes})


def target(**changes: Any) -> TargetConfig:
    """Kimi-K2 as text (DeepseekV3ForCausalLM), 61 layers."""
    values: dict[str, Any] = {
        "architecture": DEEPSEEK,
        "vocab_size": 163840,
        "hidden_size": 7168,
        "num_layers": 61,
        "intermediate_size": 18432,
        "rms_norm_eps": 1e-5,
        "mla": mla(),
        "moe": MoEConfig(
            num_experts=384,
            num_experts_per_tok=8,
            num_shared_experts=1,
            intermediate_size=2048,
            num_groups=1,
            topk_group=1,
            norm_topk_prob=True,
            routed_scaling_factor=2.827,
        ),
        "moe_layers": frozenset(range(1, 61)),
        "tie_word_embeddings": False,
        "max_position_embeddings": 262144,
        "bos_token_id": 163584,
        "eos_token_ids": (163585,),
    }
    return TargetConfig(**{**values, **changes})


def draft(**changes: Any) -> DraftConfig:
    """The MLA draft of Kimi-K2.5: one dense layer, full vocabulary, default boundaries."""
    values: dict[str, Any] = {
        "hidden_size": 7168,
        "target_hidden_size": 7168,
        "num_layers": 1,
        "intermediate_size": 18432,
        "vocab_size": 163840,
        "draft_vocab_size": 163840,
        "rms_norm_eps": 1e-5,
        "mla": mla(),
        "boundaries": (2, 30, 58),
    }
    return DraftConfig(**{**values, **changes})


def pair(**changes: Any) -> ServePair:
    """Both, with plain names."""
    values: dict[str, Any] = {
        "target": target(),
        "draft": draft(),
        "target_ref": "models/target",
        "draft_ref": "models/draft",
    }
    return ServePair(**{**values, **changes})


def without_yarn(config: MLAConfig) -> MLAConfig:
    """The same attention without scaled rope."""
    return replace(config, rope=replace(config.rope, yarn=None))
