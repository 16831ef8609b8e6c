# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Quantizing weights: what is stored, what is refused, and scales that siblings share."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tensorrt_llm_ext.errors import CheckpointError, ShapeError
from tensorrt_llm_ext.quantization.siblings import (
    quantize_siblings,
    share_fp8_scales,
    share_nvfp4_scales,
    sibling_groups,
)
from tensorrt_llm_ext.quantization.tensors import Nvfp4Tensor, quantize_fp8, quantize_nvfp4

INF, NAN = float("inf"), float("nan")
DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64]


def numbers(*shape: int, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def scalar(value: float) -> torch.Tensor:
    return torch.tensor(value)


def same(first: Nvfp4Tensor, second: Nvfp4Tensor) -> bool:
    pairs = [(first.tensors("m")[name], second.tensors("m")[name]) for name in first.tensors("m")]
    raw = [[tensor.reshape(-1).view(torch.uint8) for tensor in pair] for pair in pairs]
    return all(torch.equal(*pair) for pair in raw)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_same_numbers_in_any_dtype_give_the_same_bits(dtype: torch.dtype) -> None:
    weight = numbers(8, 64).bfloat16().clamp(-4, 4).to(dtype)
    assert same(quantize_nvfp4(weight), quantize_nvfp4(weight.float()))


def test_float64_is_rounded_to_float32_first() -> None:
    # 0.25 + 2^-40 is above the midpoint in float64, and on it in float32.
    weight = torch.full((1, 16), 0.25 + 2.0**-40, dtype=torch.float64)
    weight[0, 0] = 6.0
    assert quantize_nvfp4(weight).dequantize(torch.float64)[0, 1] == 0.0


@pytest.mark.parametrize("quantize", [quantize_nvfp4, quantize_fp8])
@pytest.mark.parametrize("bad", [INF, -INF, NAN])
def test_what_is_not_finite_is_refused_with_its_row(quantize: object, bad: float) -> None:
    weight = numbers(5, 32)
    weight[3, 7] = bad
    with pytest.raises(CheckpointError, match=r"fc cannot be quantized: .* first in row 3"):
        quantize(weight, name="fc")


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (numbers(4, 24), "multiple of 16"),
        (numbers(4, 8), "multiple of 16"),
        (numbers(2, 4, 16), "Quantize stacked experts one by one"),
        (numbers(16), "expected a float matrix"),
        (torch.zeros(0, 16), "expected a float matrix"),
        (torch.zeros(4, 16, dtype=torch.int8), "expected a float matrix"),
        (torch.zeros(4, 16).to(torch.float8_e4m3fn), "expected a float matrix"),
    ],
)
def test_shapes_and_dtypes_that_nvfp4_cannot_hold_are_refused(
    weight: torch.Tensor, message: str
) -> None:
    with pytest.raises(ShapeError, match=message):
        quantize_nvfp4(weight)


def test_a_weight_of_zeros_is_zeros() -> None:
    """ModelOpt writes NaN scales for it; here every scale is a number."""
    weight = quantize_nvfp4(torch.zeros(3, 32))
    assert weight.global_scale == 1.0
    assert torch.equal(weight.block_scale.float(), torch.ones(3, 2))
    assert torch.equal(weight.dequantize(torch.float32), torch.zeros(3, 32))
    tiny = quantize_nvfp4(torch.full((3, 32), 1e-43))
    assert torch.equal(tiny.dequantize(torch.float32), torch.zeros(3, 32))
    assert torch.equal(
        quantize_fp8(torch.zeros(3, 32)).dequantize(torch.float32), torch.zeros(3, 32)
    )


def test_bytes_per_weight() -> None:
    weight = numbers(128, 256)
    assert quantize_nvfp4(weight, input_scale=scalar(1.0)).nbytes == 128 * 256 * 0.5625 + 8
    assert quantize_nvfp4(weight).nbytes / weight.numel() <= 0.60
    assert quantize_fp8(weight).nbytes == weight.numel() + 4


def test_names_are_modelopts() -> None:
    stored = quantize_nvfp4(numbers(4, 32), input_scale=scalar(0.5)).tensors("layers.0.mlp.up_proj")
    described = {name: (value.dtype, tuple(value.shape)) for name, value in stored.items()}
    assert described == {
        "layers.0.mlp.up_proj.weight": (torch.uint8, (4, 16)),
        "layers.0.mlp.up_proj.weight_scale": (torch.float8_e4m3fn, (4, 2)),
        "layers.0.mlp.up_proj.weight_scale_2": (torch.float32, ()),
        "layers.0.mlp.up_proj.input_scale": (torch.float32, ()),
    }
    assert set(quantize_fp8(numbers(4, 8)).tensors("fc")) == {"fc.weight", "fc.weight_scale"}


@pytest.mark.parametrize("dtype", DTYPES)
def test_fp8_error_is_that_of_three_mantissa_bits(dtype: torch.dtype) -> None:
    weight = numbers(32, 32).to(dtype)
    back = quantize_fp8(weight).dequantize(torch.float64)
    big = weight.double().abs() > 0.05
    assert ((back - weight).abs() / weight.abs())[big].max() < 2.0**-4 + 2.0**-7
    assert back.abs().max() == pytest.approx(weight.double().abs().max().item(), rel=1e-2)


def test_sibling_groups() -> None:
    attention, mlp = "layers.0.self_attn", "layers.0.mlp"
    modules = [
        f"{attention}.q_a_proj",
        f"{attention}.kv_a_proj_with_mqa",
        f"{attention}.o_proj",
        f"{mlp}.gate_proj",
        f"{mlp}.up_proj",
        "layers.1.self_attn.q_proj",
        "layers.1.self_attn.kv_a_proj_with_mqa",
        "layers.1.mlp.gate_proj",
        "fc",
    ]
    assert sibling_groups(modules) == (
        (f"{attention}.q_a_proj", f"{attention}.kv_a_proj_with_mqa"),
        (f"{mlp}.gate_proj", f"{mlp}.up_proj"),
        ("layers.1.self_attn.q_proj", "layers.1.self_attn.kv_a_proj_with_mqa"),
    )


@given(st.integers(0, 2**16), st.sampled_from([1e-3, 0.3, 1.0, 50.0]))
def test_siblings_share_the_scale_of_all_their_rows(seed: int, ratio: float) -> None:
    first, second = numbers(4, 32, seed=seed), numbers(6, 32, seed=seed + 1, scale=ratio)
    scale = scalar(0.25)
    parts = quantize_siblings({"gate": first, "up": second}, input_scale=scale)
    whole = quantize_nvfp4(torch.cat((first, second)), input_scale=scale)
    for name in ("data", "block_scale"):
        rows = [getattr(parts[part], name).view(torch.uint8) for part in ("gate", "up")]
        assert torch.equal(torch.cat(rows), getattr(whole, name).view(torch.uint8))
    assert all(torch.equal(part.global_scale, whole.global_scale) for part in parts.values())
    assert all(part.input_scale is scale for part in parts.values())


def test_equal_scales_change_nothing() -> None:
    parts = quantize_siblings({"a": numbers(4, 32), "b": numbers(4, 32, seed=1)})
    for before, after in zip(parts.values(), share_nvfp4_scales(list(parts.values())), strict=True):
        assert after.data is before.data
        assert after.block_scale is before.block_scale


def test_the_smaller_scale_is_raised_and_only_that_part_changes() -> None:
    large = quantize_nvfp4(numbers(4, 32), input_scale=scalar(0.5))
    small = quantize_nvfp4(numbers(4, 32, seed=1, scale=0.1), input_scale=scalar(0.75))
    first, second = share_nvfp4_scales([small, large])
    assert torch.equal(first.global_scale, large.global_scale)
    assert second.data is large.data
    assert first.input_scale == second.input_scale == 0.75
    want = quantize_nvfp4(small.dequantize(torch.float32), global_scale=large.global_scale)
    assert same(first, want.with_input_scale(scalar(0.75)))
    error = (first.dequantize(torch.float32) - small.dequantize(torch.float32)).norm()
    assert error / small.dequantize(torch.float32).norm() < 0.07


def test_a_power_of_two_between_scales_loses_nothing() -> None:
    part = quantize_nvfp4(numbers(4, 32))
    doubled = quantize_nvfp4(2 * numbers(4, 32))
    first, _ = share_nvfp4_scales([part, doubled])
    assert torch.equal(first.dequantize(torch.float32), part.dequantize(torch.float32))


def test_an_input_scale_that_one_part_lacks_is_dropped() -> None:
    parts = quantize_siblings({"a": numbers(4, 32), "b": numbers(4, 32, seed=1)})
    a, b = parts["a"].with_input_scale(scalar(1.0)), parts["b"]
    assert [part.input_scale for part in share_nvfp4_scales([a, b])] == [None, None]


def test_fp8_siblings_share_scales() -> None:
    large = quantize_fp8(numbers(4, 32), input_scale=scalar(0.5))
    small = quantize_fp8(numbers(4, 32, seed=1, scale=0.1), input_scale=scalar(0.25))
    first, second = share_fp8_scales([small, large])
    assert second.data is large.data
    assert first.scale == second.scale == large.scale
    assert first.input_scale == 0.5
    error = (first.dequantize(torch.float32) - small.dequantize(torch.float32)).norm()
    assert error / small.dequantize(torch.float32).norm() < 0.05


def test_siblings_of_other_widths_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"in_features \[32, 16\]"):
        share_nvfp4_scales([quantize_nvfp4(numbers(4, 32)), quantize_nvfp4(numbers(4, 16))])


def test_moving_keeps_every_bit() -> None:
    weight = quantize_nvfp4(numbers(4, 32), input_scale=scalar(1.0))
    assert same(weight, weight.to(torch.device("cpu")))
    fp8 = quantize_fp8(numbers(4, 32))
    assert torch.equal(
        fp8.to(torch.device("cpu")).dequantize(torch.float32), fp8.dequantize(torch.float32)
    )
