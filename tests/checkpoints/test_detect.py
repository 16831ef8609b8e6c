# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Which layout a draft has, what says so, and what its layer ids mean by the producer's marks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrt_llm_ext.checkpoints.detect import detect_format
from tensorrt_llm_ext.checkpoints.formats import ALL_FORMATS
from tensorrt_llm_ext.checkpoints.formats.base import Detection, DraftFiles
from tensorrt_llm_ext.configs.boundaries import EXPLICIT_KEY
from tests.support.tiny_checkpoints import draft_json, draft_shapes, model_config

IDS = "eagle_aux_hidden_state_layer_ids"
AFTER_IDS = "aux_hidden_states_layer_ids"
TORCHSPEC_KEYS = {"use_last_layernorm": True, "use_mtp_layernorm": False}
MODELOPT_KEYS = {"next_layer_regular": True, "parallel_draft_step": 1}
Rename = Callable[[str], str]


def midlayer(name: str) -> str:
    return name.replace("layers.0.", "midlayer.")


def prefixed(name: str) -> str:
    return name if name in ("lm_head.weight", "d2t") else f"model.{name}"


def detect(
    eagle: dict[str, Any] | None,
    rename: Rename = str,
    *,
    embedding: bool = False,
    more: dict[str, Any] | None = None,
    without: tuple[str, ...] = (),
    **config: Any,
) -> Detection:
    raw = draft_json(eagle_config=eagle, **config)
    shapes = {rename(name): s for name, s in draft_shapes(raw, embedding=embedding).items()}
    shapes = {name: s for name, s in shapes.items() if name not in without}
    return detect_format(DraftFiles(config=raw, shapes={**shapes, **(more or {})}))


def convention(found: Detection) -> str | None:
    assert (found.id_convention is None) == (not found.id_evidence)
    return None if found.id_convention is None else found.id_convention.value


FUSED = "layers.0.self_attn.fused_qkv_a_proj"


@pytest.mark.parametrize(
    ("arguments", "name", "ids", "weak"),
    [
        # ModelOpt: keys of its own, whatever the names.
        ({"eagle": {IDS: [2, 4, 6], **MODELOPT_KEYS}}, "modelopt", "after-layer", False),
        (
            {"eagle": {IDS: [2, 4, 6], **MODELOPT_KEYS}, "embedding": True},
            "modelopt",
            "after-layer",
            False,
        ),
        (
            {"eagle": {IDS: [2, 4, 6]}, "rename": lambda n: f"eagle_module.{n}"},
            "modelopt",
            "after-layer",
            True,
        ),
        ({"eagle": {IDS: [2, 4, 6]}, "has_lm_head": False}, "modelopt", "after-layer", True),
        # TorchSpec: native, native without its settings, and its vLLM export.
        (
            {"eagle": {IDS: [2, 4, 6], **TORCHSPEC_KEYS}, "rename": midlayer, "embedding": True},
            "torchspec",
            "after-layer",
            False,
        ),
        (
            {"eagle": {IDS: [4, 5, 6]}, "rename": midlayer, "embedding": True},
            "torchspec",
            "after-layer",
            True,
        ),
        (
            {"eagle": {IDS: [2, 4, 6], **TORCHSPEC_KEYS}, "embedding": True},
            "torchspec",
            "boundary",
            False,
        ),
        # The first id alone decides nothing.
        ({"eagle": {IDS: [1, 4, 6]}, "embedding": True}, "torchspec", None, False),
        ({"eagle": {IDS: [3, 4, 6]}, "embedding": True}, "torchspec", None, False),
        ({"eagle": {IDS: [2, 4, 6]}, "model_type": "deepseek_v3"}, "generic", None, False),
        ({"eagle": {IDS: [1, 4, 6]}, "model_type": "deepseek_v3"}, "generic", None, False),
        # A kimi_k2 draft without an embedding.
        ({"eagle": {IDS: [2, 4, 6]}}, "generic", "after-layer", True),
        # NeMo Automodel, and engines' spellings: ids of either convention.
        (
            {"eagle": {IDS: [2, 4, 6]}, "rename": prefixed, "embedding": True},
            "automodel",
            None,
            False,
        ),
        (
            {
                "eagle": {IDS: [2, 4, 6]},
                "embedding": True,
                "more": {f"{FUSED}_with_mqa.weight": (48, 64)},
            },
            "sglang",
            None,
            False,
        ),
        (
            {"eagle": {IDS: [2, 4, 6]}, "embedding": True, "more": {f"{FUSED}.weight": (48, 64)}},
            "vllm",
            None,
            False,
        ),
        (
            {"eagle": {IDS: [2, 4, 6], "use_aux_norm": True}, "embedding": True},
            "sglang",
            "boundary",
            False,
        ),
        # AngelSlim: two keys, one below the other.
        (
            {"eagle": {IDS: [2, 4, 6]}, AFTER_IDS: [1, 3, 5]},
            "angelslim",
            "boundary",
            False,
        ),
        ({"eagle": None, AFTER_IDS: [1, 3, 5]}, "angelslim", "after-layer", False),
        ({"eagle": {IDS: [1, 3, 5]}, AFTER_IDS: [1, 3, 5]}, "angelslim", "after-layer", True),
        (
            {"eagle": None, IDS: [2, 4, 6], "speculators_config": {}},
            "speculators",
            "boundary",
            False,
        ),
        # Ours says its boundaries itself.
        (
            {"eagle": {IDS: [2, 4, 6], **MODELOPT_KEYS}, EXPLICIT_KEY: [3, 5, 7]},
            "trtllm_ext",
            None,
            False,
        ),
    ],
)
def test_layouts_and_conventions(
    arguments: dict[str, Any], name: str, ids: str | None, weak: bool
) -> None:
    found = detect(**arguments)
    assert found.format.name == name, found.evidence
    assert all(len(mark) > 3 for mark in found.evidence)
    assert convention(found) == ids, found.id_evidence
    assert found.id_is_weak == weak
    assert not found.id_against


@pytest.mark.parametrize(
    ("arguments", "strong", "against"),
    [
        ({"eagle": {IDS: [2, 4, 6], **MODELOPT_KEYS}, AFTER_IDS: [1, 3, 5]}, "AngelSlim", "Model"),
        (
            {"eagle": {IDS: [2, 4, 6], **TORCHSPEC_KEYS}, "rename": midlayer, AFTER_IDS: [1, 3, 5]},
            "AngelSlim",
            "TorchSpec",
        ),
    ],
)
def test_marks_of_two_producers_are_both_named(
    arguments: dict[str, Any], strong: str, against: str
) -> None:
    found = detect(**arguments)
    assert strong in found.id_evidence
    assert against in found.id_against
    assert any(mark.startswith("also marks of: ") for mark in found.evidence)


def test_a_weak_mark_does_not_stand_against_a_strong_one() -> None:
    found = detect({IDS: [2, 4, 6]}, midlayer, **{AFTER_IDS: [1, 3, 5]})
    assert convention(found) == "boundary"
    assert not found.id_against


def test_facts_of_a_producer_are_told() -> None:
    assert any("mscale" in fact for fact in detect(None, prefixed, embedding=True).facts)
    assert detect(None).facts == ()


def test_eagle_3_1_is_named() -> None:
    found = detect(None, fc_norm=True, norm_output=True)
    assert "EAGLE-3.1 flags: fc_norm, norm_output" in found.evidence


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("lightseekorg/kimi-k2.5-eagle3", "specforge"),
        ("lightseekorg/kimi-k2.5-eagle3-mla", "torchspec"),
        ("nvidia/Kimi-K2.5-Thinking-Eagle3", "modelopt"),
    ],
)
def test_public_configs(name: str, layout: str) -> None:
    raw = model_config(name)
    shapes: dict[str, tuple[int, ...]] = {"midlayer.self_attn.k_proj.weight": (8, 8)}
    if "kv_lora_rank" in raw:
        shapes = draft_shapes(raw, embedding=layout == "torchspec")
    assert detect_format(DraftFiles(config=raw, shapes=shapes)).format.name == layout


def test_order_and_tables() -> None:
    names = [form.name for form in ALL_FORMATS]
    assert len(set(names)) == len(names)
    assert names[0] == "trtllm_ext"
    assert names[-1] == "generic"
    for form in ALL_FORMATS:
        assert form.title
        for pattern, replacement in form.renames:
            assert pattern.sub(replacement, "lm_head.weight") == "lm_head.weight"


KEYS = [
    *("architectures", "model_type", "eagle_config", IDS, AFTER_IDS, EXPLICIT_KEY, "layer_ids"),
    *("transformer_layer_config", "text_config", "next_layer_regular", "fc_norm", "has_lm_head"),
    *("use_aux_norm", "n_routed_experts", "moe_intermediate_size", "first_k_dense_replace"),
]
ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4)
    ),
    max_leaves=10,
)
NAMES = st.text(max_size=6) | st.sampled_from(
    ["model.fc.weight", "midlayer.self_attn.kv_a_proj_with_mqa.weight", "layers.0.", "a" * 500]
)


@given(
    st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=4), ODD, max_size=6),
    st.dictionaries(NAMES, st.just((2, 2)), max_size=4),
)
def test_odd_files_never_raise(config: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> None:
    found = detect_format(DraftFiles(config=config, shapes=shapes))
    assert found.evidence
    assert isinstance(found.format.read_config(config), dict)
