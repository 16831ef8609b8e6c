# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Drafts as ModelOpt's `export_speculative_decoding` writes them, with its faults."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tensorrt_llm_ext.checkpoints.loader import load_draft, load_target
from tensorrt_llm_ext.checkpoints.writer import save_checkpoint
from tensorrt_llm_ext.errors import CheckpointError, ConfigError
from tensorrt_llm_ext.quantization.siblings import quantize_siblings
from tensorrt_llm_ext.quantization.tensors import quantize_nvfp4
from tensorrt_llm_ext.quantizing.fixer import fix_export
from tests.support.quantizing import quantizable_json, read_draft

ATTENTION = "layers.0.self_attn."
GROUPS = (
    (f"{ATTENTION}q_a_proj", f"{ATTENTION}kv_a_proj_with_mqa"),
    ("layers.0.mlp.gate_proj", "layers.0.mlp.up_proj"),
    (f"{ATTENTION}q_b_proj",),
    (f"{ATTENTION}o_proj",),
    ("layers.0.mlp.down_proj",),
)
# As ModelOpt 0.47 wrote it for a small DeepSeek-V3 with an online Eagle module.
EXCLUDES = [
    "eagle_module.fc",
    f"eagle_module.{ATTENTION}kv_b_proj",
    "eagle_module.lm_head",
    "lm_head",
    "model*",
]


def export(
    folder: Path,
    source: Path,
    *,
    excludes: list[str] = EXCLUDES,
    change: dict[str, Any] | None = None,
) -> dict[str, torch.Tensor]:
    """Writes the body tier as that exporter does; returns its tensors.

    Its config lacks draft_vocab_size, its metadata name the modules of the training model and come
    in a nested form without quant_method.
    """
    _, tensors = read_draft(source)
    for group in GROUPS:
        weights = {name: tensors.pop(f"{name}.weight") for name in group}
        for name, part in quantize_siblings(weights, input_scale=torch.tensor(0.002)).items():
            tensors |= {n: t.clone() for n, t in part.tensors(name).items()}
    tensors |= change or {}
    config = quantizable_json(torch_dtype="bfloat16")
    del config["draft_vocab_size"], config["trtllm_ext_aux_boundaries"]
    config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [1, 3, 4]}
    quant = {
        "producer": {"name": "modelopt", "version": "0.47.0"},
        "quantization": {
            "quant_algo": "NVFP4",
            "kv_cache_quant_algo": None,
            "group_size": 16,
            "exclude_modules": excludes,
        },
    }
    config["quantization_config"] = quant
    save_checkpoint(folder, config, tensors, extra_json={"hf_quant_config.json": quant})
    return tensors


def test_everything_is_mended(pair: tuple[Path, Path], tmp_path: Path) -> None:
    before = export(tmp_path / "in", pair[1])
    report = fix_export(tmp_path / "in", tmp_path / "out", target=pair[0])
    config = json.loads((tmp_path / "out" / "config.json").read_text(encoding="utf-8"))
    section = config["quantization_config"]
    assert section["quant_method"] == "modelopt"
    assert section["ignore"] == ["fc", f"{ATTENTION}kv_b_proj", "lm_head"]
    assert config["draft_vocab_size"] == 64
    assert config["trtllm_ext_aux_boundaries"] == [2, 4, 5]
    other = json.loads((tmp_path / "out" / "hf_quant_config.json").read_text(encoding="utf-8"))
    assert other["quantization"]["exclude_modules"] == section["ignore"]
    assert other["producer"] == {"name": "modelopt", "version": "0.47.0"}
    after = load_file(tmp_path / "out" / "model.safetensors")
    assert after.keys() == before.keys()
    assert all(_equal(after[name], tensor) for name, tensor in before.items())
    text = "\n".join(report.changes)
    for word in (
        "'model*' dropped: it is the base model's, and covers what an engine calls model.",
        "'eagle_module.lm_head' renamed",
        "'eagle_module.fc' renamed",
        "quant_method",
        "draft_vocab_size",
    ):
        assert word in text
    assert not report.export.errors
    load_draft(tmp_path / "out", load_target(pair[0]), quant_mode="w4a4")


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a.float(), b.float())


def test_scales_of_siblings_become_one(pair: tuple[Path, Path], tmp_path: Path) -> None:
    q_a, kv_a = GROUPS[0]
    _, floats = read_draft(pair[1])
    weight = floats[f"{kv_a}.weight"] * 3.0
    own = quantize_nvfp4(weight, input_scale=torch.tensor(0.004))
    before = export(tmp_path / "in", pair[1], change=own.tensors(kv_a))
    report = fix_export(tmp_path / "in", tmp_path / "out", target=pair[0])
    after = load_file(tmp_path / "out" / "model.safetensors")
    for scale in ("weight_scale_2", "input_scale"):
        assert torch.equal(after[f"{q_a}.{scale}"], after[f"{kv_a}.{scale}"])
    assert float(after[f"{q_a}.input_scale"]) == pytest.approx(0.004)
    assert _equal(after[f"{kv_a}.weight"], before[f"{kv_a}.weight"])  # its scale was the larger
    assert not _equal(after[f"{q_a}.weight"], before[f"{q_a}.weight"])
    assert any(f"{q_a} and {kv_a} now share" in change for change in report.changes)


def test_packed_base_head_is_left_out(pair: tuple[Path, Path], tmp_path: Path) -> None:
    packed = torch.zeros(64, 16, dtype=torch.uint8)
    export(tmp_path / "in", pair[1], change={"lm_head.weight": packed})
    report = fix_export(tmp_path / "in", tmp_path / "out", target=pair[0])
    assert "lm_head.weight" not in load_file(tmp_path / "out" / "model.safetensors")
    assert any("without the scales" in change for change in report.changes)
    draft = load_draft(tmp_path / "out", load_target(pair[0]))
    assert draft.lm_head is not None


def test_scales_of_expanded_keys_are_left_out(pair: tuple[Path, Path], tmp_path: Path) -> None:
    scales = {f"{ATTENTION}{n}_proj.{n}_scale": torch.tensor(0.7) for n in "kv"}
    export(tmp_path / "in", pair[1], change=scales)
    report = fix_export(tmp_path / "in", tmp_path / "out", target=pair[0])
    assert not any("k_proj" in name for name in load_file(tmp_path / "out" / "model.safetensors"))
    assert any("MLA caches latents" in change for change in report.changes)


def test_a_clean_draft_needs_nothing(pair: tuple[Path, Path], tmp_path: Path) -> None:
    export(tmp_path / "in", pair[1])
    fix_export(tmp_path / "in", tmp_path / "once", target=pair[0])
    again = fix_export(tmp_path / "once", tmp_path / "twice", target=pair[0])
    assert not again.changes
    for name in ("config.json", "hf_quant_config.json"):
        assert (tmp_path / "once" / name).read_bytes() == (tmp_path / "twice" / name).read_bytes()


@pytest.mark.parametrize("value", [0.0, float("nan"), float("inf")])
def test_lost_values_are_said_to_be_lost(
    pair: tuple[Path, Path], tmp_path: Path, value: float
) -> None:
    name = f"{ATTENTION}o_proj.weight_scale_2"
    export(tmp_path / "in", pair[1], change={name: torch.tensor(value)})
    with pytest.raises(CheckpointError, match=r"scale of layers\.0\.self_attn\.o_proj") as caught:
        fix_export(tmp_path / "in", tmp_path / "out", target=pair[0])
    assert caught.value.check == "V30"
    assert not (tmp_path / "out").exists()


def test_float_drafts_are_sent_elsewhere(pair: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="trtllm-ext convert"):
        fix_export(pair[1], tmp_path / "out", target=pair[0])
