# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The Triton kernels of NVFP4 on any block, with splits over columns, on strided rows."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tensorrt_llm_ext import _triton

if not _triton.AVAILABLE:
    pytest.skip("needs Triton", allow_module_level=True)
if not (_triton.INTERPRETING or torch.cuda.is_available()):
    pytest.skip("needs a GPU or Triton's interpreter", allow_module_level=True)

from tensorrt_llm_ext.errors import KernelNotFoundError
from tensorrt_llm_ext.ops.nvfp4 import nvfp4_linear, nvfp4_quantize, triton_kernels
from tensorrt_llm_ext.ops.nvfp4.format import global_scale_of
from tensorrt_llm_ext.ops.testing import assert_close, strided

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@given(
    st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=16, max_size=16),
    st.floats(0, 2.0**100, width=32),
    st.booleans(),
)
def test_any_block_is_the_references(values: list[float], amax: float, activation: bool) -> None:
    x = torch.tensor([values])
    scale = global_scale_of(torch.tensor(amax))
    want = nvfp4_quantize(x, scale, activation=activation, kernel="reference")
    on = x.to(DEVICE), scale.to(DEVICE)
    got = nvfp4_quantize(*on, activation=activation, kernel="triton")
    assert torch.equal(want[1].view(torch.uint8), got[1].view(torch.uint8).cpu())
    assert torch.equal(want[0], got[0].cpu())


def packed(rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows)
    weight = (torch.randn(rows, columns, generator=generator) * columns**-0.5).to(DEVICE)
    scale = global_scale_of(weight.abs().max())
    return (*nvfp4_quantize(weight, scale), scale)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("rows", "columns", "size"), [(3, 40, 2304), (16, 33, 2048), (70, 65, 80)])
def test_linear(rows: int, columns: int, size: int, dtype: torch.dtype) -> None:
    """Wide weights are split where the grid is small; the splits do not fill the last one."""
    weight = packed(columns, size)
    generator = torch.Generator().manual_seed(1)
    x = strided(torch.randn(rows, size, generator=generator).to(DEVICE, dtype))
    tile = triton_kernels._tile(rows)
    programs = -(-columns // tile["BLOCK_N"]) * -(-rows // tile["BLOCK_M"])
    splits, per_split = triton_kernels._splits(programs, size, tile["BLOCK_K"], 4)
    assert (splits > 1) == (size > 2000)
    assert splits * per_split >= size
    want = nvfp4_linear(x, *weight, kernel="reference")
    assert_close("linear", want, nvfp4_linear(x, *weight, kernel="triton"), op="nvfp4_linear")


def test_splits_cover_every_width() -> None:
    for size in range(16, 16384, 272):
        for programs in (1, 7, 66, 300):
            splits, per_split = triton_kernels._splits(programs, size, 256, 132)
            assert splits * per_split >= size > (splits - 1) * per_split


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    weight = packed(48, 256)
    x = torch.randn(16, 256, generator=torch.Generator().manual_seed(2)).to(DEVICE, torch.bfloat16)
    together = nvfp4_linear(x, *weight, kernel="triton")
    for row in (0, 7, 15):
        alone = nvfp4_linear(x[row : row + 1], *weight, kernel="triton")
        assert torch.equal(alone, together[row : row + 1])


def test_many_rows_are_left_to_the_unpacked_weight() -> None:
    x = torch.zeros(257, 32, dtype=torch.bfloat16, device=DEVICE)
    with pytest.raises(KernelNotFoundError, match="better unpacked once"):
        nvfp4_linear(x, *packed(8, 32), kernel="triton")
