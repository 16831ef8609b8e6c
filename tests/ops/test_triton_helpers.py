# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The interpreter's roundings are torch's, bit for bit, over every kind of number."""

from __future__ import annotations

import pytest
import torch

from tensorrt_llm_ext import _triton

if not _triton.AVAILABLE:
    pytest.skip("needs Triton", allow_module_level=True)
if not (_triton.INTERPRETING or torch.cuda.is_available()):
    pytest.skip("needs a GPU or Triton's interpreter", allow_module_level=True)

from tensorrt_llm_ext._triton import tl, triton
from tensorrt_llm_ext.ops.triton_helpers import to_bf16, to_e4m3

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@triton.jit
def _e4m3_kernel(values, out, SIZE: tl.constexpr, INTERPRET: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(out + at, to_e4m3(tl.load(values + at), INTERPRET))


@triton.jit
def _bf16_kernel(values, out, SIZE: tl.constexpr, INTERPRET: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(out + at, to_bf16(tl.load(values + at), INTERPRET))


def numbers() -> torch.Tensor:
    """8,192 float32: every e4m3 number, all midpoints and their neighbours, tiny, huge, random."""
    exact = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    exact = exact[exact.isfinite()].sort().values
    middle = (exact[1:] + exact[:-1]) / 2
    around = [exact, middle, middle.nextafter(torch.tensor(1e9)), middle.nextafter(-exact.max())]
    special = torch.tensor([0.0, -0.0, 448.0, 464.0, 465.0, 1e30, -1e30, 2**-10, 2**-11, 1e-40])
    known = torch.cat([*around, special, torch.tensor([float("inf"), -float("inf")])])
    random = torch.randn(8192 - len(known), generator=torch.Generator().manual_seed(0))
    return torch.cat([known, random * torch.logspace(-4, 3, len(random))])


def test_e4m3_is_torch_with_saturation() -> None:
    values = numbers()
    got = torch.zeros(8192, dtype=torch.uint8, device=DEVICE)
    _e4m3_kernel[(1,)](values.to(DEVICE), got, SIZE=8192, INTERPRET=_triton.INTERPRETING)
    want = values.clamp(-448.0, 448.0).to(torch.float8_e4m3fn)
    assert torch.equal(got.cpu(), want.view(torch.uint8))


def test_e4m3_keeps_nan() -> None:
    got = torch.zeros(16, dtype=torch.uint8, device=DEVICE)
    values = torch.full((16,), float("nan"), device=DEVICE)
    _e4m3_kernel[(1,)](values, got, SIZE=16, INTERPRET=_triton.INTERPRETING)
    assert got.view(torch.float8_e4m3fn).float().isnan().all()


def test_bf16_is_torch() -> None:
    values = numbers()
    got = torch.zeros(8192, dtype=torch.bfloat16, device=DEVICE)
    _bf16_kernel[(1,)](values.to(DEVICE), got, SIZE=8192, INTERPRET=_triton.INTERPRETING)
    assert torch.equal(got.cpu(), values.bfloat16())
