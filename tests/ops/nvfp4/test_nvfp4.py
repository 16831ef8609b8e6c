# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Every NVFP4 kernel equals its reference; the reference is the format, by hand and by search."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch._subclasses.fake_tensor import FakeTensorMode

from tensorrt_llm_ext.errors import ShapeError
from tensorrt_llm_ext.ops.nvfp4 import (
    nvfp4_dequantize,
    nvfp4_fake_quantize,
    nvfp4_linear,
    nvfp4_quantize,
    torch_kernels,
)
from tensorrt_llm_ext.ops.nvfp4.cases import (
    CASES,
    DEQUANTIZE_CASES,
    FAKE_QUANTIZE_CASES,
    LINEAR_CASES,
    QUANTIZE_CASES,
)
from tensorrt_llm_ext.ops.nvfp4.format import E2M1_VALUES, global_scale_of
from tensorrt_llm_ext.ops.testing import OpCase
from tests.ops.kernel_params import DTYPES, check_kernel, check_reads_nothing, kernel_params

ACTIVATIONS = Path(__file__).parents[2] / "fixtures" / "nvfp4" / "activations.safetensors"
HALVES = [torch.bfloat16, torch.float16]
ONE = torch.tensor(1.0)
E4M3 = torch.float8_e4m3fn
KERNELS = ["reference", "torch"]


@pytest.mark.parametrize("dtype", [*DTYPES, *HALVES])
@pytest.mark.parametrize(("case", "kernel"), kernel_params(QUANTIZE_CASES))
def test_nvfp4_quantize(
    case: OpCase, kernel: str, dtype: torch.dtype, device: torch.device
) -> None:
    check_kernel(case, kernel, dtype, device)


@pytest.mark.parametrize("dtype", [*DTYPES, *HALVES])
@pytest.mark.parametrize(("case", "kernel"), kernel_params(DEQUANTIZE_CASES + FAKE_QUANTIZE_CASES))
def test_nvfp4_dequantize_and_fake_quantize_are_bit_equal(
    case: OpCase, kernel: str, dtype: torch.dtype, device: torch.device
) -> None:
    want = case.run(dtype, device, kernel="reference")["result 0"]
    got = case.run(dtype, device, kernel=kernel)["result 0"]
    assert got.dtype == dtype
    assert torch.equal(want, got)
    if case in DEQUANTIZE_CASES:
        assert torch.equal(want.signbit(), got.signbit())


@pytest.mark.parametrize("dtype", [*DTYPES, *HALVES])
@pytest.mark.parametrize(("case", "kernel"), kernel_params(LINEAR_CASES))
def test_nvfp4_linear(case: OpCase, kernel: str, dtype: torch.dtype, device: torch.device) -> None:
    check_kernel(case, kernel, dtype, device)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.op}-{case.name}")
def test_reads_nothing_on_the_host(case: OpCase) -> None:
    check_reads_nothing(case, torch.float32)


@pytest.mark.parametrize("kernel", KERNELS)
def test_weight_by_hand(kernel: str) -> None:
    # 6 becomes the largest code at scale 1; the midpoints go to the even code, up or down.
    values = [6.0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -0.25, -0.75, 0.0, -0.0, -1e-9, 9e-9]
    x = torch.tensor([[*values, -6.0, 0.2500001]])
    data, block_scale = nvfp4_quantize(x, ONE, kernel=kernel)
    assert block_scale.float().tolist() == [[1.0]]
    codes = [7, 0, 2, 2, 4, 4, 6, 6, 8, 10, 0, 0, 8, 0, 15, 1]
    assert data.tolist() == [[a | b << 4 for a, b in zip(codes[::2], codes[1::2], strict=True)]]
    back = nvfp4_dequantize(data, block_scale, ONE, torch.float32, kernel=kernel)
    assert back[0, :8].tolist() == [6.0, 0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0]


@pytest.mark.parametrize("kernel", KERNELS)
def test_scale_of_extreme_blocks(kernel: str) -> None:
    blocks = torch.stack([torch.full((16,), size) for size in (0.0, 1e-30, 6 * 448.0, 1e30)])
    data, block_scale = nvfp4_quantize(blocks, ONE, kernel=kernel)
    assert block_scale.float().flatten().tolist() == [1.0, 2.0**-9, 448.0, 448.0]
    assert data[:, 0].tolist() == [0, 0, 0x77, 0x77]
    data, block_scale = nvfp4_quantize(blocks, ONE, activation=True, kernel=kernel)
    assert block_scale.float().flatten().tolist() == [0.0, 0.0, 448.0, 448.0]
    assert data[:, 0].tolist() == [0, 0, 0x77, 0x77]


@given(
    st.lists(st.floats(-(2.0**127), 2.0**127, width=32), min_size=16, max_size=16),
    st.floats(0, 2.0**127, width=32),
    st.booleans(),
)
def test_any_block_is_the_references(values: list[float], amax: float, activation: bool) -> None:
    x = torch.tensor([values])
    scale = global_scale_of(torch.tensor(amax))
    want = nvfp4_quantize(x, scale, activation=activation, kernel="reference")
    got = nvfp4_quantize(x, scale, activation=activation, kernel="torch")
    assert torch.equal(want[0], got[0])
    assert torch.equal(want[1].view(torch.uint8), got[1].view(torch.uint8))
    if not activation or want[1].float().isfinite().all():
        dense = nvfp4_dequantize(*got, scale, torch.float32)
        assert torch.equal(nvfp4_fake_quantize(x, scale, activation=activation), dense)


@given(st.integers(0, 2**32 - 1), st.sampled_from([torch.float32, torch.bfloat16]))
def test_no_representable_number_is_nearer(seed: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(3, 32, generator=generator).to(dtype)
    scale = global_scale_of(x.abs().max())
    data, block_scale = nvfp4_quantize(x, scale)
    back = nvfp4_dequantize(data, block_scale, scale, torch.float64)
    step = (block_scale.double() * scale).repeat_interleave(16, dim=1)
    grid = torch.tensor(E2M1_VALUES, dtype=torch.float64)
    best = (x.double().abs()[..., None] - grid * step[..., None]).abs().amin(-1)
    assert torch.all((x.double() - back).abs() <= best + 1e-6 * step)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_quantized_numbers_are_fixed_points(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(64, 64, generator=generator)
    scale = global_scale_of(weight.abs().max())
    packed = nvfp4_quantize(weight, scale)
    again = nvfp4_quantize(nvfp4_dequantize(*packed, scale, dtype), scale)
    same = nvfp4_dequantize(*again, scale, torch.float32)
    first = nvfp4_dequantize(*packed, scale, torch.float32)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(same, first, rtol=tolerance, atol=0)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("case", ["float32", "bfloat16", "clipped", "float16"])
def test_activations_are_those_of_vllms_emulation(case: str, kernel: str) -> None:
    stored = load_file(ACTIVATIONS)
    x, scale = stored[f"{case}.input"], stored[f"{case}.input_scale"]
    data, block_scale = nvfp4_quantize(x, scale, activation=True, kernel=kernel)
    want_scale = stored[f"{case}.block_scale"]
    assert torch.equal(block_scale.view(torch.uint8), want_scale.view(torch.uint8))
    values = nvfp4_dequantize(data, torch.ones(48, 8).to(E4M3), ONE, torch.bfloat16)
    want = stored[f"{case}.values"]
    assert torch.equal(values, want)
    assert (want_scale.float() == 0).any()
    assert (want.abs() == 6).any()


def test_gaussian_error_is_the_published_one() -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(256, 512, generator=generator)
    scale = global_scale_of(weight.abs().max())
    back = nvfp4_dequantize(*nvfp4_quantize(weight, scale), scale, torch.float32)
    assert ((back - weight).norm() / weight.norm()).item() == pytest.approx(0.095, abs=0.002)


def test_w4a16_is_the_product_with_the_dequantized_weight() -> None:
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(40, 64, generator=generator)
    x = torch.randn(5, 64, generator=generator, dtype=torch.float64)
    scale = global_scale_of(weight.abs().max())
    packed = nvfp4_quantize(weight, scale)
    dense = nvfp4_dequantize(*packed, scale, torch.float64)
    torch.testing.assert_close(nvfp4_linear(x, *packed, scale), x @ dense.T)


def test_w4a4_is_the_product_of_both_dequantized() -> None:
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(40, 64, generator=generator)
    x = torch.randn(5, 64, generator=generator)
    scale, x_scale = global_scale_of(weight.abs().max()), global_scale_of(x.abs().max())
    packed, x_packed = nvfp4_quantize(weight, scale), nvfp4_quantize(x, x_scale, activation=True)
    dense = nvfp4_dequantize(*packed, scale, torch.float64)
    x_dense = nvfp4_dequantize(*x_packed, x_scale, torch.float64)
    got = nvfp4_linear(x, *packed, scale, x_scale)
    torch.testing.assert_close(got.double(), x_dense @ dense.T, rtol=1e-6, atol=1e-6)
    plain = nvfp4_linear(x, *packed, scale)
    assert not torch.allclose(got, plain, rtol=1e-3)  # activations really lose bits


def test_nan_activations_are_not_hidden() -> None:
    weight = torch.randn(8, 32, generator=torch.Generator().manual_seed(1))
    scale = global_scale_of(weight.abs().max())
    x = torch.ones(2, 32)
    x[1, 3] = float("nan")
    got = nvfp4_linear(x, *nvfp4_quantize(weight, scale), scale, ONE)
    assert got[0].isfinite().all()
    assert got[1].isnan().all()


def test_no_tile_holds_the_whole_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(48, 32, generator=torch.Generator().manual_seed(1))
    scale = global_scale_of(weight.abs().max())
    packed = nvfp4_quantize(weight, scale)
    largest = []
    plain = torch_kernels._values

    def recorded(data: torch.Tensor) -> torch.Tensor:
        values = plain(data)
        largest.append(values.numel())
        return values

    monkeypatch.setattr(torch_kernels, "_values", recorded)
    x = torch.ones(1, 32)
    nvfp4_linear(x, *packed, scale)
    nvfp4_linear(x, *packed, scale, ONE)
    assert max(largest) <= weight.numel() // 2
    monkeypatch.setattr(torch_kernels, "_CPU_TILE", 5 * 32)
    largest.clear()
    tiled = nvfp4_linear(x, *packed, scale)
    assert max(largest) == 5 * 32
    torch.testing.assert_close(tiled, x @ nvfp4_dequantize(*packed, scale, torch.float32).T)


def test_library_ops_are_the_public_ones_and_opaque_to_tracing() -> None:
    ops = torch.ops.trtllm_ext
    weight, x = torch.randn(6, 32), torch.randn(3, 32)
    scale = global_scale_of(weight.abs().max())
    data, block_scale = ops.nvfp4_quantize(weight, scale)
    want = nvfp4_linear(x, data, block_scale, scale, ONE)
    assert torch.equal(ops.nvfp4_linear(x, data, block_scale, scale, ONE), want)
    dense = ops.nvfp4_dequantize(data, block_scale, scale, torch.bfloat16)
    assert torch.equal(dense, nvfp4_dequantize(data, block_scale, scale, torch.bfloat16))
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(tensor) for tensor in (x, data, block_scale, scale)]
        got = ops.nvfp4_linear(*fakes)
        fake_data, fake_scale = ops.nvfp4_quantize(fakes[0], fakes[3], True)
        assert ops.nvfp4_fake_quantize(fakes[0], fakes[3]).shape == x.shape
        fake_dense = ops.nvfp4_dequantize(*fakes[1:], torch.float16)
    assert (got.shape, got.dtype) == ((3, 6), torch.float32)
    assert (fake_data.shape, fake_data.dtype) == ((3, 16), torch.uint8)
    assert (fake_scale.shape, fake_scale.dtype) == ((3, 2), E4M3)
    assert (fake_dense.shape, fake_dense.dtype) == ((6, 32), torch.float16)


@pytest.mark.parametrize(
    "name", ["nvfp4_quantize", "nvfp4_dequantize", "nvfp4_fake_quantize", "nvfp4_linear"]
)
def test_library_ops_pass_torchs_own_check(name: str) -> None:
    weight = torch.randn(6, 32)
    scale = global_scale_of(weight.abs().max())
    packed = nvfp4_quantize(weight, scale)
    arguments = {
        "nvfp4_quantize": (weight, scale),
        "nvfp4_fake_quantize": (weight, scale, True),
        "nvfp4_dequantize": (*packed, scale, torch.bfloat16),
        "nvfp4_linear": (torch.randn(3, 32), *packed, scale, ONE),
    }[name]
    op = getattr(torch.ops.trtllm_ext, name).default
    # "test_schema" multiplies inputs by zero, which torch cannot do in float8.
    torch.library.opcheck(op, arguments, test_utils=("test_faketensor",))


def test_quantize_refuses() -> None:
    with pytest.raises(ShapeError, match=r"x has 24 columns, expected a multiple of 16"):
        nvfp4_quantize(torch.zeros(2, 24), ONE)
    with pytest.raises(ShapeError, match=r"x has shape \[16\]"):
        nvfp4_quantize(torch.zeros(16), ONE)
    with pytest.raises(ShapeError, match=r"global_scale has dtype torch\.bfloat16"):
        nvfp4_quantize(torch.zeros(2, 16), ONE.bfloat16())
    with pytest.raises(ShapeError, match=r"global_scale has shape \[1\]"):
        nvfp4_quantize(torch.zeros(2, 16), ONE.view(1))
    with pytest.raises(ShapeError, match=r"x has dtype torch\.int64"):
        nvfp4_quantize(torch.zeros(2, 16).long(), ONE)


def test_linear_refuses() -> None:
    data, scales = torch.zeros(4, 16, dtype=torch.uint8), torch.zeros(4, 2).to(E4M3)
    x = torch.zeros(1, 32)
    with pytest.raises(ShapeError, match=r"x has shape \[1, 16\], expected \[any, 32\]"):
        nvfp4_linear(x[:, :16], data, scales, ONE)
    with pytest.raises(ShapeError, match=r"block_scale has shape .* \(not swizzled\)"):
        nvfp4_linear(x, data, torch.zeros(128, 4).to(E4M3), ONE)
    with pytest.raises(ShapeError, match=r"block_scale has dtype torch\.float32"):
        nvfp4_linear(x, data, scales.float(), ONE)
    with pytest.raises(ShapeError, match="two e2m1 codes per byte"):
        nvfp4_linear(x, data.float(), scales, ONE)
    with pytest.raises(ShapeError, match=r"input_scale has dtype torch\.float64"):
        nvfp4_linear(x, data, scales, ONE, ONE.double())
