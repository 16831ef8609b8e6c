# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""What layers built from the same blocks share, and how the blocks load."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tensorrt_llm_ext.errors import UnsupportedError
from tensorrt_llm_ext.models.blocks import TorchBlocks
from tests.support.tiny_models import CPU, DictSource, make_context, random_draft, random_target


def test_layers_share_a_rotary_table_and_its_rows() -> None:
    config, model = random_target(0, num_layers=3)
    tables = {id(layer.self_attn.rope_table) for layer in model.layers}
    assert len(tables) == 1
    plan = make_context(config.num_layers, config.mla.latent_size, [5])
    model(torch.arange(5), plan.positions, plan.ctx)
    (rows,) = plan.ctx.rope_rows.values()
    torch.testing.assert_close(rows, model.layers[0].self_attn.rope_table[:5], rtol=0, atol=0)


def test_other_rotary_settings_get_another_table() -> None:
    """A draft's rope is its own: sharing the target's table loses acceptance silently."""
    config, _ = random_target(0, yarn=None)
    blocks = TorchBlocks(CPU, torch.float64)
    rope = config.mla.rope
    attention = [
        blocks.mla_attention("a", replace(config.mla, rope=settings), 0, 32, 32)
        for settings in (rope, rope, replace(rope, theta=500.0))
    ]
    assert attention[0].rope_table is attention[1].rope_table
    assert attention[0].rope_table is not attention[2].rope_table


def test_head_is_tied_to_an_embedding_of_the_blocks() -> None:
    blocks = TorchBlocks(CPU, torch.float64)
    embedding = blocks.embedding("embed_tokens", 5, 4)
    assert blocks.tied_lm_head("lm_head", embedding).weight is embedding.weight
    with pytest.raises(UnsupportedError, match="tied to a Identity"):
        blocks.tied_lm_head("lm_head", torch.nn.Identity())


def test_weights_take_no_gradient() -> None:
    config, target = random_target(0)
    _, draft = random_draft(0, config)
    for model in (target, draft):
        assert not any(weight.requires_grad for weight in model.parameters())


def test_gated_mlp() -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = {"gate_proj": (6, 4), "up_proj": (6, 4), "down_proj": (4, 6)}
    weights = {
        f"mlp.{name}.weight": torch.randn(shape, generator=generator, dtype=torch.float64)
        for name, shape in shapes.items()
    }
    mlp = TorchBlocks(CPU, torch.float64).gated_mlp("mlp", 4, 6)
    source = DictSource(weights)
    mlp.load(source, "mlp")
    assert not source.remaining
    x = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    gate, up = (x @ weights[f"mlp.{name}_proj.weight"].T for name in ("gate", "up"))
    expected = (gate * torch.sigmoid(gate) * up) @ weights["mlp.down_proj.weight"].T
    torch.testing.assert_close(mlp(x), expected, rtol=1e-12, atol=1e-12)


def test_loading_converts_to_the_dtype_of_the_blocks() -> None:
    linear = TorchBlocks(CPU, torch.bfloat16).linear("fc", 3, 2)
    weight = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 1.00390625]], dtype=torch.float32)
    linear.load(DictSource({"fc.weight": weight}), "fc")
    assert linear.weight.dtype == torch.bfloat16
    assert torch.equal(linear.weight, weight.to(torch.bfloat16))


def test_router_keeps_float32() -> None:
    config, _ = random_target(0)
    assert config.moe is not None
    moe = TorchBlocks(CPU, torch.bfloat16).moe("mlp", config.hidden_size, config.moe)
    assert moe.gate_weight.dtype == moe.e_score_correction_bias.dtype == torch.float32
    assert moe.w_down.dtype == torch.bfloat16
