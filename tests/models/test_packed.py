# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""What models over packed weights hold, and how much of them is ever unpacked at once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tensorrt_llm_ext.errors import CheckpointError, UnsupportedError
from tensorrt_llm_ext.models.blocks import TorchBlocks
from tensorrt_llm_ext.models.linears import FusedLinear, Linear, LMHead, PackedLMHead
from tensorrt_llm_ext.ops.nvfp4 import torch_kernels
from tensorrt_llm_ext.quantization.experts import QuantExperts
from tensorrt_llm_ext.quantization.linear import QuantLinear
from tensorrt_llm_ext.quantization.tensors import quantize_nvfp4
from tests.support.quantized import quantized_models
from tests.support.tiny_models import CPU, DictSource, make_context, random_target


class Results(TorchDispatchMode):
    """Collects the size of every new float tensor that an op returns."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        is_new = isinstance(result, torch.Tensor) and not result._is_view()
        if is_new and result.is_floating_point() and "copy_" not in str(func):
            self.sizes.append(result.numel())
        return result


def blocks_of(formats: dict[str, str], mode: str = "packed") -> TorchBlocks:
    return TorchBlocks(CPU, torch.float32, formats=formats, mode=mode)


@torch.no_grad()
def test_no_packed_matrix_is_ever_whole() -> None:
    """The largest tensor that a draft step makes is half of the largest weight, not all of it."""
    head = blocks_of({"lm_head": "nvfp4"}).lm_head("lm_head", 512, 2048)
    mlp = blocks_of({f"mlp.{p}_proj": "nvfp4" for p in ("gate", "up", "down")}).gated_mlp(
        "mlp", 512, 1024
    )
    generator = torch.Generator().manual_seed(0)
    for module, name, shape in (
        (head, "lm_head", (2048, 512)),
        (mlp.gate_up_proj, "gate_proj", (1024, 512)),
        (mlp.down_proj, "mlp.down_proj", (512, 1024)),
    ):
        weight = quantize_nvfp4(torch.randn(shape, generator=generator))
        assert isinstance(module, QuantLinear)
        module.set_weights([weight] * len(module.parts), names=[name])
        largest = 512 * 1024
        results = Results()
        with results:
            module(torch.randn(2, module.in_features))
        assert results.sizes
        assert max(results.sizes) <= largest / 2
        weights = module.in_features * module.out_features
        assert module.nbytes / weights <= 0.60
    with results:
        head.argmax(torch.randn(2, 512), None)
    assert max(results.sizes) <= 2048 * 512 / 2


def linears_of(model: torch.nn.Module) -> list[QuantLinear]:
    return [module for module in model.modules() if isinstance(module, QuantLinear)]


def test_packed_models_hold_little() -> None:
    models = quantized_models("packed", 0, 12, "experts", "layer_fc_head")
    layers = linears_of(models.draft)
    stored = sum(layer.nbytes for layer in layers)
    weights = sum(layer.in_features * layer.out_features for layer in layers)
    # a_proj, q_b, o, gate_up, down, fc, head; twelve bytes of scalars weigh in tiny matrices.
    assert len(layers) == 7
    assert stored - 8 * len(layers) <= 0.5625 * weights
    names = {name for name, _ in models.draft.named_parameters()}
    assert not any("proj" in name or name.startswith(("fc.", "lm_head.")) for name in names)


@torch.no_grad()
def test_only_routed_experts_are_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    models = quantized_models("packed", 0, 12)
    (experts, *_) = (m for m in models.target.modules() if isinstance(m, QuantExperts))
    unpacked: list[int] = []
    plain = torch_kernels._values
    monkeypatch.setattr(
        torch_kernels, "_values", lambda data: unpacked.append(2 * data.numel()) or plain(data)
    )
    one_expert = 3 * experts.hidden_size * experts.intermediate_size
    x = torch.randn(5, experts.hidden_size, dtype=torch.float64)
    ids = torch.tensor([[2], [2], [0], [2], [0]])
    experts(x, torch.ones(5, 1, dtype=torch.float64), ids)
    assert sum(unpacked) == 2 * one_expert
    assert max(unpacked) < one_expert / 2


def test_formats_decide_and_the_mode_decides_whether() -> None:
    formats = {"a.q_a_proj": "fp8", "lm_head": "nvfp4"}
    blocks = blocks_of(formats)
    config, _ = random_target(0, q_lora_rank=32)
    attention = blocks.mla_attention("a", config.mla, 0, 32, 32)
    assert isinstance(attention.a_proj, QuantLinear)
    assert isinstance(attention.q_b_proj, Linear)
    assert isinstance(blocks.lm_head("lm_head", 32, 8), PackedLMHead)
    plain = blocks_of(formats, "dequantized")
    assert type(plain.mla_attention("a", config.mla, 0, 32, 32).a_proj) is FusedLinear
    assert type(plain.lm_head("lm_head", 32, 8)) is LMHead


def test_dequantized_layers_are_those_of_a_float_model() -> None:
    """So they take the same time: the same class over a matrix of the same layout."""
    weight = quantize_nvfp4(torch.randn(64, 32))
    layer = blocks_of({"fc": "nvfp4"}, "dequantized").linear("fc", 32, 64)
    layer.load(DictSource(weight.tensors("fc")), "fc")
    other = TorchBlocks(CPU, torch.float32).linear("fc", 32, 64)
    other.load(DictSource({"fc.weight": weight.dequantize(torch.float32)}), "fc")
    assert type(layer) is type(other) is Linear
    assert torch.equal(layer.weight, other.weight)
    assert layer.weight.stride() == other.weight.stride()


def test_what_is_never_quantized_is_refused() -> None:
    blocks = blocks_of({})
    packed = quantize_nvfp4(torch.randn(8, 32)).tensors("e")
    with pytest.raises(CheckpointError, match="never quantized"):
        blocks.embedding("e", 8, 16).load(DictSource(packed), "e")
    config, _ = random_target(0, q_lora_rank=None)
    attention = blocks.mla_attention("a", config.mla, 0, 32, 32)
    mla = config.mla
    rows = mla.num_heads * (mla.qk_nope_head_dim + mla.v_head_dim)
    tensors = {
        "a.q_proj.weight": torch.ones(mla.num_heads * mla.qk_head_dim, 32),
        "a.kv_a_proj_with_mqa.weight": torch.ones(mla.latent_size, 32),
        "a.kv_a_layernorm.weight": torch.ones(mla.kv_lora_rank),
        "a.o_proj.weight": torch.ones(32, mla.num_heads * mla.v_head_dim),
        **quantize_nvfp4(torch.ones(rows, mla.kv_lora_rank)).tensors("a.kv_b_proj"),
    }
    with pytest.raises(CheckpointError, match="kv_b_proj is stored in nvfp4") as raised:
        attention.load(DictSource(tensors), "a")
    assert raised.value.check == "V24"


def test_packed_experts_refuse_another_dtype() -> None:
    experts = QuantExperts(2, 32, 16, is_emulated=False, device=CPU)
    with pytest.raises(UnsupportedError, match="converted to another dtype"):
        experts.to(torch.bfloat16)


@torch.no_grad()
def test_modes_give_the_same_states() -> None:
    logits = {}
    for mode in ("packed", "dequantized"):
        models = quantized_models(mode, 2, 12, "all_but_kv_b", "layer_fc_head")
        config = models.target.config
        plan = make_context(config.num_layers, config.mla.latent_size, [9])
        tokens = torch.arange(9)
        logits[mode] = models.target.compute_logits(
            models.target(tokens, plan.positions, plan.ctx)[0]
        )
    torch.testing.assert_close(logits["packed"], logits["dequantized"], rtol=1e-9, atol=1e-9)
