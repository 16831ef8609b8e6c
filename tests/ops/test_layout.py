# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import pytest
import torch

from tensorrt_llm_ext.ops.layout import empty_matrix


@pytest.mark.parametrize("shape", [(64, 16), (16, 64), (3, 64, 16)])
def test_only_a_cpu_has_columns(shape: tuple[int, ...]) -> None:
    """Kernels of a GPU would copy a matrix that lies by columns, at every call."""
    assert empty_matrix(shape, torch.device("meta"), torch.float32).is_contiguous()
    here = empty_matrix(shape, torch.device("cpu"), torch.float32)
    assert here.shape == shape
    assert here.is_contiguous() == (shape[-2] < shape[-1])
