# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Puts the draft class in, and makes drafts readable. Each process does it once."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

from tensorrt_llm_ext.trtllm.capture import prepare_draft
from tensorrt_llm_ext.trtllm.host import Host, host
from tensorrt_llm_ext.trtllm.patches import apply_patches

_logger = logging.getLogger(__name__)

Builder = Callable[..., Any]


@functools.cache
def install() -> tuple[str, ...]:
    """Registers config types, applies the patches of the ledger, hooks the draft builder.

    Returns:
        Names of the patches that were applied.

    Raises:
        HostError: If the host has no place for any of this.
    """
    found = host()
    register_config_types()
    applied = apply_patches(found)
    if found.optional("register_draft_model") is not None:
        _register_builder(found)
    return applied


def build_draft(
    previous: Builder, model_config: Any, draft_config: Any, lm_head: Any, model: Any
) -> Any:
    """Builds an MLA draft of ours, or hands on to who built drafts before.

    Args:
        previous: The host's builder, with the same arguments.
        model_config: The target's ModelConfig.
        draft_config: The draft's ModelConfig.
        lm_head: The target's head.
        model: The target's body.
    """
    draft = prepare_draft(model_config.spec_config, model_config.pretrained_config)
    if draft is None:
        return previous(model_config, draft_config, lm_head, model)
    from tensorrt_llm_ext.trtllm.modeling import draft_class

    return draft_class()(draft_config, draft.target.num_layers, draft)


def _register_builder(found: Host) -> None:
    mode = found.symbol("SpeculativeDecodingMode").EAGLE3_ONE_MODEL
    previous = found.symbol("get_registered_draft_model_builder")(mode)

    def builder(model_config: Any, draft_config: Any, lm_head: Any, model: Any) -> Any:
        return build_draft(previous, model_config, draft_config, lm_head, model)

    found.symbol("register_draft_model")(mode)(builder)


def register_config_types() -> None:
    """Makes `model_type: kimi_k2` readable, which public drafts carry.

    transformers before 5.5 does not know it; its keys are those of DeepSeek-V3.
    """
    from transformers import AutoConfig, DeepseekV3Config
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if "kimi_k2" not in CONFIG_MAPPING:
        kind = type("KimiK2Config", (DeepseekV3Config,), {"model_type": "kimi_k2"})
        AutoConfig.register("kimi_k2", kind)


__all__ = ["build_draft", "install", "register_config_types"]
