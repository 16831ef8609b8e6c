# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Drafts that do not belong to the target are refused, with advice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tensorrt_llm_ext.configs.hf_draft import draft_config_from_hf
from tensorrt_llm_ext.configs.hf_target import target_config_from_hf
from tensorrt_llm_ext.configs.pairing import (
    check_pair,
    check_rotation,
    check_table_length,
    context_warnings,
)
from tensorrt_llm_ext.configs.quant import QuantConfig
from tensorrt_llm_ext.errors import ConfigError, UnsupportedError
from tests.support.tiny_checkpoints import draft_json, model_config, target_json

TARGET = target_config_from_hf(target_json())
DRAFT = draft_config_from_hf(draft_json(), num_target_layers=8)


def test_real_pairs_fit() -> None:
    target = target_config_from_hf(model_config("moonshotai/Kimi-K2.5"))
    for name in ("lightseekorg/kimi-k2.5-eagle3-mla", "nvidia/Kimi-K2.5-Thinking-Eagle3"):
        check_pair(draft_config_from_hf(model_config(name), num_target_layers=61), target)


def test_a_kimi_draft_does_not_fit_deepseek() -> None:
    # Same width, same depth, same latent rows: only the vocabulary tells.
    target = target_config_from_hf(model_config("deepseek-ai/DeepSeek-V3"))
    draft = model_config("nvidia/Kimi-K2.5-Thinking-Eagle3")
    with pytest.raises(ConfigError, match="vocab_size is 163840, the target's 129280"):
        check_pair(draft_config_from_hf(draft, num_target_layers=61), target)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"target_hidden_size": 48}, ConfigError, "width 48, but the target's hidden_size is 32"),
        ({"vocab_size": 60, "draft_vocab_size": 60}, ConfigError, "vocab_size is 60"),
        ({"boundaries": (2, 4, 9)}, ConfigError, r"boundary 9.*8 layers \(boundaries 0\.\.8\)"),
        (
            {"mla": replace(DRAFT.mla, kv_lora_rank=32)},
            UnsupportedError,
            r"rows of 40 values .*target 24 \(16 \+ 8\)",
        ),
        ({"hidden_size": 48}, ConfigError, "no embed_tokens.weight"),
        (
            {"hidden_size": 48, "has_own_embedding": True, "has_own_lm_head": False},
            ConfigError,
            "no lm_head.weight",
        ),
    ],
)
def test_refusals(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    check_pair(DRAFT, TARGET)
    with pytest.raises(error, match=message):
        check_pair(replace(DRAFT, **changes), TARGET)


def test_short_contexts_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    rope = replace(DRAFT.mla.rope, max_position_embeddings=64, yarn=None)
    check_pair(replace(DRAFT, mla=replace(DRAFT.mla, rope=rope)), TARGET)
    assert "ends at position 64" in caplog.text
    assert "scaled by YaRN" in caplog.text
    assert [check for check, _ in context_warnings(replaced(rope), TARGET)] == ["V28", "V17"]
    assert context_warnings(DRAFT, TARGET) == ()


def replaced(rope: Any) -> Any:
    return replace(DRAFT, mla=replace(DRAFT.mla, rope=rope))


@pytest.mark.parametrize(
    ("changes", "check"),
    [
        ({"target_hidden_size": 48}, "V14"),
        ({"vocab_size": 60, "draft_vocab_size": 60}, "V8"),
        ({"boundaries": (2, 4, 9)}, "V13"),
        ({"mla": replace(DRAFT.mla, kv_lora_rank=32)}, "V6"),
        ({"hidden_size": 48}, "V22"),
        ({"hidden_size": 48, "has_own_embedding": True, "has_own_lm_head": False}, "V8"),
    ],
    ids=str,
)
def test_refusals_carry_the_id_of_their_check(changes: dict[str, Any], check: str) -> None:
    with pytest.raises((ConfigError, UnsupportedError)) as raised:
        check_pair(replace(DRAFT, **changes), TARGET)
    assert raised.value.check == check


def test_the_rotary_table_reaches_the_last_draft_token() -> None:
    check_table_length(DRAFT, max_seq_len=125, max_draft_len=3)
    with pytest.raises(ConfigError, match=r"128 positions.*126 tokens and 3 .* need 129") as raised:
        check_table_length(DRAFT, max_seq_len=126, max_draft_len=3)
    assert raised.value.check == "V28"


def test_rotated_targets() -> None:
    check_rotation(QuantConfig(algo="NVFP4", source="config.json"))
    rotated = QuantConfig(algo="W4A8", source="config.json", rotation="quarot")
    with pytest.raises(UnsupportedError, match=r"config\.json.*quarot.*fc\.weight") as raised:
        check_rotation(rotated)
    assert raised.value.check == "V27"
