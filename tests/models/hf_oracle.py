# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""transformers' DeepseekV3 with random weights, and our configuration of the same model.

Works with the spellings of transformers 4 and 5.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

from tensorrt_llm_ext.configs.mla import MLAConfig, RopeConfig, YarnConfig
from tensorrt_llm_ext.configs.target import MoEConfig, TargetConfig

THETA = 10000.0
MAX_POSITIONS = 256
# transformers builds the norms inside attention with its default eps, whatever the config says.
MLA_NORM_EPS = 1e-6


@dataclass
class HFCase:
    """One random model: our configuration, the oracle and its weights under canonical names."""

    config: TargetConfig
    model: DeepseekV3ForCausalLM
    weights: dict[str, torch.Tensor]


def hf_case(
    seed: int,
    *,
    grouped: bool,
    q_lora_rank: int | None,
    yarn: YarnConfig | None,
    first_k_dense_replace: int = 1,
    norm_topk_prob: bool = True,
    tie_word_embeddings: bool = False,
) -> HFCase:
    """Draws the sizes that are not given."""
    rng = random.Random(seed)
    num_layers = rng.randint(2, 3)
    config = TargetConfig(
        architecture="DeepseekV3ForCausalLM",
        vocab_size=50,
        hidden_size=rng.choice((24, 32)),
        num_layers=num_layers,
        intermediate_size=rng.choice((40, 56)),
        rms_norm_eps=rng.choice((1e-5, 1e-6)),
        mla=MLAConfig(
            num_heads=rng.choice((2, 4)),
            q_lora_rank=q_lora_rank,
            kv_lora_rank=rng.choice((12, 16)),
            qk_nope_head_dim=rng.choice((8, 10)),
            qk_rope_head_dim=rng.choice((4, 8)),
            v_head_dim=rng.choice((6, 8)),
            rms_norm_eps=MLA_NORM_EPS,
            rope=RopeConfig(theta=THETA, max_position_embeddings=MAX_POSITIONS, yarn=yarn),
        ),
        moe=MoEConfig(
            num_experts=16 if grouped else rng.choice((5, 8)),
            num_experts_per_tok=rng.choice((2, 3)),
            num_shared_experts=rng.choice((1, 2)),
            intermediate_size=rng.choice((8, 12)),
            num_groups=8 if grouped else 1,
            topk_group=4 if grouped else 1,
            norm_topk_prob=norm_topk_prob,
            routed_scaling_factor=rng.choice((1.0, 2.5)),
        ),
        moe_layers=frozenset(range(first_k_dense_replace, num_layers)),
        tie_word_embeddings=tie_word_embeddings,
        max_position_embeddings=MAX_POSITIONS,
        bos_token_id=0,
        eos_token_ids=(1,),
    )
    model = DeepseekV3ForCausalLM(_hf_config(config, first_k_dense_replace)).eval()
    _randomize(model, seed)
    return HFCase(config, model, _canonical(model))


def _hf_config(config: TargetConfig, first_k_dense_replace: int) -> DeepseekV3Config:
    mla, moe = config.mla, config.moe
    assert moe is not None
    hf = DeepseekV3Config(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_layers,
        intermediate_size=config.intermediate_size,
        rms_norm_eps=config.rms_norm_eps,
        num_attention_heads=mla.num_heads,
        num_key_value_heads=mla.num_heads,
        q_lora_rank=mla.q_lora_rank,
        kv_lora_rank=mla.kv_lora_rank,
        qk_nope_head_dim=mla.qk_nope_head_dim,
        qk_rope_head_dim=mla.qk_rope_head_dim,
        v_head_dim=mla.v_head_dim,
        n_routed_experts=moe.num_experts,
        num_experts_per_tok=moe.num_experts_per_tok,
        n_shared_experts=moe.num_shared_experts,
        moe_intermediate_size=moe.intermediate_size,
        n_group=moe.num_groups,
        topk_group=moe.topk_group,
        norm_topk_prob=moe.norm_topk_prob,
        routed_scaling_factor=moe.routed_scaling_factor,
        first_k_dense_replace=first_k_dense_replace,
        tie_word_embeddings=config.tie_word_embeddings,
        max_position_embeddings=config.max_position_embeddings,
        **_rope_fields(mla),
    )
    hf._attn_implementation = "eager"
    return hf


def _rope_fields(mla: MLAConfig) -> dict[str, object]:
    yarn = mla.rope.yarn
    rope: dict[str, object] = {"rope_type": "default"}
    if yarn is not None:
        rope = {
            "rope_type": "yarn",
            "factor": yarn.factor,
            "original_max_position_embeddings": yarn.original_max_position_embeddings,
            "beta_fast": yarn.beta_fast,
            "beta_slow": yarn.beta_slow,
        }
        for key in ("mscale", "mscale_all_dim"):
            if getattr(yarn, key) is not None:
                rope[key] = getattr(yarn, key)
        if (yarn.mscale is None) != (yarn.mscale_all_dim is None):
            # With one of the keys transformers ignores both; DeepSeek's own code, and ours, uses
            # its default for the absent one. Its explicit factor takes our value.
            rope["attention_factor"] = mla.rope_magnitude
    if "rope_parameters" in DeepseekV3Config().to_dict():  # transformers 5
        return {"rope_parameters": {**rope, "rope_theta": mla.rope.theta}}
    return {"rope_theta": mla.rope.theta, "rope_scaling": None if yarn is None else rope}


def _randomize(model: DeepseekV3ForCausalLM, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            values = torch.randn(tensor.shape, generator=generator)
            if "norm" in name:
                values = 1.0 + 0.3 * values
            elif name.endswith("e_score_correction_bias"):
                values = 0.1 * values
            elif "embed_tokens" not in name and "lm_head" not in name:
                values = values * tensor.shape[-1] ** -0.5
            tensor.copy_(values)


def _canonical(model: DeepseekV3ForCausalLM) -> dict[str, torch.Tensor]:
    """Names as in a checkpoint on disk: one tensor per expert and projection."""
    weights = {}
    for name, tensor in model.state_dict().items():
        stem, _, last = name.rpartition(".")
        if last == "gate_up_proj":  # transformers 5 stacks the experts
            for i, expert in enumerate(tensor):
                gate, up = expert.chunk(2)
                weights[f"{stem}.{i}.gate_proj.weight"] = gate
                weights[f"{stem}.{i}.up_proj.weight"] = up
        elif last == "down_proj":
            weights |= {f"{stem}.{i}.down_proj.weight": t for i, t in enumerate(tensor)}
        else:
            weights[name] = tensor
    return weights
