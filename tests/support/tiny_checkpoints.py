# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Tiny checkpoint folders: config.json and random tensors, written without the model code."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from tensorrt_llm_ext.checkpoints.writer import save_checkpoint

MODEL_CONFIGS = Path(__file__).parents[1] / "fixtures" / "model_configs"
Tensors = dict[str, torch.Tensor]

TINY_YARN = {
    "type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
_SHARED: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "vocab_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "rope_scaling": TINY_YARN,
    "max_position_embeddings": 128,
    "hidden_act": "silu",
    "torch_dtype": "float32",
}


def model_config(name: str) -> dict[str, Any]:
    """Reads a real-world config.json of `tests/fixtures/model_configs`."""
    return json.loads((MODEL_CONFIGS / name / "config.json").read_text(encoding="utf-8"))


def target_json(**overrides: Any) -> dict[str, Any]:
    """config.json of a tiny DeepseekV3ForCausalLM with 8 layers; the first is dense."""
    config = {
        **copy.deepcopy(_SHARED),
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "num_hidden_layers": 8,
        "first_k_dense_replace": 1,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
        "moe_intermediate_size": 16,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.5,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    return {**config, **overrides}


def draft_json(**overrides: Any) -> dict[str, Any]:
    """config.json of a tiny MLA Eagle3 draft for `target_json()`, with the default boundaries."""
    config = {
        **copy.deepcopy(_SHARED),
        "architectures": ["Eagle3DeepseekV2ForCausalLM"],
        "model_type": "kimi_k2",
        "num_hidden_layers": 1,
        "draft_vocab_size": _SHARED["vocab_size"],
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 4, 5]},
    }
    return {**config, **overrides}


def wrapped(text_config: dict[str, Any]) -> dict[str, Any]:
    """config.json of the Kimi-K2.5 wrapper around a text config."""
    return {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "model_type": "kimi_k25",
        "text_config": text_config,
        "vision_config": {"vt_num_hidden_layers": 1},
    }


def _attention_shapes(config: Mapping[str, Any], in_features: int) -> dict[str, tuple[int, ...]]:
    heads, rank = config["num_attention_heads"], config["kv_lora_rank"]
    nope, rope, v = (config[k] for k in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    q_rank = config["q_lora_rank"]
    if q_rank is None:
        query = {"q_proj.weight": (heads * (nope + rope), in_features)}
    else:
        query = {
            "q_a_proj.weight": (q_rank, in_features),
            "q_a_layernorm.weight": (q_rank,),
            "q_b_proj.weight": (heads * (nope + rope), q_rank),
        }
    return {
        **query,
        "kv_a_proj_with_mqa.weight": (rank + rope, in_features),
        "kv_a_layernorm.weight": (rank,),
        "kv_b_proj.weight": (heads * (nope + v), rank),
        "o_proj.weight": (config["hidden_size"], heads * v),
    }


def _mlp_shapes(hidden: int, intermediate: int) -> dict[str, tuple[int, ...]]:
    return {
        "gate_proj.weight": (intermediate, hidden),
        "up_proj.weight": (intermediate, hidden),
        "down_proj.weight": (hidden, intermediate),
    }


def _below(prefix: str, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    return {f"{prefix}{name}": shape for name, shape in shapes.items()}


def target_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor of an unwrapped target."""
    hidden, moe = config["hidden_size"], config["moe_intermediate_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
    }
    if not config.get("tie_word_embeddings"):
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    for index in range(config["num_hidden_layers"]):
        layer = f"model.layers.{index}."
        shapes |= {
            f"{layer}{n}.weight": (hidden,) for n in ("input_layernorm", "post_attention_layernorm")
        }
        shapes |= _below(f"{layer}self_attn.", _attention_shapes(config, hidden))
        if index < config["first_k_dense_replace"]:
            shapes |= _below(f"{layer}mlp.", _mlp_shapes(hidden, config["intermediate_size"]))
            continue
        shapes[f"{layer}mlp.gate.weight"] = (config["n_routed_experts"], hidden)
        shapes[f"{layer}mlp.gate.e_score_correction_bias"] = (config["n_routed_experts"],)
        for expert in range(config["n_routed_experts"]):
            shapes |= _below(f"{layer}mlp.experts.{expert}.", _mlp_shapes(hidden, moe))
        shared = moe * config["n_shared_experts"]
        shapes |= _below(f"{layer}mlp.shared_experts.", _mlp_shapes(hidden, shared))
    return shapes


def draft_shapes(
    config: Mapping[str, Any],
    *,
    num_captured: int = 3,
    target_hidden_size: int | None = None,
    embedding: bool = False,
    head: bool = True,
) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor of a draft, by canonical name."""
    hidden = config["hidden_size"]
    captured = num_captured * (target_hidden_size or hidden)
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (hidden, captured), "norm.weight": (hidden,)}
    if config.get("fc_norm"):
        shapes |= {f"fc_norm.{i}.weight": (captured // num_captured,) for i in range(num_captured)}
    if config.get("norm_before_fc"):
        shapes["input_norm.weight"] = (captured,)
    for index in range(config["num_hidden_layers"]):
        layer = f"layers.{index}."
        norms = ["input_layernorm", "post_attention_layernorm"] + ["hidden_norm"] * (index == 0)
        shapes |= {f"{layer}{norm}.weight": (hidden,) for norm in norms}
        width = 2 * hidden if index == 0 else hidden
        shapes |= _below(f"{layer}self_attn.", _attention_shapes(config, width))
        shapes |= _below(f"{layer}mlp.", _mlp_shapes(hidden, config["intermediate_size"]))
    if embedding:
        shapes["embed_tokens.weight"] = (config["vocab_size"], hidden)
    if head:
        draft_vocab = config.get("draft_vocab_size") or config["vocab_size"]
        shapes["lm_head.weight"] = (draft_vocab, hidden)
        if draft_vocab < config["vocab_size"]:
            shapes["d2t"] = (draft_vocab,)
    return shapes


def random_tensors(
    shapes: Mapping[str, tuple[int, ...]], *, seed: int = 0, dtype: torch.dtype = torch.float32
) -> Tensors:
    """Draws every tensor; norms near one; `d2t` leaves out every third target id."""
    generator = torch.Generator().manual_seed(seed)
    tensors: Tensors = {}
    for name, shape in shapes.items():
        values = torch.randn(shape, generator=generator)
        if name == "d2t":
            tensors[name] = torch.arange(shape[0]) // 2
        elif "norm" in name:
            tensors[name] = (1 + 0.1 * values).to(dtype)
        elif name.endswith("e_score_correction_bias"):
            tensors[name] = 0.1 * values
        else:
            tensors[name] = (values * shape[-1] ** -0.5).to(dtype)
    return tensors


def write_target(
    folder: Path,
    config: dict[str, Any] | None = None,
    *,
    seed: int = 0,
    wrapper: bool = False,
    extra: Mapping[str, torch.Tensor] | None = None,
    max_shard_bytes: int | None = None,
) -> Tensors:
    """Writes a tiny target; returns its tensors under the names of `DeepseekV3ForCausalLM`."""
    config = config or target_json()
    tensors = random_tensors(target_shapes(config), seed=seed)
    prefix = "language_model." if wrapper else ""
    stored = {f"{prefix}{name}": tensor for name, tensor in tensors.items()}
    document = wrapped(config) if wrapper else config
    save_checkpoint(folder, document, {**stored, **(extra or {})}, max_shard_bytes=max_shard_bytes)
    return tensors


def write_draft(
    folder: Path,
    config: dict[str, Any] | None = None,
    *,
    seed: int = 1,
    rename: Callable[[str], str] = str,
    change: Mapping[str, torch.Tensor | None] | None = None,
    **shapes: Any,
) -> Tensors:
    """Writes a tiny draft; returns its tensors by canonical name.

    Args:
        folder: Where to.
        config: Its config.json.
        seed: Decides the weights.
        rename: Canonical name to the name in the file.
        change: Tensors that replace or, when None, remove those of the draft (canonical names).
        shapes: Passed to `draft_shapes`.
    """
    config = config or draft_json()
    tensors = random_tensors(draft_shapes(config, **shapes), seed=seed)
    for name, tensor in (change or {}).items():
        tensors.pop(name, None)
        if tensor is not None:
            tensors[name] = tensor
    save_checkpoint(folder, config, {rename(name): tensor for name, tensor in tensors.items()})
    return tensors
