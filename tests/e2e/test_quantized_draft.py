# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""benchmarks/quantized_draft.py: its drafts load and run, and a Kimi-size one in 16 GiB."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.e2e.conftest import BENCHMARKS, load_script

NEEDED_DISK = 10 << 30
SOME_TIERS = ("layer", "layer_fc", "layer_fc_head", "layer_fc_fp8_head")


def test_tiers_of_a_small_draft_load_and_step(tmp_path: Path) -> None:
    script = load_script("quantized_draft")
    files = script.make_modules(tmp_path, "small")
    sizes = {}
    for tier in (script.FLOAT, *SOME_TIERS):
        sizes[tier] = script.make_tier(tmp_path / tier, "small", tier, files)
        packed = script.measure_one(tmp_path / tier, "small", "packed")
        assert packed["load_s"] > 0
        assert packed["step_s"] > 0
        bytes_per_weight = packed["packed_bytes_per_weight"]
        if tier == script.FLOAT:
            assert bytes_per_weight is None
        elif tier in ("layer", "layer_fc", "layer_fc_head"):
            assert bytes_per_weight <= 0.60
        else:
            assert bytes_per_weight <= 1.01
    assert sizes["layer"] > sizes["layer_fc"] > sizes["layer_fc_fp8_head"] > sizes["layer_fc_head"]
    assert sizes[script.FLOAT] > 2 * sizes["layer_fc_head"]
    # The dequantized draft computes what the packed one does.
    states = []
    for mode in ("packed", "dequantized"):
        torch.manual_seed(0)
        draft = script.open_draft(tmp_path / "layer_fc_head", "small", mode)
        captured = torch.randn(3, 3 * 256).bfloat16()
        states.append(draft.compute_logits(draft.combine(captured)).float())
    torch.testing.assert_close(*states, rtol=0.05, atol=0.05)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_kimi_size_draft_fits_in_16_gib(tmp_path: Path) -> None:
    if shutil.disk_usage(tmp_path).free < NEEDED_DISK:
        pytest.skip(f"needs {NEEDED_DISK >> 30} GiB of disk in {tmp_path}")
    script = str(BENCHMARKS / "quantized_draft.py")
    command = [sys.executable, script, "--json", "--tiers", "layer_fc_head", "--no-ratio"]
    result = subprocess.run(
        [*command, "--folder", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    (row,) = document["rows"]
    assert document["making"]["peak_gib"] < 16
    assert row["gb"] == pytest.approx(1.05, abs=0.03)
    for mode in ("packed", "dequantized"):
        assert row[mode]["peak_gib"] < 16
    assert row["packed"]["packed_bytes_per_weight"] <= 0.60
    # A step adds far less to the memory than one whole head (2.3 GB) would.
    assert row["packed"]["peak_gib"] < 2.5
