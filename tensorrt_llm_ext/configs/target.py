# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Configuration of a DeepSeek-V3 family target (Kimi-K2.x, DeepSeek-V3), free of torch."""

from __future__ import annotations

from dataclasses import dataclass

from tensorrt_llm_ext.configs.mla import MLAConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class MoEConfig:
    """Sigmoid `noaux_tc` mixture of experts: routed experts in groups, plus shared ones."""

    num_experts: int
    num_experts_per_tok: int
    num_shared_experts: int
    intermediate_size: int
    num_groups: int
    topk_group: int
    norm_topk_prob: bool
    routed_scaling_factor: float


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetConfig:
    """A target as the core sees it, whatever wrapper or transformers version wrote it.

    `weight_prefix` is what precedes `model.` and `lm_head.` in the checkpoint: empty, or
    `language_model.` for the Kimi-K2.5 wrapper. `moe_layers` lists the 0-based layers with experts.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    intermediate_size: int
    rms_norm_eps: float
    mla: MLAConfig
    moe: MoEConfig | None
    moe_layers: frozenset[int]
    tie_word_embeddings: bool
    max_position_embeddings: int
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    weight_prefix: str = ""
    skipped_prefixes: tuple[str, ...] = ()
