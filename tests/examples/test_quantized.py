# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The committed NVFP4 folders of tiny_kimi."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tensorrt_llm_ext.checkpoints.checks import run_checks
from tensorrt_llm_ext.checkpoints.checks.base import CheckContext, Status
from tensorrt_llm_ext.checkpoints.io import open_checkpoint
from tensorrt_llm_ext.checkpoints.normalize import open_draft, open_target
from tensorrt_llm_ext.checkpoints.quantized import module_formats
from tensorrt_llm_ext.engine.loading import load_models
from tensorrt_llm_ext.quantizing.acceptance import run_engine

TINY_KIMI = Path(__file__).parents[2] / "examples" / "tiny_kimi"
TARGET, DRAFT = TINY_KIMI / "target-nvfp4", TINY_KIMI / "draft-nvfp4"
FOLDERS = ("target", "draft", "target-nvfp4", "draft-nvfp4")


def stored(folder: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    entries = open_checkpoint(folder).entries
    return {name: (entry.dtype, entry.shape) for name, entry in entries.items()}


def test_all_weights_together_are_small() -> None:
    files = (file for name in FOLDERS for file in (TINY_KIMI / name).iterdir())
    assert sum(file.stat().st_size for file in files) <= 48 * 2**20


def test_target_has_the_layout_of_nvidias_kimi() -> None:
    formats = module_formats(stored(TARGET))
    packed = {name for name, form in formats.items() if form.kind != "float"}
    assert packed == {name for name in formats if ".mlp.experts." in name}
    assert len(packed) == 7 * 8 * 3
    assert all(formats[n].kind == "nvfp4" and "input_scale" in formats[n].scales for n in packed)
    quant = json.loads((TARGET / "hf_quant_config.json").read_text(encoding="utf-8"))
    exclude = quant["quantization"]["exclude_modules"]
    assert all(p.startswith(("language_model.", "vision_tower", "mm_projector")) for p in exclude)
    config = json.loads((TARGET / "config.json").read_text(encoding="utf-8"))
    assert config["quantization_config"]["ignore"] == exclude
    assert config["architectures"] == ["KimiK25ForConditionalGeneration"]


def test_float_tensors_are_the_float_targets() -> None:
    before, after = stored(TINY_KIMI / "target"), stored(TARGET)
    assert before.keys() <= after.keys()
    changed = {name for name, entry in before.items() if after[name] != entry}
    assert changed == {name for name in before if ".mlp.experts." in name}


def test_draft_passes_every_check_beside_the_target() -> None:
    findings = run_checks(CheckContext(draft=open_draft(DRAFT), target=open_target(TARGET)))
    assert not [f for f in findings if f.status is Status.ERROR]
    formats = module_formats(open_draft(DRAFT).stored)
    floats = {n for n, f in formats.items() if f.kind == "float" and len(f.shape) == 2}
    assert floats == {"layers.0.self_attn.kv_b_proj"}


@pytest.mark.parametrize("mode", ["dequantized", "w4a4"])
def test_the_pair_drafts_well(mode: str) -> None:
    models = load_models(TARGET, draft=DRAFT, dtype="float32", quant_mode=mode)
    lines = (TINY_KIMI / "heldout.jsonl").read_text(encoding="utf-8").splitlines()[:3]
    questions = [json.loads(line)["question"] for line in lines]
    assert models.tokenizer is not None
    prompts = [models.tokenizer.encode(f"Question: {q}\nAnswer:") for q in questions]
    assert models.draft is not None
    run = run_engine(
        models.target,
        models.draft,
        prompts,
        max_draft_len=3,
        max_tokens=48,
        eos_token_ids=models.eos_token_ids,
    )
    assert (run.pooled.acceptance_length or 0.0) > 2.8
