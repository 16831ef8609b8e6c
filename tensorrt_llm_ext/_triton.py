# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The only place that imports Triton.

Modules of kernels take `triton` and `tl` from here, and are themselves imported only when
`AVAILABLE`. Without a GPU, Triton's interpreter runs kernels on CPU tensors, slowly and for tests:
TRITON_INTERPRET=1 must be set before anything imports Triton.

The interpreter is wrong without a word for products and sums of bfloat16, for the rounding of
float32 to bfloat16 and for casts to e4m3. Kernels therefore compute in float32 and use the
functions of `ops.triton_helpers`, which are exact there and plain on a GPU.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any, Final

import torch

AVAILABLE: Final = importlib.util.find_spec("triton") is not None

triton: Any = importlib.import_module("triton") if AVAILABLE else None
tl: Any = importlib.import_module("triton.language") if AVAILABLE else None
INTERPRETING: Final = AVAILABLE and bool(triton.knobs.runtime.interpret)


def reason_against(tensor: torch.Tensor) -> str | None:
    """Returns why no Triton kernel can run on the device of a tensor, or None."""
    if not AVAILABLE:
        return "triton is not installed (pip install 'tensorrt-llm-ext[triton]')"
    if tensor.is_cuda:
        if INTERPRETING:
            return "TRITON_INTERPRET is set, so that kernels are interpreted on the CPU; unset it"
        return None
    if INTERPRETING:
        return None
    return "Triton needs a CUDA device; TRITON_INTERPRET=1 interprets kernels on the CPU, for tests"


def priority(value: int) -> int:
    """Returns the priority of a Triton kernel: under the interpreter it runs only by name."""
    return -1 if INTERPRETING else value


__all__ = ["AVAILABLE", "INTERPRETING", "priority", "reason_against", "tl", "triton"]
