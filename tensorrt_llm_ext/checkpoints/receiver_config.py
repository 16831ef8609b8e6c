# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""config.json of a draft in the keys that a receiver reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tensorrt_llm_ext.checkpoints.receivers import Receiver
from tensorrt_llm_ext.configs.boundaries import EXPLICIT_KEY
from tensorrt_llm_ext.configs.draft import DraftConfig
from tensorrt_llm_ext.configs.hf_keys import HARMLESS_KEYS
from tensorrt_llm_ext.configs.mla import RopeConfig

IDS_KEY: Final = "eagle_aux_hidden_state_layer_ids"
EAGLE_KEY: Final = "eagle_config"
MODEL_TYPE: Final = "kimi_k2"
# Inherited from a target's config; a draft's layers are dense, and an engine that believes these
# keys would build experts.
_EXPERT_WORDS: Final = (
    "n_routed_experts n_shared_experts num_experts_per_tok moe_intermediate_size moe_layer_freq "
    "first_k_dense_replace n_group topk_group topk_method scoring_func norm_topk_prob "
    "routed_scaling_factor num_nextn_predict_layers num_mtp_layers num_local_experts"
)
# Other spellings of what is written, and settings of producers that say what the layout says.
_REPLACED_WORDS: Final = (
    "use_aux_norm return_hidden_post_norm layer_ids aux_hidden_states_layer_ids text_config "
    "transformer_layer_config speculators_config speculators_model_type speculators_version "
    "use_aux_hidden_state use_input_layernorm_in_first_layer use_last_layernorm "
    "use_mtp_layernorm next_layer_regular parallel_draft_step parallel_draft_heads_num_layers "
    "has_lm_head rope_interleave partial_rotary_factor quantization_config auto_map "
    "norm_before_residual norm_before_fc fc_norm norm_output eagle_aux_hidden_state_layer_ids"
)
_DROPPED: Final = frozenset(_EXPERT_WORDS.split()) | frozenset(_REPLACED_WORDS.split())
# Bookkeeping that some program may want.
_KEPT_BOOKKEEPING: Final = (
    "attention_dropout",
    "initializer_range",
    "pad_token_id",
    "use_cache",
)


def receiver_config(
    receiver: Receiver, draft: DraftConfig, source: Mapping[str, Any], *, dtype: str
) -> dict[str, Any]:
    """Returns config.json for a receiver, but for its quantization metadata.

    Every setting that the core knows is written from `draft`, in one spelling; keys of `source`
    that nobody here knows are carried over, since they may mean something to somebody.

    Args:
        receiver: Who is to read it.
        draft: The draft as it is to be written.
        source: The draft's present config in flat keys (`DraftCheckpoint.config`).
        dtype: Dtype of its float weights, for instance "bfloat16".

    Raises:
        ConfigError: If the receiver has no spelling for the captured layers.
    """
    config = {**_sizes(receiver, draft), **_rope(draft.mla.rope)}
    config |= {"torch_dtype": dtype, "dtype": dtype, EXPLICIT_KEY: list(draft.boundaries)}
    ids = list(receiver.layer_ids(draft.boundaries))
    if receiver.top_level_ids:
        config[IDS_KEY] = ids
    flags = {
        name: True
        for name in ("fc_norm", "norm_output", "norm_before_fc", "norm_before_residual")
        if getattr(draft, name)
    }
    eagle: dict[str, Any] = {IDS_KEY: ids, **receiver.eagle_config, **flags}
    if draft.norm_output:
        eagle |= receiver.norm_output_config
    config |= {EAGLE_KEY: eagle, **flags}
    for key, value in source.items():
        noise = key in HARMLESS_KEYS and key not in _KEPT_BOOKKEEPING
        if key not in config and key not in _DROPPED and not noise and value is not None:
            config[key] = value
    if not (draft.has_own_lm_head or receiver.keeps_draft_vocab_size):
        del config["draft_vocab_size"]
    return config


def _sizes(receiver: Receiver, draft: DraftConfig) -> dict[str, Any]:
    mla = draft.mla
    return {
        "architectures": [receiver.architecture],
        "model_type": MODEL_TYPE,
        "vocab_size": draft.vocab_size,
        "draft_vocab_size": draft.draft_vocab_size,
        "hidden_size": draft.hidden_size,
        "target_hidden_size": draft.target_hidden_size,
        "num_aux_hidden_states": draft.num_captured,
        "intermediate_size": draft.intermediate_size,
        "num_hidden_layers": draft.num_layers,
        "num_attention_heads": mla.num_heads,
        "num_key_value_heads": mla.num_heads,
        # Null says something here: the default of the config class is a number.
        "q_lora_rank": mla.q_lora_rank,
        "kv_lora_rank": mla.kv_lora_rank,
        "qk_nope_head_dim": mla.qk_nope_head_dim,
        "qk_rope_head_dim": mla.qk_rope_head_dim,
        "v_head_dim": mla.v_head_dim,
        "hidden_act": "silu",
        "attention_bias": False,
        "rms_norm_eps": draft.rms_norm_eps,
        "max_position_embeddings": mla.rope.max_position_embeddings,
        "tie_word_embeddings": False,
    }


def _rope(rope: RopeConfig) -> dict[str, Any]:
    """Rotary settings in the spellings of transformers 4 and 5, which must agree.

    Without scaling there is no `rope_scaling`: some engines take any that is there for YaRN.
    """
    if rope.yarn is None:
        return {"rope_theta": rope.theta}
    yarn = rope.yarn
    numbers: dict[str, Any] = {
        "factor": yarn.factor,
        "original_max_position_embeddings": yarn.original_max_position_embeddings,
        "beta_fast": yarn.beta_fast,
        "beta_slow": yarn.beta_slow,
    }
    numbers |= {
        name: value
        for name in ("mscale", "mscale_all_dim")
        if (value := getattr(yarn, name)) is not None
    }
    return {
        "rope_theta": rope.theta,
        "rope_scaling": {"type": "yarn", "rope_type": "yarn", **numbers},
        "rope_parameters": {"rope_type": "yarn", "rope_theta": rope.theta, **numbers},
    }


def changed_keys(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Compares two config.json files.

    Returns:
        `added` and `changed` (a pair of before and after) by key, and the `removed` keys; keys of
        `eagle_config` as `eagle_config.key`.
    """
    old, new = _flat(before), _flat(after)
    return {
        "added": {key: value for key, value in new.items() if key not in old},
        "changed": {
            key: (old[key], value) for key, value in new.items() if key in old and old[key] != value
        },
        "removed": tuple(sorted(key for key in old if key not in new)),
    }


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    flat = {key: value for key, value in config.items() if key != EAGLE_KEY}
    nested = config.get(EAGLE_KEY)
    if isinstance(nested, Mapping):
        flat |= {f"{EAGLE_KEY}.{key}": value for key, value in nested.items()}
    return flat
