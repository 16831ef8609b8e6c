# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Canonical names of targets and drafts, from every layout that is understood."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from tensorrt_llm_ext.checkpoints.names import (
    TensorRef,
    canonical_draft_name,
    draft_tensor_map,
    shape_keys,
    target_tensor_map,
)
from tensorrt_llm_ext.configs.hf_target import target_config_from_hf
from tensorrt_llm_ext.errors import CheckpointError
from tests.support.tiny_checkpoints import (
    draft_json,
    draft_shapes,
    target_json,
    target_shapes,
    wrapped,
)

Q_RANK, LATENT = 24, 24
Shapes = dict[str, tuple[int, ...]]


def fuse(shapes: Shapes, name: str) -> Shapes:
    """Replaces the a-projections of layer 0 by one tensor, gate and up by another."""
    fused = dict(shapes)
    layer = "layers.0."
    q = fused.pop(f"{layer}self_attn.q_a_proj.weight")
    kv = fused.pop(f"{layer}self_attn.kv_a_proj_with_mqa.weight")
    fused[f"{layer}self_attn.{name}.weight"] = (q[0] + kv[0], q[1])
    gate = fused.pop(f"{layer}mlp.gate_proj.weight")
    fused.pop(f"{layer}mlp.up_proj.weight")
    fused[f"{layer}mlp.gate_up_proj.weight"] = (2 * gate[0], gate[1])
    return fused


@pytest.mark.parametrize(
    ("prefix", "layer", "fused"),
    list(
        product(
            ["", "model.", "draft_model.", "eagle_module.", "draft_model.model.", "model.model."],
            ["layers.0.", "midlayer.", "midlayer.0."],
            [None, "fused_qkv_a_proj_with_mqa", "fused_qkv_a_proj", "kv_a_proj_with_mqa"],
        )
    ),
)
def test_every_layout_of_a_draft(prefix: str, layer: str, fused: str | None) -> None:
    canonical = draft_shapes(draft_json(draft_vocab_size=40, fc_norm=True), embedding=True)
    stored = fuse(canonical, fused) if fused else canonical
    files = {prefix + name.replace("layers.0.", layer): shape for name, shape in stored.items()}
    tensors = draft_tensor_map(files, q_lora_rank=Q_RANK, latent_size=LATENT)
    assert tensors.shapes(files) == canonical
    if fused:
        name = f"{prefix}{layer}self_attn.{fused}.weight"
        refs = tensors.refs
        assert refs["layers.0.self_attn.q_a_proj.weight"] == TensorRef(name, (0, Q_RANK))
        assert refs["layers.0.self_attn.kv_a_proj_with_mqa.weight"] == TensorRef(
            name, (Q_RANK, Q_RANK + LATENT)
        )


@pytest.mark.parametrize("later_norm", ["input_layernorm", "hidden_norm"])
def test_later_layers_have_one_input_norm(later_norm: str) -> None:
    canonical = draft_shapes(draft_json(num_hidden_layers=3))
    files = {
        name.replace("input_layernorm", later_norm)
        if name.startswith(("layers.1", "layers.2"))
        else name: shape
        for name, shape in canonical.items()
    }
    tensors = draft_tensor_map(files, q_lora_rank=Q_RANK, latent_size=LATENT)
    assert tensors.shapes(files) == canonical


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("d2t", "d2t"),
        ("model.d2t", "d2t"),
        ("lm_head.weight", "lm_head.weight"),
        ("model.fc_norm.2.weight", "fc_norm.2.weight"),
        ("midlayer.1.mlp.up_proj.weight", "layers.1.mlp.up_proj.weight"),
        ("eagle_module.midlayer.hidden_norm.weight", "layers.0.hidden_norm.weight"),
        # Only a leading prefix goes.
        ("layers.0.model.weight", "layers.0.model.weight"),
    ],
)
def test_canonical_draft_name(name: str, canonical: str) -> None:
    assert canonical_draft_name(name) == canonical


def test_the_same_tensor_twice_names_both() -> None:
    files = {**draft_shapes(draft_json()), "model.norm.weight": (32,)}
    with pytest.raises(CheckpointError, match=r"'norm.weight' and 'model.norm.weight'.*both"):
        draft_tensor_map(files, q_lora_rank=Q_RANK, latent_size=LATENT)


def test_fused_and_split_together_are_refused() -> None:
    files = draft_shapes(draft_json())
    files["layers.0.self_attn.fused_qkv_a_proj_with_mqa.weight"] = (Q_RANK + LATENT, 64)
    with pytest.raises(CheckpointError, match=r"are both 'layers.0.self_attn.q_a_proj.weight'"):
        draft_tensor_map(files, q_lora_rank=Q_RANK, latent_size=LATENT)


def test_fused_with_wrong_rows() -> None:
    files: Shapes = {"midlayer.self_attn.fused_qkv_a_proj.weight": (50, 64)}
    with pytest.raises(CheckpointError, match=r"\[50, 64\], expected 48 rows: q_lora_rank 24"):
        draft_tensor_map(files, q_lora_rank=Q_RANK, latent_size=LATENT)


def scales(module: str, rows: tuple[int, ...], scalar: tuple[int, ...]) -> Shapes:
    return {f"{module}.weight_scale": rows, f"{module}.input_scale": scalar}


@pytest.mark.parametrize("scalar", [(), (1,)])
@pytest.mark.parametrize(
    ("scale", "q_rows", "kv_rows"),
    [
        ((256 + 80, 4), (0, 256), (256, 336)),  # NVFP4, or one scale per row
        ((256 + 80,), (0, 256), (256, 336)),
        ((3, 1), (0, 2), (2, 3)),  # FP8 blocks of 128 rows
        ((), None, None),
    ],
    ids=str,
)
def test_scales_follow_the_rows_of_a_fused_projection(
    scalar: tuple[int, ...], scale: tuple[int, ...], q_rows: Any, kv_rows: Any
) -> None:
    module = "midlayer.self_attn.fused_qkv_a_proj_with_mqa"
    files: Shapes = {f"{module}.weight": (336, 64), **scales(module, scale, scalar)}
    refs = draft_tensor_map(files, q_lora_rank=256, latent_size=80).refs
    attention = "layers.0.self_attn."
    assert refs[f"{attention}q_a_proj.weight_scale"] == TensorRef(f"{module}.weight_scale", q_rows)
    assert refs[f"{attention}kv_a_proj_with_mqa.weight_scale"] == TensorRef(
        f"{module}.weight_scale", kv_rows
    )
    for name in ("q_a_proj", "kv_a_proj_with_mqa"):
        assert refs[f"{attention}{name}.input_scale"] == TensorRef(f"{module}.input_scale")
    assert len(refs) == 6


@pytest.mark.parametrize("scale", [(7, 4), (2,)])
def test_scales_that_cannot_be_split(scale: tuple[int, ...]) -> None:
    module = "layers.0.self_attn.fused_qkv_a_proj"
    files: Shapes = {f"{module}.weight": (336, 64), f"{module}.weight_scale": scale}
    with pytest.raises(CheckpointError, match="cannot be split between") as raised:
        draft_tensor_map(files, q_lora_rank=256, latent_size=80)
    assert raised.value.check == "V23"


def test_gate_and_up_with_their_scales() -> None:
    module = "model.midlayer.mlp.gate_up_proj"
    files: Shapes = {f"{module}.weight": (96, 16), **scales(module, (96, 2), ())}
    files[f"{module}.bias"] = (96,)
    tensors = draft_tensor_map(files, q_lora_rank=Q_RANK, latent_size=LATENT)
    for name, rows in (("gate_proj", (0, 48)), ("up_proj", (48, 96))):
        for kind in ("weight", "weight_scale", "bias"):
            ref = tensors.refs[f"layers.0.mlp.{name}.{kind}"]
            assert ref == TensorRef(f"{module}.{kind}", rows)
        assert tensors.refs[f"layers.0.mlp.{name}.input_scale"].rows is None


def test_another_spelling_of_the_embedding_norm() -> None:
    assert canonical_draft_name("midlayer.embed_layernorm.weight") == (
        "layers.0.input_layernorm.weight"
    )


def test_a_prefix_a_million_times_takes_no_time() -> None:
    name = "model." * 1_000_000 + "norm.weight"
    assert canonical_draft_name(name) == "norm.weight"


def test_full_rank_queries_are_not_split() -> None:
    canonical = draft_shapes(draft_json(q_lora_rank=None))
    tensors = draft_tensor_map(canonical, q_lora_rank=None, latent_size=LATENT)
    assert tensors.shapes(canonical) == canonical


def test_target_names_lose_their_wrapper_and_skipped_tensors_are_counted() -> None:
    config = target_config_from_hf(wrapped(target_json(num_nextn_predict_layers=1)))
    canonical = target_shapes(target_json())
    names = [f"language_model.{name}" for name in canonical]
    names += ["vision_tower.blocks.0.weight", "vision_tower.norm.weight", "mm_projector.weight"]
    names += ["language_model.model.layers.8.eh_proj.weight"]
    names += ["language_model.model.layers.0.self_attn.rotary_emb.inv_freq"]
    tensors = target_tensor_map(names, config)
    assert set(tensors.refs) == set(canonical)
    assert tensors.skipped == {
        "vision_tower.": 2,
        "mm_projector.": 1,
        "language_model.model.layers.8.": 1,
        "rotary_emb.inv_freq": 1,
    }


def test_a_layer_number_is_not_a_prefix_of_a_longer_one() -> None:
    config = target_config_from_hf(target_json(num_nextn_predict_layers=1))
    assert "model.layers.80.x" in target_tensor_map(["model.layers.80.x"], config).refs


def test_a_tied_head_is_left_out() -> None:
    config = target_config_from_hf(target_json(tie_word_embeddings=True))
    tensors = target_tensor_map(["lm_head.weight", "model.embed_tokens.weight"], config)
    assert set(tensors.refs) == {"model.embed_tokens.weight"}
    assert sum(tensors.skipped.values()) == 1


def test_every_tensor_has_config_keys_for_its_shape() -> None:
    config = draft_json(fc_norm=True)
    for name in (*target_shapes(target_json()), *draft_shapes(config, embedding=True)):
        assert shape_keys(name), name
    assert "kv_lora_rank" in shape_keys("layers.0.self_attn.kv_b_proj.weight")
    assert "n_routed_experts" in shape_keys("model.layers.1.mlp.gate.weight")
    assert "moe_intermediate_size" in shape_keys("model.layers.1.mlp.experts.0.up_proj.weight")
    assert shape_keys("model.layers.0.mlp.up_proj.weight") == "intermediate_size, hidden_size"
    assert shape_keys("model.norm.weight") == "hidden_size"
