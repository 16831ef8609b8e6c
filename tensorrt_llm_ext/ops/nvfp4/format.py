# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Constants of NVFP4 and the arithmetic of its global scale.

A weight is e2m1 codes, one e4m3 scale per 16 values along the last dimension, and one float32
scale for the whole tensor. The names are ModelOpt's: `weight` (codes), `weight_scale` (blocks) and
`weight_scale_2` (tensor); in this package `data`, `block_scale` and `global_scale`.
"""

from __future__ import annotations

import torch

BLOCK_SIZE = 16
E2M1_MAX = 6.0
E4M3_MAX = 448.0
# Smallest scale that a block of a weight gets: the smallest positive e4m3 number.
E4M3_TINY = 2.0**-9
# Values of codes 0..7; bit 3 of a code is the sign.
E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def global_scale_of(amax: torch.Tensor) -> torch.Tensor:
    """Returns the global scale that puts the largest magnitude at the end of both small ranges.

    It is `amax / (6 * 448)` in float32, as ModelOpt computes it for `weight_scale_2` and for
    `input_scale`. Where that is zero (a tensor of zeros, or of nothing above 1344 * 2^-149),
    ModelOpt divides by zero and writes NaN; here the scale is 1, and the codes come out as zeros.

    Args:
        amax: Any shape, float: largest magnitude.

    Returns:
        The shape of `amax`, float32.
    """
    scale = amax.float() / (E2M1_MAX * E4M3_MAX)
    return torch.where(scale == 0, 1.0, scale)
