# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Reads a DeepSeek-V3 family target (DeepSeek-V3, Kimi-K2.x) from its config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tensorrt_llm_ext.configs.hf_keys import HFKeys
from tensorrt_llm_ext.configs.hf_rope import rope_config_from_hf
from tensorrt_llm_ext.configs.mla import MLAConfig, RopeConfig
from tensorrt_llm_ext.configs.target import MoEConfig, TargetConfig
from tensorrt_llm_ext.errors import ConfigError, UnsupportedError

# Architectures whose absent routing keys mean sigmoid scores and noaux_tc selection.
_V3_ARCHITECTURES: Final = ("DeepseekV3ForCausalLM",)
_V2_ARCHITECTURES: Final = ("DeepseekV2ForCausalLM",)
_WRAPPERS: Final = ("KimiK25ForConditionalGeneration",)
_BY_MODEL_TYPE: Final = {
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "kimi_k2": "DeepseekV3ForCausalLM",
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "kimi_k25": "KimiK25ForConditionalGeneration",
}

# The modelling code of DeepSeek and Moonshot builds the norms of the q and kv latents without
# passing rms_norm_eps, so targets have this default there whatever the config says.
LATENT_NORM_EPS: Final = 1e-6

MAX_LAYERS: Final = 10_000

WRAPPER_PREFIX: Final = "language_model."
VISION_PREFIXES: Final = ("vision_tower.", "mm_projector.", "multi_modal_projector.")

# What a wrapper says about images; its text part does not depend on it.
_WRAPPER_HARMLESS: Final = (
    "vision_config",
    "projection_hidden_size",
    "projection_layer_norm_eps",
    "media_placeholder_token_id",
    "use_unified_vision_chunk",
    "video_placeholder",
    "image_token_id",
    "image_token_index",
    "video_token_id",
    "tie_word_embeddings",
    "bos_token_id",
    "eos_token_id",
    "vocab_size",
    "hidden_size",
    "quantization_config",
)
# Present value, other than these: another function than the one we compute.
_ONLY: Final[Mapping[str, tuple[tuple[Any, ...], str]]] = {
    "hidden_act": (("silu", "swish"), "the MLPs are SwiGLU"),
    "attention_bias": ((False,), "MLA projections have no bias here"),
    "mlp_bias": ((False,), "MLPs have no bias here"),
    "mla_use_nope": ((False,), "MLA without rotation (Kimi-K3) is another model"),
    "mla_use_output_gate": ((False,), "gated MLA (Kimi-K3) is another model"),
    "index_topk": ((), "sparse attention (DeepSeek-V3.2) is another model"),
    "index_n_heads": ((), "sparse attention (DeepSeek-V3.2) is another model"),
    "index_head_dim": ((), "sparse attention (DeepSeek-V3.2) is another model"),
    "sliding_window": ((), "every layer attends to the whole sequence"),
    "layer_types": ((), "every layer is an MLA layer of one kind"),
    "mlp_layer_types": ((), "first_k_dense_replace and moe_layer_freq say which layers are MoE"),
}


def target_config_from_hf(
    config: Mapping[str, Any], *, generation_config: Mapping[str, Any] | None = None
) -> TargetConfig:
    """Reads a target's config.json.

    Args:
        config: The parsed config.json, of transformers 4 or 5, wrapped or not.
        generation_config: The parsed generation_config.json, whose end tokens are added to the
            config's (Kimi-K2.x ends chat turns with a token that only this file names).

    Returns:
        The target, whatever wrapper or transformers version wrote it. `skipped_prefixes` holds the
        file names of vision and multi-token-prediction tensors.

    Raises:
        ConfigError: If a key is missing, of the wrong type, or contradicts another.
        UnsupportedError: If the model computes something that this package does not; quantized
            checkpoints are refused where their tensors are read.
    """
    top = HFKeys(config, "config.json")
    architecture = _architecture(top)
    if architecture not in _WRAPPERS:
        return _text_config(top, architecture, "", (), generation_config)
    text = top.section("text_config")
    if text is None:
        raise ConfigError(f"config.json: {architecture} needs 'text_config', which is absent.")
    top.warn_unknown(_WRAPPER_HARMLESS)
    return _text_config(text, architecture, WRAPPER_PREFIX, VISION_PREFIXES, generation_config)


def _architecture(keys: HFKeys) -> str:
    names = keys.raw("architectures") or []
    model_type = keys.raw("model_type")
    name = names[0] if isinstance(names, (list, tuple)) and names else None
    if name is None:
        name = _BY_MODEL_TYPE.get(model_type) if isinstance(model_type, str) else None
    known = (*_V3_ARCHITECTURES, *_V2_ARCHITECTURES, *_WRAPPERS)
    if name not in known:
        raise UnsupportedError(
            f"{keys.source}: architecture {name!r} (model_type {model_type!r}) is not a target of "
            f"this package. Known: {', '.join(known)}."
        )
    return str(name)


def _text_config(
    keys: HFKeys,
    architecture: str,
    prefix: str,
    skipped: tuple[str, ...],
    generation_config: Mapping[str, Any] | None,
) -> TargetConfig:
    inner = _architecture(keys) if prefix else architecture
    for key, (allowed, reason) in _ONLY.items():
        keys.require_value(key, allowed, reason)
    num_layers = keys.integer("num_hidden_layers", minimum=1, maximum=MAX_LAYERS)
    rope = rope_config_from_hf(keys)
    moe = _moe(keys, implied_routing=inner in _V3_ARCHITECTURES)
    num_mtp = _num_mtp_layers(keys)
    mtp_prefixes = tuple(f"{prefix}model.layers.{num_layers + i}." for i in range(num_mtp))
    result = TargetConfig(
        architecture=architecture,
        vocab_size=keys.integer("vocab_size", minimum=1),
        hidden_size=keys.integer("hidden_size", minimum=1),
        num_layers=num_layers,
        intermediate_size=keys.integer("intermediate_size", minimum=1),
        rms_norm_eps=keys.positive_number("rms_norm_eps"),
        mla=mla_config_from_hf(keys, rope, rms_norm_eps=LATENT_NORM_EPS),
        moe=moe,
        moe_layers=_moe_layers(keys, num_layers) if moe is not None else frozenset(),
        tie_word_embeddings=keys.boolean("tie_word_embeddings", False),
        max_position_embeddings=rope.max_position_embeddings,
        bos_token_id=keys.optional_integer("bos_token_id"),
        eos_token_ids=_eos_token_ids(keys, generation_config),
        weight_prefix=prefix,
        skipped_prefixes=(*skipped, *mtp_prefixes),
    )
    keys.warn_unknown(("quantization_config",))
    return result


def mla_config_from_hf(keys: HFKeys, rope: RopeConfig, *, rms_norm_eps: float) -> MLAConfig:
    """Reads the shapes of an MLA layer; `q_lora_rank` null or absent means one `q_proj`.

    Args:
        keys: The model's mapping.
        rope: Its rotary settings.
        rms_norm_eps: Epsilon of the norms of the q and kv latents.
    """
    num_heads = keys.integer("num_attention_heads", minimum=1)
    num_kv_heads = keys.integer("num_key_value_heads", num_heads, minimum=1)
    if num_kv_heads != num_heads:
        raise ConfigError(
            f"{keys.source}: num_key_value_heads ({num_kv_heads}) must equal num_attention_heads "
            f"({num_heads}) in an MLA model, whose heads share one latent row."
        )
    return MLAConfig(
        num_heads=num_heads,
        q_lora_rank=keys.optional_integer("q_lora_rank", minimum=1),
        kv_lora_rank=keys.integer("kv_lora_rank", minimum=1),
        qk_nope_head_dim=keys.integer("qk_nope_head_dim", minimum=1),
        qk_rope_head_dim=keys.integer("qk_rope_head_dim", minimum=2),
        v_head_dim=keys.integer("v_head_dim", minimum=1),
        rms_norm_eps=rms_norm_eps,
        rope=rope,
    )


def _moe(keys: HFKeys, *, implied_routing: bool) -> MoEConfig | None:
    num_experts = keys.integer("n_routed_experts", keys.integer("num_local_experts", 0))
    if num_experts == 0:
        return None
    for key, wanted in (("scoring_func", "sigmoid"), ("topk_method", "noaux_tc")):
        if not keys.has(key) and not implied_routing:
            raise UnsupportedError(
                f"{keys.source} lacks {key!r}, which in this architecture does not mean "
                f"{wanted!r}, the only one supported. Add it if the model was trained so."
            )
        keys.require_value(key, (wanted,), "experts are chosen by sigmoid scores with a bias")
    moe = MoEConfig(
        num_experts=num_experts,
        num_experts_per_tok=keys.integer("num_experts_per_tok", minimum=1),
        num_shared_experts=keys.integer("n_shared_experts", 0),
        intermediate_size=keys.integer("moe_intermediate_size", minimum=1),
        num_groups=keys.integer("n_group", 1, minimum=1),
        topk_group=keys.integer("topk_group", 1, minimum=1),
        norm_topk_prob=keys.boolean("norm_topk_prob", True),
        routed_scaling_factor=keys.number("routed_scaling_factor", 1.0),
    )
    _check_groups(keys.source, moe)
    return moe


def _check_groups(source: str, moe: MoEConfig) -> None:
    if moe.num_experts % moe.num_groups or moe.topk_group > moe.num_groups:
        raise ConfigError(
            f"{source}: n_routed_experts ({moe.num_experts}) must split into n_group "
            f"({moe.num_groups}) equal groups, of which topk_group ({moe.topk_group}) are kept."
        )
    reachable = moe.num_experts // moe.num_groups * moe.topk_group
    if moe.num_experts_per_tok > reachable:
        raise ConfigError(
            f"{source}: num_experts_per_tok ({moe.num_experts_per_tok}) exceeds the {reachable} "
            f"experts of the {moe.topk_group} kept groups."
        )
    if moe.num_groups > 1 and moe.num_experts // moe.num_groups < 2:
        raise ConfigError(
            f"{source}: n_group ({moe.num_groups}) leaves fewer than 2 experts per group, but a "
            "group is ranked by its two best experts."
        )


def _moe_layers(keys: HFKeys, num_layers: int) -> frozenset[int]:
    first = keys.integer("first_k_dense_replace", 0)
    every = keys.integer("moe_layer_freq", 1, minimum=1)
    return frozenset(i for i in range(first, num_layers) if i % every == 0)


def _num_mtp_layers(keys: HFKeys) -> int:
    """Number of multi-token-prediction layers; 0 and absent both mean none."""
    counts = {
        key: keys.integer(key, maximum=MAX_LAYERS)
        for key in ("num_nextn_predict_layers", "num_mtp_layers")
        if keys.has(key)
    }
    if len(set(counts.values())) > 1:
        listing = ", ".join(f"{key}={value}" for key, value in counts.items())
        raise ConfigError(f"{keys.source}: {listing} contradict each other. Keep one of them.")
    return next(iter(counts.values()), 0)


def _eos_token_ids(keys: HFKeys, generation_config: Mapping[str, Any] | None) -> tuple[int, ...]:
    ids = list(keys.integers("eos_token_id") or ())
    if generation_config is not None:
        generation = HFKeys(generation_config, "generation_config.json")
        ids = [*(generation.integers("eos_token_id") or ()), *ids]
    return tuple(dict.fromkeys(ids))
