# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Pearson's chi-square test, without scipy."""

from __future__ import annotations

import torch


def chi_square_p(counts: torch.Tensor, probs: torch.Tensor) -> float:
    """P-value of counts under a fully specified distribution.

    Cells that expect fewer than five are pooled; a count where the probability is zero gives 0.

    Args:
        counts: [cells] int64.
        probs: [cells] float64, adding up to one.
    """
    expected = probs * counts.sum()
    if bool((counts[probs == 0] > 0).any()):
        return 0.0
    small = expected < 5
    observed = torch.cat((counts[~small], counts[small].sum().view(1))).double()
    expected = torch.cat((expected[~small], expected[small].sum().view(1)))
    used = expected > 0
    observed, expected = observed[used], expected[used]
    statistic = ((observed - expected) ** 2 / expected).sum()
    degrees = torch.tensor((len(expected) - 1) / 2, dtype=torch.float64)
    if degrees == 0:
        return 1.0
    return float(torch.special.gammaincc(degrees, statistic / 2))
