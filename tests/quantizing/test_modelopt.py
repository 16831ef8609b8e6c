# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""With ModelOpt installed: its export is what the built-in quantizer writes."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tensorrt_llm_ext.engine.teacher_files import save_states
from tensorrt_llm_ext.errors import UnsupportedError
from tensorrt_llm_ext.quantizing import modelopt_backend
from tensorrt_llm_ext.quantizing.distill import DistillOptions
from tensorrt_llm_ext.quantizing.job import QuantizeOptions
from tensorrt_llm_ext.quantizing.report import QuantizeReport
from tensorrt_llm_ext.quantizing.runner import quantize_draft
from tests.support.quantizing import texts

needs_modelopt = pytest.mark.skipif(
    not modelopt_backend.is_installed(), reason="needs nvidia-modelopt and transformers"
)


def run(pair: tuple[Path, Path], out: Path, recipe: str, backend: str) -> QuantizeReport:
    options = QuantizeOptions(
        max_draft_len=2,
        backend=backend,
        distill=DistillOptions(seconds=60, max_updates=4, learning_rate=5e-4),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ModelOpt's own
        return quantize_draft(
            pair[1], out, recipe=recipe, target=pair[0], states=texts((30, 28)), options=options
        )


@needs_modelopt
@pytest.mark.parametrize(
    "recipe",
    [
        "nvfp4_layer",
        "nvfp4_layer_fc_head",
        "nvfp4_layer_fc_fp8_head",
        "w4a16_nvfp4_layer_fc_head",
        "fp8_layer_fc_head",
    ],
)
def test_both_quantizers_write_the_same_bits(
    pair: tuple[Path, Path], tmp_path: Path, recipe: str
) -> None:
    report = run(pair, tmp_path / "modelopt", recipe, "modelopt")
    other = run(pair, tmp_path / "builtin", recipe, "builtin")
    assert report.quantizer.startswith("modelopt 0.")
    ours, theirs = (load_file(tmp_path / n / "model.safetensors") for n in ("builtin", "modelopt"))
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert tensor.dtype == theirs[name].dtype, name
        assert torch.equal(tensor.float(), theirs[name].float()), name
    assert (report.algo, report.exclude, report.formats) == (
        other.algo,
        other.exclude,
        other.formats,
    )


@needs_modelopt
def test_qad_through_modelopt(pair: tuple[Path, Path], tmp_path: Path) -> None:
    report = run(pair, tmp_path / "qad", "qad/nvfp4_layer_fc_head", "modelopt")
    start = run(pair, tmp_path / "ptq", "nvfp4_layer_fc_head", "modelopt")
    assert report.distillation is not None
    assert report.distillation.is_kept
    assert report.agreement["W4A4"].steps[0].kl < start.agreement["W4A4"].steps[0].kl
    assert not report.errors


@needs_modelopt
def test_what_modelopt_cannot_load_is_said(pair: tuple[Path, Path], tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text("metadata: {recipe_type: ptq, author: me}\nquantize: {}\n", encoding="utf-8")
    with pytest.raises(UnsupportedError, match="cannot load the recipe"):
        run(pair, tmp_path / "out", str(path), "modelopt")


@needs_modelopt
def test_json_is_all_that_is_printed(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """ModelOpt and what it imports talk on the standard output."""
    save_states(texts((14, 12)), tmp_path / "states.safetensors")
    words = ["quantize", pair[1], tmp_path / "out", "--target", pair[0], "--max-draft-len", 2]
    words += ["--states", tmp_path / "states.safetensors", "--backend", "modelopt", "--json"]
    command = [sys.executable, "-m", "tensorrt_llm_ext", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout)["quantizer"].startswith("modelopt 0.")


def test_without_modelopt_the_error_says_what_to_do(
    pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modelopt_backend, "is_installed", lambda: False)
    with pytest.raises(UnsupportedError, match="--backend builtin"):
        run(pair, tmp_path / "out", "nvfp4_layer", "modelopt")
    assert run(pair, tmp_path / "out", "nvfp4_layer", "auto").quantizer.startswith(
        "tensorrt_llm_ext"
    )
