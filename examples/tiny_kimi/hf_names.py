# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Parameter names of `model.py` and those of Hugging Face checkpoints, both ways."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from model import TARGET, ModelConfig, Target
from safetensors.torch import load_file
from torch import Tensor

WRAPPER_PREFIX = "language_model."
_OUTER = {
    "embed.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}
_PARTS = ("gate_proj", "up_proj", "down_proj")
_DRAFT_OUTER = ("fc.", "fc_norm.", "norm.", "lm_head.")


def _moe_names(layer: int) -> dict[str, str]:
    """Parameters of one MoE that both sides store as they are."""
    old, new = f"layers.{layer}.mlp.", f"model.layers.{layer}.mlp."
    shared = {f"{old}shared.{p}.weight": f"{new}shared_experts.{p}.weight" for p in _PARTS}
    router = {f"{old}gate": f"{new}gate.weight", f"{old}bias": f"{new}gate.e_score_correction_bias"}
    return {**router, **shared}


def _expert_names(layer: int, expert: int) -> tuple[str, str, str]:
    gate, up, down = (f"model.layers.{layer}.mlp.experts.{expert}.{p}.weight" for p in _PARTS)
    return gate, up, down


def target_to_hf(state: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Renames the parameters of `model.Target` to those of `DeepseekV3ForCausalLM`.

    Args:
        state: `state_dict()` of the module; stacked experts are split.
        config: Its sizes.
    """
    tensors = {"model.embed_tokens.weight": state["embed.weight"]}
    for layer in range(config.num_layers):
        prefix = f"layers.{layer}."
        moe = layer >= config.first_k_dense_replace
        for name, tensor in state.items():
            if name.startswith(prefix) and not (moe and name.startswith(f"{prefix}mlp.")):
                tensors[f"model.{name}"] = tensor
        if moe:
            tensors |= {new: state[old] for old, new in _moe_names(layer).items()}
            tensors |= _split_experts(state, layer)
    tensors["model.norm.weight"] = state["norm.weight"]
    tensors["lm_head.weight"] = state["head.weight"]
    return tensors


def _split_experts(state: Mapping[str, Tensor], layer: int) -> dict[str, Tensor]:
    tensors = {}
    stacked = zip(state[f"layers.{layer}.mlp.wgu"], state[f"layers.{layer}.mlp.wd"], strict=True)
    for expert, (gate_up, down) in enumerate(stacked):
        names = _expert_names(layer, expert)
        tensors |= dict(zip(names, (*gate_up.chunk(2, 0), down), strict=True))
    return tensors


def target_from_hf(tensors: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """The inverse of `target_to_hf`; loads of experts, which only training counts, are zero."""
    state = {old: tensors[new] for old, new in _OUTER.items()}
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}."
        moe = layer >= config.first_k_dense_replace
        for name, tensor in tensors.items():
            if name.startswith(prefix) and not (moe and name.startswith(f"{prefix}mlp.")):
                state[name.removeprefix("model.")] = tensor
        if moe:
            state |= {old: tensors[new] for old, new in _moe_names(layer).items()}
            names = [_expert_names(layer, expert) for expert in range(config.num_experts)]
            mlp = f"layers.{layer}.mlp."
            state[f"{mlp}wgu"] = torch.stack(
                [torch.cat((tensors[gate], tensors[up])) for gate, up, _ in names]
            )
            state[f"{mlp}wd"] = torch.stack([tensors[down] for *_, down in names])
            state[f"{mlp}load"] = torch.zeros(config.num_experts)
    return state


def draft_to_hf(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Renames the parameters of `model.Draft`; the embedding is the target's and not stored."""
    return {n if n.startswith(_DRAFT_OUTER) else f"layers.0.{n}": t for n, t in state.items()}


def read_target(folder: Path, config: ModelConfig = TARGET) -> Target:
    """Reads an exported target back into the training module, for evaluation or to train a draft.

    Args:
        folder: Written by `export.py`, or by `unwrap.py`.
        config: Its sizes.

    Returns:
        The module in float32 and eval mode, without gradients.
    """
    stored = load_file(folder / "model.safetensors")
    tensors = {name.removeprefix(WRAPPER_PREFIX): t.float() for name, t in stored.items()}
    target = Target(config)
    target.load_state_dict(target_from_hf(tensors, config))
    return target.eval().requires_grad_(False)
