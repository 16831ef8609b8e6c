# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Whether a draft and a target belong together."""

from __future__ import annotations

import logging

from tensorrt_llm_ext.configs.draft import DraftConfig
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
            "was trained for another target. Choose a draft made for this target."
        )
    if draft.vocab_size != target.vocab_size:
        raise ConfigError(
            f"The draft's vocab_size is {draft.vocab_size}, the target's {target.vocab_size}. Both "
            "must speak the same tokens: choose a draft made for this target's tokenizer."
        )
    if draft.boundaries[-1] > target.num_layers:
        raise ConfigError(
            f"The draft captures boundary {draft.boundaries[-1]}, but the target has "
            f"{target.num_layers} layers (boundaries 0..{target.num_layers}). Choose a draft made "
            "for this target, or correct the captured layers."
        )
    if draft.mla.latent_size != target.mla.latent_size:
        raise UnsupportedError(
            f"The draft caches rows of {draft.mla.latent_size} values (kv_lora_rank "
            f"{draft.mla.kv_lora_rank} + qk_rope_head_dim {draft.mla.qk_rope_head_dim}), the "
            f"target {target.mla.latent_size} ({target.mla.kv_lora_rank} + "
            f"{target.mla.qk_rope_head_dim}). Both share one KV pool, so the widths must be equal: "
            "choose another draft."
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
                    f"incomplete: it needs its own {what}."
                )
    _warn_of_short_context(draft, target)


def _warn_of_short_context(draft: DraftConfig, target: TargetConfig) -> None:
    draft_rope, target_rope = draft.mla.rope, target.mla.rope
    if draft_rope.max_position_embeddings < target_rope.max_position_embeddings:
        _logger.warning(
            "The draft's rotary table ends at position %d, the target's at %d: beyond it requests "
            "run without drafts.",
            draft_rope.max_position_embeddings,
            target_rope.max_position_embeddings,
        )
    if target_rope.yarn is not None and draft_rope.yarn is None:
        _logger.warning(
            "The target's positions are scaled by YaRN (original length %d), the draft's are not: "
            "acceptance will fall beyond that length unless the draft was trained on longer rows.",
            target_rope.yarn.original_max_position_embeddings,
        )
