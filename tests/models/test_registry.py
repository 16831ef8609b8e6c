# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Architecture names."""

from __future__ import annotations

import pytest

from tensorrt_llm_ext.errors import UnsupportedError
from tensorrt_llm_ext.models.deepseek import DeepseekV3
from tensorrt_llm_ext.models.eagle3 import Eagle3Draft
from tensorrt_llm_ext.models.registry import draft_class, target_class


@pytest.mark.parametrize("name", ["DeepseekV3ForCausalLM", "KimiK25ForConditionalGeneration"])
def test_target_class(name: str) -> None:
    assert target_class(name) is DeepseekV3


@pytest.mark.parametrize(
    "name",
    [
        "Eagle3DeepseekV2ForCausalLM",
        "Eagle3DeepseekV3ForCausalLM",
        "Eagle3DeepSeekV3ForCausalLM",
        "DeepSeekForCausalLMEagle3",
        "DeepseekV3ForCausalLMEagle3",
        "LlamaForCausalLMEagle3",
    ],
)
def test_draft_class(name: str) -> None:
    assert draft_class(name) is Eagle3Draft


def test_unknown_names_list_what_is_known() -> None:
    with pytest.raises(UnsupportedError, match="Did you mean 'DeepseekV3ForCausalLM'"):
        target_class("DeepseekV3ForCausalLm")
    with pytest.raises(UnsupportedError, match="Known: DeepSeekForCausalLMEagle3, "):
        draft_class("GPT2LMHeadModel")
