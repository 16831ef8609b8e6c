# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""From folders to a quantized folder, without ModelOpt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tensorrt_llm_ext.checkpoints.loader import load_draft, load_target
from tensorrt_llm_ext.checkpoints.normalize import draft_config, open_draft
from tensorrt_llm_ext.engine.teacher_files import save_states
from tensorrt_llm_ext.errors import CheckpointError, ConfigError, UnsupportedError
from tensorrt_llm_ext.quantizing.distill import DistillOptions
from tensorrt_llm_ext.quantizing.job import QuantizeOptions
from tensorrt_llm_ext.quantizing.report import QuantizeReport
from tensorrt_llm_ext.quantizing.runner import quantize_draft
from tests.support.quantizing import quantizable_json, texts
from tests.support.tiny_checkpoints import write_draft

KV_B = "layers.0.self_attn.kv_b_proj"
PROMPTS = [[5 + i, 9, 33 - i] for i in range(16)]
OPTIONS = QuantizeOptions(max_draft_len=2, max_tokens=8, backend="builtin", overwrite=True)


def run(pair: tuple[Path, Path], out: Path, recipe: str, **options: Any) -> QuantizeReport:
    chosen: dict[str, Any] = {"options": OPTIONS}
    if "prompts" not in options:
        chosen["states"] = texts((14, 11, 12))
    return quantize_draft(pair[1], out, recipe=recipe, target=pair[0], **{**chosen, **options})


@pytest.fixture(scope="module")
def full(pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The full tier, calibrated on the target's own text."""
    out = tmp_path_factory.mktemp("full") / "out"
    stages: dict[str, tuple[int, int]] = {}
    report = run(
        pair,
        out,
        "nvfp4_layer_fc_head",
        prompts=PROMPTS,
        progress=lambda text, done, total: stages.__setitem__(text, (done, total)),
    )
    return out, (report, stages)


def test_files_are_what_engines_need(full: tuple[Path, Any], pair: tuple[Path, Path]) -> None:
    out, (report, _) = full
    tensors = load_file(out / "model.safetensors")
    source = load_file(pair[1] / "model.safetensors")
    assert tensors[f"{KV_B}.weight"].dtype == torch.bfloat16
    assert torch.equal(tensors[f"{KV_B}.weight"], source[f"{KV_B}.weight"])
    for first, second in (
        ("self_attn.q_a_proj", "self_attn.kv_a_proj_with_mqa"),
        ("mlp.gate_proj", "mlp.up_proj"),
    ):
        for scale in ("weight_scale_2", "input_scale"):
            a, b = (tensors[f"layers.0.{name}.{scale}"] for name in (first, second))
            assert torch.equal(a, b)
    packed = {n.removesuffix(".weight_scale_2") for n in tensors if n.endswith("weight_scale_2")}
    assert packed == set(report.formats) - {KV_B}
    assert all(f"{name}.input_scale" in tensors for name in packed)


def test_metadata_say_the_same_twice(full: tuple[Path, Any]) -> None:
    out, (report, _) = full
    config = json.loads((out / "config.json").read_text(encoding="utf-8"))
    other = json.loads((out / "hf_quant_config.json").read_text(encoding="utf-8"))
    section = config["quantization_config"]
    assert (section["quant_method"], section["quant_algo"]) == ("modelopt", "NVFP4")
    assert section["ignore"] == other["quantization"]["exclude_modules"] == [KV_B]
    assert other["quantization"]["group_size"] == 16
    assert other["producer"]["name"] == "tensorrt_llm_ext"
    assert config["draft_vocab_size"] == 64
    assert config["trtllm_ext_aux_boundaries"] == [2, 4, 5]
    assert config["architectures"] == ["Eagle3DeepseekV2ForCausalLM"]
    assert report.exclude == (KV_B,)
    assert not report.errors


def test_report_measures(full: tuple[Path, Any]) -> None:
    _, (report, stages) = full
    assert report.num_texts == (12, 4)
    assert report.is_held_out
    assert list(report.agreement) == ["W4A16", "W4A4"]
    assert list(report.acceptance) == ["bf16", "W4A16", "W4A4"]
    w4a16, w4a4 = report.agreement.values()
    assert 0 < w4a16.steps[0].kl < w4a4.steps[0].kl  # rounding more costs more
    assert report.acceptance["bf16"].ratio is None
    assert all(run.is_same_text for run in report.acceptance.values())
    assert all(done == total for done, total in stages.values())
    assert len(stages) == 4
    assert report.nbytes_after < 0.5 * report.nbytes_before
    assert report.budget_after.total_recurrent < 0.5 * report.budget_before.total_recurrent
    plain = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert plain["acceptance"]["W4A4"]["num_steps"] > 0
    assert len(plain["input_amax_per_step"]["fc"]) == 2


def test_the_engine_loads_it(full: tuple[Path, Any], pair: tuple[Path, Path]) -> None:
    target = load_target(pair[0])
    for mode in ("packed", "dequantized", "w4a4"):
        draft = load_draft(full[0], target, quant_mode=mode)
        assert draft.config.boundaries == (2, 4, 5)


def test_states_from_a_file_calibrate_alike(pair: tuple[Path, Path], tmp_path: Path) -> None:
    states = texts((14, 11, 12))
    save_states(states, tmp_path / "s.safetensors")
    report = run(pair, tmp_path / "a", "nvfp4_layer", states=tmp_path / "s.safetensors")
    run(pair, tmp_path / "b", "nvfp4_layer", states=states)
    a, b = (load_file(tmp_path / name / "model.safetensors") for name in "ab")
    assert a.keys() == b.keys()
    assert all(torch.equal(a[n].view(torch.uint8), b[n].view(torch.uint8)) for n in a if a[n].dim())
    assert not report.acceptance
    assert any("needs prompts" in note for note in report.notes)
    assert any("too few" in note for note in report.notes)
    assert report.exclude == ("fc", KV_B, "lm_head")


@pytest.mark.parametrize(
    ("recipe", "ways", "algo"),
    [
        ("w4a16_nvfp4_layer", ["W4A16"], "W4A16_NVFP4"),
        ("fp8_layer_fc_head", ["W8A16", "W8A8"], "FP8"),
        ("nvfp4_layer_fc_fp8_head", ["weights", "weights+inputs"], "MIXED_PRECISION"),
        ("nvfp4_layer_input_scale1", ["W4A16", "W4A4"], "NVFP4"),
    ],
)
def test_other_tiers(
    pair: tuple[Path, Path], tmp_path: Path, recipe: str, ways: list[str], algo: str
) -> None:
    report = run(pair, tmp_path / "out", recipe)
    assert list(report.agreement) == ways
    assert report.algo.startswith(algo)
    assert not report.errors
    assert open_draft(tmp_path / "out").quant.algo == algo


def test_qad_trains(pair: tuple[Path, Path], tmp_path: Path) -> None:
    options = QuantizeOptions(
        max_draft_len=2,
        backend="builtin",
        distill=DistillOptions(seconds=60, max_updates=6, learning_rate=5e-4),
    )
    states = texts((30, 28, 26, 30))
    report = run(pair, tmp_path / "qad", "qad/nvfp4_layer_fc_head", options=options, states=states)
    start = run(pair, tmp_path / "ptq", "nvfp4_layer_fc_head", states=states)
    training = report.distillation
    assert training is not None
    assert training.is_kept
    assert training.updates == 6
    # What was gained survives rounding to bfloat16 and packing.
    assert report.agreement["W4A4"].steps[0].kl < start.agreement["W4A4"].steps[0].kl
    kv_b = (load_file(tmp_path / n / "model.safetensors")[f"{KV_B}.weight"] for n in ("qad", "ptq"))
    assert not torch.equal(*kv_b)
    assert not report.errors


def test_a_draft_without_head_keeps_the_targets(pair: tuple[Path, Path], tmp_path: Path) -> None:
    write_draft(tmp_path / "headless", quantizable_json(), head=False)
    report = run((pair[0], tmp_path / "headless"), tmp_path / "out", "nvfp4_layer_fc_head")
    assert "lm_head" not in report.formats
    assert any("no lm_head of its own" in note for note in report.notes)
    assert not draft_config(open_draft(tmp_path / "out")).has_own_lm_head


def test_kv_cache_follows_the_target(full: tuple[Path, Any]) -> None:
    _, (report, _) = full
    assert open_draft(full[0]).quant.kv_cache_algo is None
    assert any("KV cache is not declared" in note for note in report.notes)


def test_quantized_drafts_are_refused(
    full: tuple[Path, Any], pair: tuple[Path, Path], tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedError, match="is quantized already"):
        run((pair[0], full[0]), tmp_path / "out", "nvfp4_layer")


def test_nothing_is_overwritten_unasked(full: tuple[Path, Any], pair: tuple[Path, Path]) -> None:
    options = QuantizeOptions(max_draft_len=2, backend="builtin")
    with pytest.raises(CheckpointError, match="--overwrite"):
        run(pair, full[0], "nvfp4_layer", options=options)


def test_texts_come_from_one_place(pair: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="one of the two"):
        run(pair, tmp_path / "out", "nvfp4_layer", prompts=PROMPTS, states=texts())
    with pytest.raises(ConfigError, match="one of the two"):
        run(pair, tmp_path / "out", "nvfp4_layer", states=None)


def test_unknown_backend_is_refused() -> None:
    with pytest.raises(ConfigError, match="modelopt"):
        QuantizeOptions(backend="model_opt")
