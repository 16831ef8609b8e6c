# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""How weights lie in memory; products read some layouts faster than others."""

from __future__ import annotations

import torch
from torch import nn


def empty_parameter(
    shape: tuple[int, ...], device: torch.device, dtype: torch.dtype
) -> nn.Parameter:
    """Returns an uninitialised weight that never takes a gradient."""
    return nn.Parameter(torch.empty(shape, device=device, dtype=dtype), requires_grad=False)


def empty_matrix(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> nn.Parameter:
    """Returns an uninitialised [..., out_features, in_features] weight.

    On a CPU, a matrix with more outputs than inputs lies in memory by columns: with few rows of
    input, matmuls read long runs up to twice as fast as short ones. Its shape does not show this.
    Kernels of a GPU want rows, and would copy it at every call.
    """
    *_, out_features, in_features = shape
    if out_features < in_features or device.type != "cpu":
        return empty_parameter(shape, device, dtype)
    transposed = torch.empty((*shape[:-2], in_features, out_features), device=device, dtype=dtype)
    return nn.Parameter(transposed.mT, requires_grad=False)
