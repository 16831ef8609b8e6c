# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""What a draft's tensors say, and where they contradict its config."""

from __future__ import annotations

from typing import Any

import pytest

from tensorrt_llm_ext.configs.draft_tensors import DraftTensors, expected_shapes
from tensorrt_llm_ext.configs.hf_draft import draft_config_from_hf
from tensorrt_llm_ext.errors import ConfigError, UnsupportedError
from tests.support.tiny_checkpoints import draft_json, draft_shapes


def test_facts() -> None:
    config = draft_json(fc_norm=True, num_hidden_layers=2, draft_vocab_size=40)
    found = DraftTensors.from_shapes(draft_shapes(config, embedding=True))
    assert (found.num_layers, found.num_fc_norms, found.fc_columns) == (2, 3, 96)
    assert found.has_fc
    assert found.has_embedding
    assert found.has_lm_head
    assert found.has_d2t
    bare = DraftTensors.from_shapes({"layers.0.self_attn.kv_a_proj_with_mqa.weight": (24, 64)})
    assert bare.fc_columns is None
    assert not bare.has_lm_head


@pytest.mark.parametrize(
    ("extra", "error", "message"),
    [
        ({"layers.0.self_attn.g_proj.weight": (8, 8)}, UnsupportedError, "gated MLA"),
        ({"layers.0.mlp.experts.0.up_proj.weight": (8, 8)}, UnsupportedError, "only dense drafts"),
        ({"layers.2.mlp.up_proj.weight": (8, 8)}, ConfigError, r"layers numbered \[0, 2\]"),
        ({"fc_norm.1.weight": (8,)}, ConfigError, r"fc_norm numbered \[1\]"),
    ],
)
def test_other_architectures(extra: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        DraftTensors.from_shapes({**draft_shapes(draft_json()), **extra}).check_kind()


@pytest.mark.parametrize(
    ("extra", "check"),
    [
        ({"layers.0.self_attn.g_proj.weight": (8, 8)}, "V2"),
        ({"layers.0.mlp.experts.0.up_proj.weight": (8, 8)}, "V7"),
        ({"layers.2.mlp.up_proj.weight": (8, 8)}, "V5"),
        ({"eh_proj.weight": (32, 64)}, "V2"),
        ({"layers.0.hnorm.weight": (32,)}, "V2"),
        # A number that no layer has; it must not become one of a million million.
        ({"layers.99999999999.mlp.up_proj.weight": (8, 8)}, None),
    ],
)
def test_verdicts_carry_the_id_of_their_check(extra: dict[str, Any], check: str | None) -> None:
    shapes = {**draft_shapes(draft_json()), **extra}
    if check is None:
        DraftTensors.from_shapes(shapes).check_kind()
        return
    with pytest.raises((ConfigError, UnsupportedError)) as raised:
        DraftTensors.from_shapes(shapes).check_kind()
    assert raised.value.check == check


def test_an_older_kind_of_draft_gets_advice() -> None:
    shapes = {**draft_shapes(draft_json()), "layers.0.enorm.weight": (32,)}
    with pytest.raises(UnsupportedError, match=r"EAGLE-1 or multi-token.*decoding_type MTP"):
        DraftTensors.from_shapes(shapes).check_kind()


@pytest.mark.parametrize(
    ("changes", "shapes"),
    [
        ({}, {}),
        ({"q_lora_rank": None}, {"embedding": True}),
        ({"fc_norm": True, "norm_output": True}, {"embedding": True}),
        ({"norm_before_fc": True, "num_hidden_layers": 3}, {"head": False}),
        ({"draft_vocab_size": 40}, {}),
        ({"hidden_size": 40}, {"embedding": True, "target_hidden_size": 32}),
    ],
    ids=str,
)
def test_expected_shapes(changes: dict[str, Any], shapes: dict[str, Any]) -> None:
    raw = draft_json(**changes)
    tensors = draft_shapes(raw, **shapes)
    draft = draft_config_from_hf(raw, tensors=tensors, num_target_layers=8)
    assert expected_shapes(draft) == tensors


def test_no_attention_at_all() -> None:
    with pytest.raises(ConfigError, match=r"no attention tensors.*found.*'fc.weight'"):
        DraftTensors.from_shapes({"fc.weight": (8, 24)}).check_kind()


@pytest.mark.parametrize(
    ("config", "change", "message"),
    [
        (
            {"fc_norm": True},
            {"fc_norm.0.weight": None, "fc_norm.1.weight": None, "fc_norm.2.weight": None},
            "fc_norm is True, but .* 0 fc_norm",
        ),
        ({"fc_norm": True}, {"fc_norm.2.weight": None}, "2 fc_norm tensors for 3 captured"),
        ({}, {"fc_norm.0.weight": (32,)}, "fc_norm is False, but .* 1 fc_norm"),
        ({"norm_before_fc": True}, {"input_norm.weight": None}, "has no input_norm.weight"),
        ({}, {"input_norm.weight": (96,)}, "has an input_norm.weight"),
        ({"num_hidden_layers": 1}, {"layers.1.mlp.up_proj.weight": (48, 32)}, "has 2 layers"),
        (
            {},
            {"lm_head.weight": (40, 32)},
            r"lm_head.weight has shape \[40, 32\], expected 64 rows",
        ),
        ({}, {"embed_tokens.weight": (65, 32)}, "expected 64 rows from vocab_size"),
        ({"draft_vocab_size": 40}, {"d2t": None}, "no d2t to map"),
        ({"draft_vocab_size": 40}, {"d2t": (41,)}, r"d2t has shape \[41\], expected 40"),
        ({"draft_vocab_size": 40}, {"t2d": (40,)}, "expected 64 rows from vocab_size"),
        ({"draft_vocab_size": 40}, {"lm_head.weight": None}, "no lm_head.weight"),
        ({}, {"d2t": ()}, r"d2t has shape \[\]"),
    ],
)
def test_contradictions(config: dict[str, Any], change: dict[str, Any], message: str) -> None:
    raw = draft_json(**config)
    shapes: dict[str, Any] = {**draft_shapes(raw), **change}
    shapes = {name: shape for name, shape in shapes.items() if shape is not None}
    with pytest.raises(ConfigError, match=message):
        draft_config_from_hf(raw, tensors=shapes, num_target_layers=8)
