# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Which class implements an architecture name of a config.json.

Draft names say little: public MLA drafts carry the names of several engines, so a loader decides
what a draft is by its tensors, and every known spelling leads to the same class.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeVar

from tensorrt_llm_ext.errors import UnsupportedError, nearest
from tensorrt_llm_ext.models.deepseek import DeepseekV3
from tensorrt_llm_ext.models.eagle3 import Eagle3Draft

ModelT = TypeVar("ModelT")

TARGET_ARCHITECTURES: Mapping[str, type[DeepseekV3]] = MappingProxyType(
    {
        "DeepseekV3ForCausalLM": DeepseekV3,  # DeepSeek-V3, R1 and Kimi-K2
        "KimiK25ForConditionalGeneration": DeepseekV3,  # the wrapper's text part
    }
)

DRAFT_ARCHITECTURES: Mapping[str, type[Eagle3Draft]] = MappingProxyType(
    {
        "Eagle3DeepseekV2ForCausalLM": Eagle3Draft,  # most public Kimi drafts
        "Eagle3DeepseekV3ForCausalLM": Eagle3Draft,
        "Eagle3DeepSeekV3ForCausalLM": Eagle3Draft,  # TensorRT-LLM's spelling
        "DeepSeekForCausalLMEagle3": Eagle3Draft,
        "DeepseekV3ForCausalLMEagle3": Eagle3Draft,
        "LlamaForCausalLMEagle3": Eagle3Draft,  # also on MLA drafts; the tensors decide
    }
)


def target_class(architecture: str) -> type[DeepseekV3]:
    """Returns the class of a target; UnsupportedError, with the known names, when there is none."""
    return _find("target", architecture, TARGET_ARCHITECTURES)


def draft_class(architecture: str) -> type[Eagle3Draft]:
    """Returns the class of a draft; UnsupportedError, with the known names, when there is none."""
    return _find("draft", architecture, DRAFT_ARCHITECTURES)


def _find(kind: str, architecture: str, known: Mapping[str, type[ModelT]]) -> type[ModelT]:
    try:
        return known[architecture]
    except KeyError:
        guess = nearest(architecture, known)
        hint = f"Did you mean {guess!r}? " if guess else ""
        raise UnsupportedError(
            f"No {kind} has the architecture {architecture!r}. {hint}Known: "
            f"{', '.join(sorted(known))}."
        ) from None
