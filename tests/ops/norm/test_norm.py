# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Every norm kernel equals its reference, and the reference equals torch's own norm."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from tensorrt_llm_ext.errors import ShapeError
from tensorrt_llm_ext.ops.norm import (
    add_rms_norm,
    draft_input_norm,
    draft_input_norm_nvfp4,
    fc_input_norm,
    rms_norm,
)
from tensorrt_llm_ext.ops.norm.cases import (
    ADD_RMS_CASES,
    CASES,
    DRAFT_INPUT_CASES,
    FC_INPUT_CASES,
    PAIR_CASES,
    RMS_CASES,
)
from tensorrt_llm_ext.ops.nvfp4 import nvfp4_dequantize
from tensorrt_llm_ext.ops.registry import registered_kernels
from tensorrt_llm_ext.ops.testing import OpCase, strided
from tests.ops.kernel_params import DTYPES, check_kernel, check_reads_nothing, kernel_params


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("case", "kernel"), kernel_params(RMS_CASES))
def test_rms_norm(case: OpCase, kernel: str, dtype: torch.dtype, device: torch.device) -> None:
    check_kernel(case, kernel, dtype, device)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("case", "kernel"), kernel_params(ADD_RMS_CASES))
def test_add_rms_norm(case: OpCase, kernel: str, dtype: torch.dtype, device: torch.device) -> None:
    check_kernel(case, kernel, dtype, device)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("case", "kernel"), kernel_params(DRAFT_INPUT_CASES))
def test_draft_input_norm(
    case: OpCase, kernel: str, dtype: torch.dtype, device: torch.device
) -> None:
    check_kernel(case, kernel, dtype, device)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("case", "kernel"), kernel_params(FC_INPUT_CASES))
def test_fc_input_norm(case: OpCase, kernel: str, dtype: torch.dtype, device: torch.device) -> None:
    check_kernel(case, kernel, dtype, device)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("case", "kernel"), kernel_params(PAIR_CASES))
def test_latent_norm_pair(
    case: OpCase, kernel: str, dtype: torch.dtype, device: torch.device
) -> None:
    check_kernel(case, kernel, dtype, device)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.op}-{case.name}")
def test_reads_nothing_on_the_host(case: OpCase) -> None:
    check_reads_nothing(case, torch.float32)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("case", "kernel"), kernel_params(CASES))
def test_half_precision(case: OpCase, kernel: str, dtype: torch.dtype) -> None:
    check_kernel(case, kernel, dtype, torch.device("cpu"))


@pytest.mark.parametrize("kernel", ["reference", "torch"])
def test_rms_norm_by_hand(kernel: str) -> None:
    x = torch.tensor([[3.0, 4.0]], dtype=torch.float64)  # mean square 12.5
    weight = torch.tensor([2.0, 10.0], dtype=torch.float64)
    got = rms_norm(x, weight, 0.0, kernel=kernel)
    torch.testing.assert_close(got, torch.tensor([[6.0, 40.0]]).double() / 12.5**0.5)
    # eps is added to the mean square, inside the root: 12.5 + 3.5 = 16.
    got = rms_norm(x, weight, 3.5, kernel=kernel)
    torch.testing.assert_close(got, torch.tensor([[1.5, 10.0]]).double())


@pytest.mark.parametrize("kernel", ["reference", "torch"])
def test_norms_are_torchs_norm(kernel: str) -> None:
    generator = torch.Generator().manual_seed(1)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    x, residual, table, weights = numbers(5, 12), numbers(5, 12), numbers(7, 12), numbers(3, 12)
    ids = torch.tensor([6, 0, 3, 3, 1])

    def norm(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(rows, (12,), weight, 1e-3)

    normed, total = add_rms_norm(x, residual, weights[0], 1e-3, kernel=kernel)
    torch.testing.assert_close(total, x + residual)
    torch.testing.assert_close(normed, norm(x + residual, weights[0]))

    got = draft_input_norm(ids, table, weights[1], x, weights[2], 1e-3, kernel=kernel)
    want = torch.cat([norm(table[ids], weights[1]), norm(x, weights[2])], dim=1)
    torch.testing.assert_close(got, want)

    captured = numbers(5, 36)
    got = fc_input_norm(captured, weights, 1e-3, kernel=kernel)
    chunks = zip(captured.chunk(3, dim=1), weights, strict=True)
    torch.testing.assert_close(got, torch.cat([norm(c, w) for c, w in chunks], dim=1))


def test_inputs_are_not_changed() -> None:
    x, residual, weight = torch.randn(3, 8), torch.randn(3, 8), torch.randn(8)
    before = [tensor.clone() for tensor in (x, residual, weight)]
    rms_norm(x, weight, 1e-6)
    add_rms_norm(x, residual, weight, 1e-6)
    for tensor, copy in zip((x, residual, weight), before, strict=True):
        assert torch.equal(tensor, copy)


def test_norms_refuse() -> None:
    x, weight = torch.zeros(2, 8), torch.zeros(8)
    with pytest.raises(ShapeError, match=r"rms_norm: weight has shape \[7\], expected \[8\]"):
        rms_norm(x, torch.zeros(7), 1e-6)
    with pytest.raises(ShapeError, match=r"weight has dtype torch\.float64, expected"):
        rms_norm(x, weight.double(), 1e-6)
    with pytest.raises(ShapeError, match=r"x has dtype torch\.int64, expected a floating-point"):
        rms_norm(x.long(), weight, 1e-6)
    with pytest.raises(ShapeError, match="add_rms_norm: residual has shape"):
        add_rms_norm(x, torch.zeros(3, 8), weight, 1e-6)
    with pytest.raises(ShapeError, match=r"captured has shape \[2, 8\], expected \[any, 12\]"):
        fc_input_norm(x, torch.zeros(3, 4), 1e-6)
    with pytest.raises(ShapeError, match=r"token_ids has dtype torch\.float32, expected int64"):
        draft_input_norm(torch.zeros(2), torch.zeros(5, 8), weight, x, weight, 1e-6)
    with pytest.raises(ShapeError, match="hidden has shape"):
        draft_input_norm(torch.zeros(3).long(), torch.zeros(5, 8), weight, x, weight, 1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [0, 1, 9])
@pytest.mark.parametrize("kernel", ["torch", "triton"])
def test_draft_input_norm_nvfp4(
    kernel: str, rows: int, dtype: torch.dtype, device: torch.device
) -> None:
    """Codes and scales are the reference's, but for the few that a last bit moved over a tie."""
    if kernel not in {k.name for k in registered_kernels("draft_input_norm_nvfp4")}:
        pytest.skip("needs Triton")
    generator = torch.Generator().manual_seed(rows)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(device, dtype)

    ids = torch.randint(0, 7, (rows,), generator=generator).to(device)
    hidden = strided(numbers(rows, 48) * 20)
    args = (ids, numbers(7, 48), numbers(48), hidden, numbers(48), 1e-6)
    scale = torch.tensor(0.004, device=device)
    want = draft_input_norm_nvfp4(*args, scale, kernel="reference")
    got = draft_input_norm_nvfp4(*args, scale, kernel=kernel)
    assert [(t.shape, t.dtype) for t in got] == [(t.shape, t.dtype) for t in want]
    for expected, found in zip(want, got, strict=True):
        bits = expected.view(torch.uint8), found.view(torch.uint8)
        assert float((bits[0] != bits[1]).float().mean().nan_to_num()) < 0.02
    dense = draft_input_norm(*args, kernel="reference").float()
    back = nvfp4_dequantize(*got, scale, torch.float32)
    assert float((back - dense).norm()) <= 0.15 * float(dense.norm())


def test_draft_input_norm_nvfp4_refuses() -> None:
    w, x = torch.ones(8), torch.zeros(2, 8)
    with pytest.raises(ShapeError, match="hidden_size is 8, expected a multiple of 16"):
        draft_input_norm_nvfp4(torch.zeros(2).long(), torch.zeros(5, 8), w, x, w, 1e-6, w[0])
