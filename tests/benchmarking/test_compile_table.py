# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Kernels compile for GPUs that are not here, as well as the committed table says."""

from __future__ import annotations

import importlib

import pytest

from tensorrt_llm_ext import _triton

if not _triton.AVAILABLE:
    pytest.skip("needs Triton", allow_module_level=True)

from tensorrt_llm_ext.benchmarking import compile_table
from tensorrt_llm_ext.benchmarking.compile_table import compile_all, kernel_modules, worse
from tensorrt_llm_ext.ops.compiling import ARCHITECTURES

ROW = {"registers": 64, "spill_bytes": 0, "shared_bytes": 1024, "wgmma": 4, "tcgen05": 0}
ROW |= {"mma_sync": 0, "tma": 0, "cp_async": 9}


def baseline() -> dict[str, dict]:
    if _triton.triton.__version__ != "3.7.1":
        pytest.skip(f"the table is of Triton 3.7.1, and {_triton.triton.__version__} is installed")
    return compile_table.read_baseline()


def cases() -> list[str]:
    return [
        f"{case.name} {name}"
        for module in kernel_modules()
        for case in getattr(importlib.import_module(module), "COMPILE_CASES", ())
        for name in case.architectures
    ]


def test_every_configuration_is_in_the_table_once() -> None:
    names = cases()
    assert len(names) == len(set(names))
    assert set(names) == set(baseline())
    families = {"mla_decode", "mla_prefill", "mla_rope_append", "draft_input_norm", "moe_route"}
    families |= {"latent_norm_pair", "nvfp4_quantize", "nvfp4_linear", "moe_gate_up", "moe_down"}
    families |= {"lm_head_argmax", "sample_draw", "verify_greedy"}
    assert families <= {name.partition("/")[0] for name in names}


def test_the_bars_of_the_table() -> None:
    rows = baseline()
    for name, unit in (("sm_90a", "wgmma"), ("sm_100a", "tcgen05"), ("sm_103a", "tcgen05")):
        wide, narrow = (
            rows[f"mla_decode/rows64_bf16 {name}"],
            rows[f"mla_decode/rows16_bf16 {name}"],
        )
        assert wide["spill_bytes"] <= 64
        assert wide[unit] > 0
        assert narrow["spill_bytes"] == 0


SMALL = ["mla_rope_append/8_heads_fp8", "nvfp4_linear/rows16_split"]


@pytest.mark.parametrize("only", SMALL)
def test_a_few_compile_as_the_table_says(only: str) -> None:
    known = baseline()
    rows = compile_all(only, ("sm_90a", "sm_100a"))
    assert rows
    assert not worse(rows, known)


@pytest.mark.slow
def test_all_compile_as_the_table_says() -> None:
    known = baseline()
    rows = compile_all("", tuple(ARCHITECTURES))
    assert set(rows) == set(known)
    assert not worse(rows, known)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"spill_bytes": 8}, "k sm_90a: spill_bytes 0 -> 8"),
        ({"registers": 80}, "k sm_90a: registers 64 -> 80"),
        ({"wgmma": 0}, "k sm_90a: uses wgmma no more"),
        ({"error": "CompilationError: no"}, "k sm_90a: CompilationError: no"),
        ({}, None),
        ({"registers": 32, "shared_bytes": 0}, None),
    ],
)
def test_what_counts_as_worse(change: dict, message: str | None) -> None:
    found = worse({"k sm_90a": {**ROW, **change}}, {"k sm_90a": ROW})
    assert found == ([] if message is None else [message])


def test_a_new_row_is_not_passed_over() -> None:
    assert "not in the baseline" in worse({"new sm_90a": ROW}, {})[0]
