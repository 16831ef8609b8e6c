# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Whether a draft and a target belong together."""

from __future__ import annotations

import logging

from tensorrt_llm_ext.configs.draft import DraftConfig
from tensorrt_llm_ext.configs.quant import QuantConfig
from tensorrt_llm_ext.configs.target import TargetConfig
from tensorrt_llm_ext.errors import ConfigError, UnsupportedError

_logger = logging.getLogger(__name__)


def check_pair(draft: DraftConfig, target: TargetConfig) -> None:
    """Refuses a draft that cannot run beside this target.

    Raises:
        ConfigError: If the draft was made for another hidden size, vocabulary or depth, or needs a
            module of the target that does not fit it.
        UnsupportedError: If its latent rows have another width than the target's.
    """
    if draft.target_hidden_size != target.hidden_size:
        raise ConfigError(
            f"The draft reads {draft.num_captured} captured states of width "
            f"{draft.target_hidden_size}, but the target's hidden_size is {target.hidden_size}: it "
            "was trained for another target. Choose a draft made for this target.",
            check="V14",
        )
    if draft.vocab_size != target.vocab_size:
        raise ConfigError(
            f"The draft's vocab_size is {draft.vocab_size}, the target's {target.vocab_size}. Both "
            "must speak the same tokens: choose a draft made for this target's tokenizer.",
            check="V8",
        )
    if draft.boundaries[-1] > target.num_layers:
        raise ConfigError(
            f"The draft captures boundary {draft.boundaries[-1]}, but the target has "
            f"{target.num_layers} layers (boundaries 0..{target.num_layers}). Choose a draft made "
            "for this target, or correct the captured layers.",
            check="V13",
        )
    if draft.mla.latent_size != target.mla.latent_size:
        raise UnsupportedError(
            f"The draft caches rows of {draft.mla.latent_size} values (kv_lora_rank "
            f"{draft.mla.kv_lora_rank} + qk_rope_head_dim {draft.mla.qk_rope_head_dim}), the "
            f"target {target.mla.latent_size} ({target.mla.kv_lora_rank} + "
            f"{target.mla.qk_rope_head_dim}). Both share one KV pool, so the widths must be equal: "
            "choose another draft.",
            check="V6",
        )
    if draft.hidden_size != target.hidden_size:
        for owned, what in (
            (draft.has_own_embedding, "embed_tokens.weight"),
            (draft.has_own_lm_head, "lm_head.weight"),
        ):
            if not owned:
                raise ConfigError(
                    f"The draft has hidden_size {draft.hidden_size} and no {what}, and cannot "
                    f"borrow the target's, which is {target.hidden_size} wide. The checkpoint is "
                    f"incomplete: it needs its own {what}.",
                    check="V22" if what.startswith("embed") else "V8",
                )
    for _, message in context_warnings(draft, target):
        _logger.warning("%s", message)


def context_warnings(draft: DraftConfig, target: TargetConfig) -> tuple[tuple[str, str], ...]:
    """Returns what makes acceptance fall with context, as (check id, message)."""
    draft_rope, target_rope = draft.mla.rope, target.mla.rope
    found = []
    if draft_rope.max_position_embeddings < target_rope.max_position_embeddings:
        found.append(
            (
                "V28",
                f"The draft's rotary table ends at position {draft_rope.max_position_embeddings}, "
                f"the target's at {target_rope.max_position_embeddings}: beyond it requests run "
                "without drafts.",
            )
        )
    if target_rope.yarn is not None and draft_rope.yarn is None:
        original = target_rope.yarn.original_max_position_embeddings
        found.append(
            (
                "V17",
                f"The target's positions are scaled by YaRN (original length {original}), the "
                "draft's are not: acceptance will fall beyond that length unless the draft was "
                "trained on longer rows. Ask its publisher whether rope_scaling was lost.",
            )
        )
    return tuple(found)


def check_table_length(draft: DraftConfig, *, max_seq_len: int, max_draft_len: int) -> None:
    """Refuses a length to serve that the draft's rotary table does not reach (V28).

    Args:
        draft: The draft.
        max_seq_len: The longest sequence to serve, in tokens.
        max_draft_len: Draft tokens per round, which run past its end.

    Raises:
        ConfigError: If the table is too short.
    """
    length = draft.mla.rope.max_position_embeddings
    if length < max_seq_len + max_draft_len:
        raise ConfigError(
            f"The draft's rotary table has {length} positions (max_position_embeddings), but "
            f"{max_seq_len} tokens and {max_draft_len} drafted ones need "
            f"{max_seq_len + max_draft_len}. Raise max_position_embeddings in the draft's "
            "config.json (`trtllm-ext convert` writes it), or serve shorter sequences.",
            check="V28",
        )


def check_rotation(quant: QuantConfig) -> None:
    """Refuses a target whose hidden states are rotated (V27).

    Raises:
        UnsupportedError: If its quantization metadata mention a rotation.
    """
    if quant.rotation:
        raise UnsupportedError(
            f"The target's quantization metadata ({quant.source}) mention a rotation of its hidden "
            f"states ({quant.rotation}). A draft trained on unrotated states then accepts almost "
            "nothing (1.07 tokens per step were measured instead of 3.09). Use a target without "
            "it, or rotate the blocks of fc.weight and the embedding back with the same matrix.",
            check="V27",
        )
