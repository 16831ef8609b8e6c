# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Drafts read from real-world and tiny config.json files, with and without their tensors."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tensorrt_llm_ext.configs.draft import DraftConfig
from tensorrt_llm_ext.configs.hf_draft import draft_config_from_hf
from tensorrt_llm_ext.errors import ConfigError, UnsupportedError
from tests.support.tiny_checkpoints import draft_json, draft_shapes, model_config

KIMI_LAYERS = 61
EXPLICIT = {"trtllm_ext_aux_boundaries": [3, 5, 7]}


def read(config: dict[str, Any], **shapes: Any) -> DraftConfig:
    """Reads a tiny draft together with its tensors, for the tiny target of 8 layers."""
    tensors = draft_shapes(config, **shapes)
    return draft_config_from_hf(config, tensors=tensors, num_target_layers=8)


@pytest.mark.parametrize("with_tensors", [False, True])
@pytest.mark.parametrize(
    ("name", "embedding", "convention"),
    [
        ("lightseekorg/kimi-k2.5-eagle3-mla", True, "default boundaries"),
        ("nvidia/Kimi-K2.5-Thinking-Eagle3", False, "after-layer"),
    ],
)
def test_public_drafts(
    name: str,
    embedding: bool,
    convention: str,
    with_tensors: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    raw = model_config(name)
    tensors = draft_shapes(raw, embedding=embedding) if with_tensors else None
    config = draft_config_from_hf(raw, tensors=tensors, num_target_layers=KIMI_LAYERS)
    assert config.boundaries == (2, 30, 58)
    assert convention in config.boundaries_evidence
    assert config.has_own_embedding == (embedding and with_tensors)
    assert config.has_own_lm_head
    assert config.has_fc
    assert not config.has_d2t
    assert (config.hidden_size, config.target_hidden_size, config.num_layers) == (7168, 7168, 1)
    assert config.vocab_size == config.draft_vocab_size == 163840
    assert config.intermediate_size == 18432
    # The draft's own epsilon and YaRN, not the target's.
    assert config.rms_norm_eps == config.mla.rms_norm_eps == 1e-5
    assert config.mla.rope.yarn is not None
    assert config.mla.rope.yarn.beta_fast == 1.0
    assert config.mla.rope.max_position_embeddings == 262144
    assert config.mla.softmax_scale == pytest.approx(0.14468, abs=1e-5)
    assert not (config.fc_norm)
    assert not (config.norm_output)
    assert not (config.norm_before_fc)
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING] == []


@pytest.mark.parametrize("tensors", [None, {"midlayer.self_attn.q_proj.weight": (8, 8)}])
def test_mha_drafts_get_advice(tensors: Any) -> None:
    raw = model_config("lightseekorg/kimi-k2.5-eagle3")
    if tensors is not None:
        tensors = {"layers.0.self_attn.q_proj.weight": (8192, 14336)}
        tensors["layers.0.self_attn.k_proj.weight"] = (8192, 14336)
    with pytest.raises(UnsupportedError, match=r"This is an MHA draft.*built-in Eagle3 path"):
        draft_config_from_hf(raw, tensors=tensors, num_target_layers=KIMI_LAYERS)


def test_an_mla_config_with_mha_tensors_is_an_mha_draft() -> None:
    # Only tensors decide: K2-style keys are often inherited.
    shapes = {"layers.0.self_attn.k_proj.weight": (32, 64), "fc.weight": (32, 96)}
    with pytest.raises(UnsupportedError, match=r"k_proj\.weight and no kv_a_proj_with_mqa"):
        draft_config_from_hf(draft_json(), tensors=shapes, num_target_layers=8)


FLAGS = {
    "fc_norm": ("fc_norm", "use_aux_norm"),
    "norm_output": ("norm_output", "return_hidden_post_norm"),
    "norm_before_fc": ("norm_before_fc",),
    "norm_before_residual": ("norm_before_residual",),
}
SPELLINGS = [(flag, name) for flag, names in FLAGS.items() for name in names]


@pytest.mark.parametrize(("flag", "name"), SPELLINGS)
@pytest.mark.parametrize("place", ["top", "nested", "both"])
def test_flags_at_the_top_or_nested(flag: str, name: str, place: str) -> None:
    eagle = {"eagle_aux_hidden_state_layer_ids": [2, 4, 5]}
    config = draft_json(eagle_config=eagle)
    if place != "nested":
        config[name] = True
    if place != "top":
        eagle[name] = True  # type: ignore[assignment]
    shapes = draft_shapes({**config, flag: True})
    result = draft_config_from_hf(config, tensors=shapes, num_target_layers=8)
    assert {f: getattr(result, f) for f in FLAGS} == {f: f == flag for f in FLAGS}


@pytest.mark.parametrize(("flag", "name"), SPELLINGS)
def test_contradicting_flags_are_named(flag: str, name: str) -> None:
    eagle = {"eagle_aux_hidden_state_layer_ids": [2, 4, 5], name: True}
    with pytest.raises(ConfigError, match=f"{name}=True, config.json: {flag}=False"):
        draft_config_from_hf(draft_json(eagle_config=eagle, **{flag: False}), num_target_layers=8)


def test_flat_configs_have_no_eagle_config() -> None:
    config = draft_json(eagle_config=None, eagle_aux_hidden_state_layer_ids=[1, 3, 4])
    assert read(config).boundaries == (2, 4, 5)


def test_explicit_boundaries_and_any_number_of_layers() -> None:
    config = draft_json(
        eagle_config={"eagle_aux_hidden_state_layer_ids": [2, 4, 6]},
        num_hidden_layers=2,
        **EXPLICIT,
    )
    assert read(config).boundaries == (3, 5, 7)
    single = draft_json(eagle_config=None, trtllm_ext_aux_boundaries=[8])
    assert read(single, num_captured=1).boundaries == (8,)


def test_the_users_boundaries() -> None:
    config = draft_config_from_hf(
        draft_json(eagle_config=None), num_target_layers=8, boundaries=(1, 2, 8)
    )
    assert config.boundaries == (1, 2, 8)


@pytest.mark.parametrize("spelling", [{"target_hidden_size": 48}, {}, {"target_hidden_size": None}])
def test_target_width_from_config_or_fc(spelling: dict[str, Any]) -> None:
    config = draft_json(**spelling)
    result = read(config, target_hidden_size=48, embedding=True)
    assert (result.hidden_size, result.target_hidden_size) == (32, 48)


def test_target_width_from_the_caller_without_tensors() -> None:
    config = draft_config_from_hf(draft_json(), num_target_layers=8, target_hidden_size=48)
    assert config.target_hidden_size == 48


@pytest.mark.parametrize("spelling", [{"draft_vocab_size": None}, {"draft_vocab_size": 64}])
def test_null_draft_vocabulary_is_the_whole_vocabulary(spelling: dict[str, Any]) -> None:
    config = read(draft_json(**spelling))
    assert config.draft_vocab_size == 64
    assert not config.has_d2t


def test_pruned_vocabulary_has_a_map() -> None:
    config = read(draft_json(draft_vocab_size=40))
    assert config.draft_vocab_size == 40
    assert config.has_d2t
    assert draft_config_from_hf(draft_json(draft_vocab_size=40), num_target_layers=8).has_d2t


def test_what_the_draft_lacks_is_borrowed() -> None:
    config = read(draft_json(), head=False)
    assert not config.has_own_lm_head
    assert not config.has_own_embedding
    no_fc = draft_shapes(draft_json(), num_captured=1)
    del no_fc["fc.weight"]
    config = draft_config_from_hf(
        draft_json(eagle_config=None, trtllm_ext_aux_boundaries=[4]),
        tensors=no_fc,
        num_target_layers=8,
    )
    assert not config.has_fc
    assert config.target_hidden_size == 32


@pytest.mark.parametrize(
    ("changes", "shapes", "error", "message"),
    [
        ({"eagle_config": None}, {}, ConfigError, "does not say which target layers"),
        (
            {"eagle_aux_hidden_state_layer_ids": [1, 3, 4]},
            {},
            ConfigError,
            r"different captured layers: config.json: eagle_config.*\[2, 4, 5\].*\[1, 3, 4\]",
        ),
        (EXPLICIT, {}, ConfigError, r"\[3, 5, 7\] contradict"),
        ({"num_aux_hidden_states": 4}, {}, ConfigError, "num_aux_hidden_states is 4, but 3"),
        (
            {"draft_vocab_size": 65},
            {"head": False},
            ConfigError,
            r"draft_vocab_size \(65\) exceeds",
        ),
        ({"num_hidden_layers": True}, {}, ConfigError, "'num_hidden_layers' must be an integer"),
        ({"rope_theta": None}, {}, ConfigError, "lacks 'rope_theta'"),
        ({"attention_bias": True}, {}, UnsupportedError, "attention_bias=True"),
        (
            {"eagle_config": {"use_aux_hidden_state": False}},
            {},
            UnsupportedError,
            "use_aux_hidden_state=False",
        ),
        (
            {"eagle_config": {"parallel_draft_step": 4}},
            {},
            UnsupportedError,
            "parallel_draft_step=4",
        ),
        (
            {"eagle_config": {"next_layer_regular": False}, "num_hidden_layers": 2},
            {},
            UnsupportedError,
            "next_layer_regular=False",
        ),
        ({"eagle_config": [2, 4, 5]}, {}, ConfigError, "'eagle_config' must be a JSON object"),
        ({"fc_norm": "yes"}, {}, ConfigError, "fc_norm must be true or false, got 'yes'"),
        ({"fc_norm": True, "norm_before_fc": True}, {}, ConfigError, "mutually exclusive"),
        (
            {"target_hidden_size": 40},
            {},
            ConfigError,
            "fc.weight has 96 columns.*target_hidden_size 40",
        ),
        ({}, {"num_captured": 4, "target_hidden_size": 25}, ConfigError, "100 columns"),
        (
            {"tie_word_embeddings": True},
            {"head": False, "embedding": True},
            UnsupportedError,
            "second time as lm_head.weight",
        ),
    ],
)
def test_refusals(
    changes: dict[str, Any], shapes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        read(draft_json(**changes), **shapes)


@pytest.mark.parametrize(
    ("after", "fits"), [([1, 3, 4], True), ([2, 4, 5], True), ([1, 2, 3], False)]
)
def test_a_second_key_with_after_layer_ids_must_agree(after: list[int], fits: bool) -> None:
    config = draft_json(aux_hidden_states_layer_ids=after)
    if fits:
        assert read(config).boundaries == (2, 4, 5)
    else:
        with pytest.raises(ConfigError, match="aux_hidden_states_layer_ids"):
            read(config)


@pytest.mark.parametrize(
    ("flags", "warned"),
    [
        ({}, False),
        ({"fc_norm": True, "norm_output": True}, False),
        ({"fc_norm": True}, True),
        ({"norm_output": True}, True),
    ],
    ids=str,
)
def test_half_of_eagle_3_1_is_warned_of(
    flags: dict[str, bool], warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    read(draft_json(**flags))
    assert ("EAGLE-3.1" in caplog.text) == warned


def test_unknown_keys_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    read(draft_json(eagle_config={"eagle_aux_hidden_state_layer_ids": [2, 4, 5], "new_flag": 1}))
    assert "new_flag" in caplog.text
