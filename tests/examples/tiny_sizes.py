# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Small models with random weights for the tests of the training code."""

from __future__ import annotations

from dataclasses import replace

import torch
from model import Draft, ModelConfig, Target, Yarn
from torch import nn

# YaRN's original length is shorter than the rows, so that a wrong table shows.
YARN = Yarn(original_max_position_embeddings=16, mscale=0.8)
TARGET = ModelConfig(
    vocab_size=60,
    hidden_size=32,
    num_layers=3,
    q_lora_rank=20,
    kv_lora_rank=16,
    qk_nope_head_dim=12,
    qk_rope_head_dim=8,
    v_head_dim=12,
    intermediate_size=40,
    moe_intermediate_size=16,
    num_experts=6,
    max_position_embeddings=64,
    yarn=YARN,
)
DRAFT = replace(
    TARGET,
    num_layers=1,
    latent_norm_eps=TARGET.rms_norm_eps,
    yarn=replace(YARN, beta_fast=4.0, mscale_all_dim=0.5),
)
BOUNDARIES = (1, 2)


def randomised(module: nn.Module, seed: int) -> nn.Module:
    """Gives norms and router biases values that matter; rounds all to bfloat16, as export does."""
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in module.state_dict().items():
        noise = torch.randn(tensor.shape, generator=generator)
        if "norm" in name and tensor.ndim == 1:
            tensor.copy_(1 + 0.3 * noise)
        elif name.endswith("mlp.bias"):
            tensor.copy_(0.2 * noise)
        elif not name.endswith("mlp.load"):
            tensor.copy_(noise * tensor.std())
        if not name.endswith("mlp.bias"):
            tensor.copy_(tensor.bfloat16())
    return module.eval().requires_grad_(False)


def target(seed: int) -> Target:
    """A target with random weights."""
    torch.manual_seed(seed)
    return randomised(Target(TARGET), seed)


def draft(seed: int) -> Draft:
    """A draft with random weights."""
    torch.manual_seed(seed)
    return randomised(Draft(DRAFT, len(BOUNDARIES)), seed)
