# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Quantized drafts: never accused when healthy, named and mended when not, weights kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tensorrt_llm_ext.checkpoints.loader import load_draft
from tensorrt_llm_ext.diagnostics.canary import CanaryOptions, TeacherStates, Verdict, run_canary
from tensorrt_llm_ext.diagnostics.canary.fix import write_fixed
from tensorrt_llm_ext.diagnostics.canary.opening import open_leniently, with_boundaries
from tensorrt_llm_ext.engine.loading import load_models
from tensorrt_llm_ext.engine.teacher_capture import states_from_prompts
from tensorrt_llm_ext.errors import UnsupportedError
from tensorrt_llm_ext.models.deepseek import DeepseekV3
from tensorrt_llm_ext.quantization.tensors import Nvfp4Tensor, quantize_fp8
from tests.diagnostics.canary.conftest import EXAMPLE, MAX_DRAFT_LEN, MAX_TOKENS
from tests.support.faults import FAULTS, Config, Tensors, plant, read_draft, write_draft

TARGET, NVFP4 = EXAMPLE / "target", EXAMPLE / "draft-nvfp4"
OPTIONS = CanaryOptions(max_draft_len=MAX_DRAFT_LEN, max_anchors=120, device="cpu")
BY_NAME = {fault.name: fault for fault in FAULTS}
MODULES = (
    "fc",
    "lm_head",
    *(f"midlayer.self_attn.{name}" for name in ("q_a_proj", "kv_a_proj_with_mqa", "q_b_proj")),
    *(f"midlayer.mlp.{name}" for name in ("gate_proj", "up_proj", "down_proj")),
)


def fp8(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    """The bf16 draft in per-tensor FP8, one scale for what engines fuse."""
    prefix = "midlayer." if "midlayer.mlp.gate_proj.weight" in tensors else "layers.0."
    tensors, scale = dict(tensors), None
    for module in (name.replace("midlayer.", prefix) for name in MODULES):
        weight = tensors[f"{module}.weight"]
        is_second = module.endswith(("kv_a_proj_with_mqa", "up_proj"))
        is_first = module.endswith(("q_a_proj", "gate_proj"))
        packed = quantize_fp8(weight, scale=scale if is_second else None)
        if is_first:  # twice the needed scale holds the neighbour as well
            packed = quantize_fp8(weight, scale=2 * packed.scale)
            scale = packed.scale
        tensors |= {name: tensor.clone() for name, tensor in packed.tensors(module).items()}
    return config | {"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8"}}, (
        tensors
    )


def permuted_head(config: Config, tensors: Tensors) -> None:
    order = torch.randperm(tensors["lm_head.weight"].shape[0], generator=torch.Generator())
    for name in ("lm_head.weight", "lm_head.weight_scale"):
        rows = tensors[name].view(torch.uint8)[order]
        tensors[name] = rows.view(tensors[name].dtype).clone()


def reordered(config: Config, tensors: Tensors) -> None:
    """fc's column blocks of captured layers 3, 1, 2, in codes and in scales."""
    for name in ("fc.weight", "fc.weight_scale"):
        chunks = tensors[name].view(torch.uint8).chunk(3, dim=1)
        moved = torch.cat([chunks[i] for i in (2, 0, 1)], dim=1)
        tensors[name] = moved.view(tensors[name].dtype)
    norms = [tensors[f"fc_norm.{i}.weight"] for i in (2, 0, 1)]
    tensors |= {f"fc_norm.{i}.weight": norm for i, norm in enumerate(norms)}


@pytest.mark.parametrize("kind", ["nvfp4", "fp8"])
def test_a_healthy_draft_is_not_accused(kind: str, tmp_path: Path, states: TeacherStates) -> None:
    folder = NVFP4
    if kind == "fp8":
        folder = write_draft(tmp_path / "fp8", *fp8(*read_draft(EXAMPLE / "draft")))
    report = run_canary(TARGET, folder, states=states, options=OPTIONS)
    assert report.verdict is Verdict.DECLARED_FITS
    assert report.problems == ()
    assert all(check.is_ok is not False for check in report.weight_checks)


def test_beside_a_quantized_target(prompts: tuple[tuple[int, ...], ...]) -> None:
    models = load_models(EXAMPLE / "target-nvfp4", device="cpu")
    assert isinstance(models.target, DeepseekV3)
    states = states_from_prompts(
        models.target,
        prompts,
        boundaries=range(2, 9),
        max_tokens=MAX_TOKENS // 2,
        max_draft_len=MAX_DRAFT_LEN,
        eos_token_ids=models.eos_token_ids,
    )
    options = replace(OPTIONS, max_anchors=60)
    report = run_canary(EXAMPLE / "target-nvfp4", NVFP4, states=states, options=options)
    assert report.verdict is Verdict.DECLARED_FITS


def test_a_wrong_config_is_named_and_the_weights_are_kept(
    tmp_path: Path, states: TeacherStates
) -> None:
    fault = BY_NAME["fc_norm"]
    folder = write_draft(tmp_path / "in", *plant(fault, *read_draft(NVFP4)))
    report = run_canary(TARGET, folder, states=states, options=OPTIONS, fix=tmp_path / "out")
    assert report.verdict is Verdict.OTHER_FITS
    assert report.best.names == fault.factors
    assert report.fixed is not None
    assert report.fixed.verdict is Verdict.DECLARED_FITS
    before, after = read_draft(folder)[1], read_draft(tmp_path / "out")[1]
    assert before.keys() == after.keys()
    assert all(torch.equal(_bytes(before[key]), _bytes(after[key])) for key in before)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().flatten().view(torch.uint8)


def test_a_packed_head_is_put_in_order(
    tmp_path: Path, states: TeacherStates, target: DeepseekV3
) -> None:
    config, tensors = read_draft(NVFP4)
    permuted_head(config, tensors)
    folder = write_draft(tmp_path / "in", config, tensors)
    report = run_canary(TARGET, folder, states=states, options=OPTIONS, fix=tmp_path / "out")
    assert report.verdict is Verdict.OTHER_FITS
    assert report.fixed is not None
    assert report.fixed.verdict is Verdict.DECLARED_FITS
    assert "lm_head.weight rewritten and quantized again" in report.fix_notes
    check_restored("lm_head", tmp_path / "out", target)


def test_packed_columns_are_put_in_order(tmp_path: Path, target: DeepseekV3) -> None:
    config, tensors = read_draft(NVFP4)
    reordered(config, tensors)
    opened = open_leniently(write_draft(tmp_path / "in", config, tensors), target.config)
    wanted = with_boundaries(opened.declared, (7, 3, 5))
    notes = write_fixed(opened, wanted, tmp_path / "out", target.config)
    assert "fc.weight rewritten and quantized again" in notes
    check_restored("fc", tmp_path / "out", target)


def check_restored(module: str, folder: Path, target: DeepseekV3) -> None:
    """The module's numbers and scales are those of the healthy draft, and it loads packed."""
    want = open_leniently(NVFP4, target.config).packed[module]
    got = open_leniently(folder, target.config).packed[module]
    assert isinstance(want, Nvfp4Tensor)
    assert isinstance(got, Nvfp4Tensor)
    assert torch.equal(want.global_scale, got.global_scale)
    assert torch.equal(_bytes(want.block_scale), _bytes(got.block_scale))
    assert torch.equal(want.dequantize(torch.float32), got.dequantize(torch.float32))
    load_draft(folder, target, quant_mode="packed")


def test_other_formats_are_refused_by_name(tmp_path: Path, target: DeepseekV3) -> None:
    config, tensors = read_draft(EXAMPLE / "draft")
    shape = tensors["fc.weight"].shape
    del tensors["fc.weight"]
    tensors["fc.weight_packed"] = torch.zeros(shape[0], shape[1] // 8, dtype=torch.int32)
    tensors["fc.weight_scale"] = torch.ones(shape[0], shape[1] // 32, dtype=torch.bfloat16)
    tensors["fc.weight_shape"] = torch.tensor(shape)
    folder = write_draft(tmp_path / "int4", config, tensors)
    with pytest.raises(UnsupportedError, match="INT4"):
        open_leniently(folder, target.config)
