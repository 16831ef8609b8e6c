# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""NVFP4 here and in NVIDIA ModelOpt: the same bits, on stored vectors and side by side."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from tensorrt_llm_ext.quantization.siblings import quantize_siblings
from tensorrt_llm_ext.quantization.tensors import quantize_fp8, quantize_nvfp4

FOLDER = Path(__file__).parents[1] / "fixtures" / "nvfp4"
CASES = (
    "normal",
    "ties",
    "zero_blocks",
    "wide_range",
    "subnormal_scale",
    "vanishing_scale",
    "largest",
    "bfloat16",
    "bfloat16_ties",
    "float16",
    "float16_subnormal",
)
needs_modelopt = pytest.mark.skipif(
    importlib.util.find_spec("modelopt") is None,
    reason="needs NVIDIA ModelOpt (pip install 'tensorrt-llm-ext[quantize]')",
)


@functools.cache
def golden() -> dict[str, torch.Tensor]:
    return load_file(FOLDER / "golden.safetensors")


def assert_bits(want: torch.Tensor, got: torch.Tensor) -> None:
    assert (want.dtype, want.shape) == (got.dtype, got.shape)
    raw = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (want, got)]
    assert torch.equal(*raw)


def test_the_stored_vectors_are_the_cases_of_this_test_and_small() -> None:
    assert {name.partition(".")[0] for name in golden()} == {*CASES, "siblings"}
    assert (FOLDER / "golden.safetensors").stat().st_size < 200_000


@pytest.mark.parametrize("case", CASES)
def test_quantize_is_modelopts(case: str) -> None:
    stored = golden()
    weight = quantize_nvfp4(stored[f"{case}.input"])
    assert_bits(stored[f"{case}.weight_scale_2"], weight.global_scale)
    assert_bits(stored[f"{case}.weight_scale"], weight.block_scale)
    assert_bits(stored[f"{case}.weight"], weight.data)


@pytest.mark.parametrize("case", CASES)
def test_dequantize_is_modelopts(case: str) -> None:
    stored = golden()
    weight = quantize_nvfp4(stored[f"{case}.input"])
    # ModelOpt's table has a positive zero for code 8; a zero has no sign that could matter.
    assert torch.equal(stored[f"{case}.dense"], weight.dequantize(torch.float32))
    assert torch.equal(stored[f"{case}.dense_bfloat16"], weight.dequantize(torch.bfloat16))


def test_siblings_are_modelopts() -> None:
    stored = golden()
    weights = {name: stored[f"siblings.{name}.input"] for name in ("first", "second")}
    for name, weight in quantize_siblings(weights).items():
        assert_bits(stored["siblings.weight_scale_2"], weight.global_scale)
        assert_bits(stored[f"siblings.{name}.weight_scale"], weight.block_scale)
        assert_bits(stored[f"siblings.{name}.weight"], weight.data)


def test_the_vectors_reach_the_corners() -> None:
    """The vectors would be worth little if they had no ties, clipped scales or negative zeros."""
    stored = golden()
    scales = torch.cat([stored[f"{case}.weight_scale"].float().flatten() for case in CASES])
    assert {1.0, 448.0, 2.0**-9} <= set(scales.tolist())
    codes = torch.cat([stored[f"{case}.weight"].flatten() for case in CASES])
    codes = torch.cat((codes & 15, codes >> 4))
    assert set(codes.tolist()) == set(range(16))
    subnormal = torch.finfo(torch.float32).tiny
    assert 0 < stored["subnormal_scale.weight_scale_2"].item() < subnormal
    assert 0 < stored["vanishing_scale.weight_scale_2"].item() < 1e-43


@needs_modelopt
@settings(max_examples=200)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(-120, 120),
    st.integers(0, 60),
    st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
)
def test_side_by_side(seed: int, exponent: int, spread: int, dtype: torch.dtype) -> None:
    from modelopt.torch.quantization.qtensor import NVFP4QTensor

    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(5, 64, generator=generator, dtype=torch.float64)
    powers = torch.rand(5, 4, generator=generator, dtype=torch.float64) * -spread + exponent
    weight = (weight * (2.0**powers).repeat_interleave(16, dim=1)).to(dtype)
    if not weight.isfinite().all() or not quantize_scale_is_positive(weight):
        return
    packed, block_scale, global_scale = NVFP4QTensor.quantize(weight.clone(), 16)
    got = quantize_nvfp4(weight)
    assert_bits(global_scale, got.global_scale)
    assert_bits(block_scale, got.block_scale)
    assert_bits(packed._quantized_data, got.data)
    scales = {"scale": block_scale, "double_scale": global_scale, "block_sizes": {-1: 16}}
    for dense in (torch.float32, torch.bfloat16):
        assert torch.equal(packed.dequantize(dtype=dense, **scales), got.dequantize(dense))


def quantize_scale_is_positive(weight: torch.Tensor) -> bool:
    """ModelOpt divides by a global scale of zero; this package does not."""
    return bool(weight.abs().max().float() / 2688 > 0)


@needs_modelopt
def test_fp8_side_by_side() -> None:
    from modelopt.torch.export.quant_utils import to_quantized_weight

    for dtype in (torch.float32, torch.bfloat16):
        weight = torch.randn(64, 48, generator=torch.Generator().manual_seed(9)).to(dtype)
        got = quantize_fp8(weight)
        assert_bits(weight.abs().max().float() / 448, got.scale)
        assert_bits(to_quantized_weight(weight, got.scale, "fp8"), got.data)


@needs_modelopt
def test_the_stored_vectors_are_what_this_modelopt_writes() -> None:
    spec = importlib.util.spec_from_file_location("make_golden", FOLDER / "make_golden.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, tensor in module.golden().items():
        assert_bits(golden()[name], tensor)
