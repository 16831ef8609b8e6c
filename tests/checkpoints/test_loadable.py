# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Quantized checkpoints load in every layout and mode, by their tensors alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tensorrt_llm_ext.checkpoints.loader import load_draft, load_target, read_draft_config
from tensorrt_llm_ext.checkpoints.writer import save_checkpoint
from tensorrt_llm_ext.configs.quant import QUANT_MODES
from tensorrt_llm_ext.errors import CheckpointError, ConfigError, ExtError, UnsupportedError
from tensorrt_llm_ext.models.deepseek import DeepseekV3
from tensorrt_llm_ext.quantization.experts import QuantExperts
from tensorrt_llm_ext.quantization.linear import QuantLinear
from tensorrt_llm_ext.quantization.loading import dense, take_weight
from tests.support.quantized import (
    DRAFT_TIERS,
    SIZES,
    TARGET_LAYOUTS,
    formats_of,
    write_quantized_draft,
    write_quantized_target,
)
from tests.support.tiny_checkpoints import write_target
from tests.support.tiny_models import DictSource, make_context

MODES = [mode for mode in QUANT_MODES if mode != "auto"]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> DeepseekV3:
    folder = tmp_path_factory.mktemp("target")
    write_quantized_target(folder, "experts")
    return load_target(folder)


def dequantized_twin(folder: Path, prefix: str = "") -> dict[str, torch.Tensor]:
    """The folder's tensors with every weight in floating point, by this test's own reading."""
    stored = {n.removeprefix(prefix): t for n, t in load_file(folder / "model.safetensors").items()}
    scales = ("_scale", "_scale_2")
    plain = {n: t for n, t in stored.items() if not n.endswith(scales)}
    for name in [n for n in plain if f"{n}_scale" in stored]:
        module, (rows, columns) = name.removesuffix(".weight"), plain[name].shape
        width = columns * (2 if plain[name].dtype == torch.uint8 else 1)
        weight = take_weight(DictSource(stored), module, (rows, width))
        plain[name] = dense(weight, torch.float32)
    return plain


def hidden_of(model: DeepseekV3) -> torch.Tensor:
    plan = make_context(
        model.config.num_layers, model.config.mla.latent_size, [7, 4], dtype=torch.float32
    )
    tokens = torch.arange(11) % model.config.vocab_size
    return model.compute_logits(model(tokens, plan.positions, plan.ctx)[0])


def count(model: torch.nn.Module, kind: type) -> int:
    return sum(isinstance(module, kind) for module in model.modules())


@pytest.mark.parametrize("wrapper", [True, False])
@pytest.mark.parametrize("layout", TARGET_LAYOUTS)
@torch.no_grad()
def test_a_target_of_every_layout(tmp_path: Path, layout: str, wrapper: bool) -> None:
    floats = write_quantized_target(tmp_path / "t", layout, wrapper=wrapper)
    plain = dequantized_twin(tmp_path / "t", "language_model." if wrapper else "")
    config = json.loads((tmp_path / "t" / "config.json").read_text())
    save_checkpoint(tmp_path / "float", config.get("text_config", config), plain)
    expected = hidden_of(load_target(tmp_path / "float"))
    plainly = load_target(tmp_path / "t")
    assert count(plainly, QuantLinear) == count(plainly, QuantExperts) == 0
    torch.testing.assert_close(hidden_of(plainly), expected, rtol=1e-4, atol=1e-4)
    packed = load_target(tmp_path / "t", quant_mode="packed")
    torch.testing.assert_close(hidden_of(packed), expected, rtol=1e-4, atol=1e-4)
    names = [name.removesuffix(".weight") for name in floats if name.endswith(".weight")]
    kinds = formats_of(names, TARGET_LAYOUTS[layout])
    experts = {kind for name, kind in kinds.items() if ".experts." in name}
    assert count(packed, QuantExperts) == (2 if experts == {"nvfp4"} else 0)
    attention = any("self_attn" in name for name in kinds)
    assert (count(packed, QuantLinear) > 0) == (attention or layout in ("mlp", "omlp"))


def test_excludes_in_either_spelling_change_nothing(tmp_path: Path) -> None:
    outputs = []
    for wrapped in (True, False):
        folder = tmp_path / str(wrapped)
        write_quantized_target(folder, "experts", excludes_are_wrapped=wrapped)
        ignore = json.loads((folder / "config.json").read_text())["quantization_config"]["ignore"]
        assert ignore[0] == ("language_model.lm_head" if wrapped else "lm_head")
        outputs.append(hidden_of(load_target(folder, quant_mode="packed")))
    assert torch.equal(*outputs)


def test_packed_experts_take_less_memory(tmp_path: Path) -> None:
    write_quantized_target(tmp_path / "t", "experts")
    experts = [
        module
        for module in load_target(tmp_path / "t", quant_mode="packed").modules()
        if isinstance(module, QuantExperts)
    ]
    config = {"hidden": 32, "width": 16, "count": 4}
    weights = 3 * config["hidden"] * config["width"] * config["count"]
    for module in experts:
        scalars = 4 * 2 * config["count"]
        assert module.nbytes == 0.5625 * weights + scalars


@torch.no_grad()
def states_of(draft: Any, target: DeepseekV3) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    config = draft.config
    captured = torch.randn(6, config.num_captured * config.target_hidden_size, generator=generator)
    plan = make_context(
        target.config.num_layers + 1, config.mla.latent_size, [6], dtype=torch.float32
    )
    state = draft(draft.combine(captured), torch.arange(6), plan.positions, plan.ctx)
    return draft.compute_logits(state), draft.propose(state)[1]


@pytest.mark.parametrize("tier", DRAFT_TIERS)
def test_a_draft_of_every_tier(tmp_path: Path, target: DeepseekV3, tier: str) -> None:
    write_quantized_draft(tmp_path / "d", tier)
    config = json.loads((tmp_path / "d" / "config.json").read_text())
    del config["quantization_config"]
    save_checkpoint(tmp_path / "float", config, dequantized_twin(tmp_path / "d"))
    want = states_of(load_draft(tmp_path / "float", target), target)
    drafts = {mode: load_draft(tmp_path / "d", target, quant_mode=mode) for mode in MODES}
    for mode in ("dequantized", "packed"):
        got = states_of(drafts[mode], target)
        torch.testing.assert_close(got[0], want[0], rtol=1e-4, atol=1e-4)
        assert torch.equal(got[1], want[1])
    assert count(drafts["dequantized"], QuantLinear) == 0
    packed = [m for m in drafts["packed"].modules() if isinstance(m, QuantLinear)]
    assert len(packed) == 2 if tier == "half_fused" else len(packed) >= 5
    rough = states_of(drafts["w4a4"], target)[0]
    error = (rough - want[0]).norm() / want[0].norm()
    assert 1e-3 < error < 0.35, "activations are rounded, and no more than that"


def test_unequal_siblings_are_the_same_in_every_mode(tmp_path: Path, target: DeepseekV3) -> None:
    write_quantized_draft(tmp_path / "d", "layer", shares=False)
    one, other = (
        states_of(load_draft(tmp_path / "d", target, quant_mode=mode), target)[0]
        for mode in ("dequantized", "packed")
    )
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", ["dequantized", "packed"])
def test_fused_projections_are_split_with_their_scales(
    tmp_path: Path, target: DeepseekV3, mode: str
) -> None:
    """As TensorRT-LLM and SGLang write them: one weight of q_a and kv_a, one of gate and up."""
    write_quantized_draft(tmp_path / "d", "layer_fc_head")
    want = states_of(load_draft(tmp_path / "d", target, quant_mode=mode), target)
    stored = load_file(tmp_path / "d" / "model.safetensors")
    layer = "layers.0."
    for fused, parts in (
        ("self_attn.fused_qkv_a_proj_with_mqa", ("q_a_proj", "kv_a_proj_with_mqa")),
        ("mlp.gate_up_proj", ("gate_proj", "up_proj")),
    ):
        below = layer + fused.partition(".")[0]
        for kind in ("weight", "weight_scale", "weight_scale_2", "input_scale"):
            pieces = [stored.pop(f"{below}.{part}.{kind}") for part in parts]
            whole = torch.cat([p.view(torch.uint8) for p in pieces]) if pieces[0].dim() else None
            stored[f"{layer}{fused}.{kind}"] = (
                pieces[0] if whole is None else whole.view(pieces[0].dtype)
            )
    save_file(stored, tmp_path / "d" / "model.safetensors", {"format": "pt"})
    got = states_of(load_draft(tmp_path / "d", target, quant_mode=mode), target)
    torch.testing.assert_close(got, want, rtol=0, atol=0)


def test_scales_of_a_quantized_cache_are_left_out_aloud(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scales = {f"model.layers.1.self_attn.{n}_proj.{n}_scale": torch.ones(()) for n in "kv"}
    write_target(tmp_path / "t", extra=scales)
    load_target(tmp_path / "t")
    assert "2 scales of a quantized KV cache (model.layers.1.self_attn.k_proj.k_scale)" in (
        caplog.text
    )


def change_file(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    stored = load_file(folder / "model.safetensors")
    change(stored)
    save_file(stored, folder / "model.safetensors", {"format": "pt"})


def packed_into(name: str) -> Callable[[dict[str, torch.Tensor]], object]:
    """Stores a module as NVFP4 that must be in floating point."""

    def change(stored: dict[str, torch.Tensor]) -> None:
        rows, columns = stored[f"{name}.weight"].shape
        stored[f"{name}.weight"] = torch.zeros(rows, columns // 2, dtype=torch.uint8)
        stored[f"{name}.weight_scale"] = torch.ones(rows, columns // 16).to(torch.float8_e4m3fn)
        stored[f"{name}.weight_scale_2"] = torch.tensor(1.0)

    return change


def without(name: str) -> Callable[[dict[str, torch.Tensor]], object]:
    return lambda stored: stored.pop(name)


def replaced(**values: Any) -> Callable[[dict[str, torch.Tensor]], object]:
    module = "layers.0.mlp.down_proj"
    return lambda stored: stored.update({f"{module}.{k}": v for k, v in values.items()})


DAMAGE: Mapping[str, tuple[Callable[[dict[str, torch.Tensor]], object], str, str]] = {
    "kv_b": (packed_into("layers.0.self_attn.kv_b_proj"), "kv_b_proj is stored in nvfp4", "V24"),
    "embedding": (packed_into("embed_tokens"), "embed_tokens is stored in nvfp4", "V24"),
    "scale missing": (without("layers.0.mlp.down_proj.weight_scale_2"), "no weight_scale_2", "V23"),
    "scale swizzled": (
        replaced(weight_scale=torch.ones(128 * 4).to(torch.float8_e4m3fn)),
        "not swizzled",
        "V23",
    ),
    "other size": (
        replaced(
            weight=torch.zeros(32, 32, dtype=torch.uint8),
            weight_scale=torch.ones(32, 4).to(torch.float8_e4m3fn),
        ),
        r"shape \[32, 64\], expected \[32, 48\]",
        "V6",
    ),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_what_must_not_be_quantized_or_is_damaged(
    tmp_path: Path, target: DeepseekV3, kind: str
) -> None:
    change, message, check = DAMAGE[kind]
    write_quantized_draft(tmp_path / "d", "layer_fc", shapes={"embedding": True})
    change_file(tmp_path / "d", change)
    for mode in MODES:
        with pytest.raises(ExtError, match=message) as raised:
            load_draft(tmp_path / "d", target, quant_mode=mode)
        assert raised.value.check == check


def test_a_quantized_draft_has_a_config(tmp_path: Path, target: DeepseekV3) -> None:
    write_quantized_draft(tmp_path / "d", "layer_fc_head")
    config = read_draft_config(tmp_path / "d", target.config)
    assert (config.boundaries, config.hidden_size, config.has_own_lm_head) == ((1, 2, 3), 32, True)


def test_modes_are_checked(tmp_path: Path, target: DeepseekV3) -> None:
    write_quantized_draft(tmp_path / "d", "layer", input_scale=False)
    write_quantized_target(tmp_path / "t", "mixed")
    with pytest.raises(ConfigError, match=r"'pack', expected one of .* Did you mean 'packed'"):
        load_draft(tmp_path / "d", target, quant_mode="pack")
    with pytest.raises(ConfigError, match=r"has no input_scale for all of .*it is W4A16"):
        load_draft(tmp_path / "d", target, quant_mode="w4a4")
    with pytest.raises(UnsupportedError, match="stored as fp8 and nvfp4"):
        load_target(tmp_path / "t", quant_mode="w4a4")
    load_target(tmp_path / "t", quant_mode="packed")
    write_quantized_target(tmp_path / "w4a16", "experts", input_scale=False)
    with pytest.raises(ConfigError, match="not every expert below"):
        load_target(tmp_path / "w4a16", quant_mode="w4a4")
    assert SIZES["num_hidden_layers"] == load_target(tmp_path / "w4a16").config.num_layers


def test_undeclared_quantization_is_said(
    tmp_path: Path, target: DeepseekV3, caplog: pytest.LogCaptureFixture
) -> None:
    write_quantized_draft(tmp_path / "d", "fp8")
    path = tmp_path / "d" / "config.json"
    config = json.loads(path.read_text())
    del config["quantization_config"]
    path.write_text(json.dumps(config))
    load_draft(tmp_path / "d", target)
    assert "9 modules are quantized (fc is fp8), which no file declares" in caplog.text


def test_experts_that_are_not_all_packed_are_refused_when_they_must_be(tmp_path: Path) -> None:
    experts = QuantExperts(1, 32, 16, is_emulated=False, device=torch.device("cpu"))
    tensors = {f"e.0.{part}_proj.weight": torch.ones(16, 32) for part in ("gate", "up")}
    with pytest.raises(CheckpointError, match="is not stored in NVFP4 as the other experts are"):
        experts.load(DictSource(tensors | {"e.0.down_proj.weight": torch.ones(32, 16)}), "e")
