# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Pearson's chi-square test."""

from __future__ import annotations

import torch


def p_value(counts: torch.Tensor, probs: torch.Tensor) -> float:
    """Returns the probability of counts at least this far from `probs`, which sum to one.

    Categories of probability zero must be empty; they carry no degree of freedom.
    """
    counts, probs = counts.double().flatten(), probs.double().flatten()
    possible = probs > 0
    if counts[~possible].any():
        return 0.0
    counts, probs = counts[possible], probs[possible]
    expected = counts.sum() * probs
    statistic = ((counts - expected) ** 2 / expected).sum()
    degrees = torch.tensor(counts.numel() - 1, dtype=torch.float64)
    return float(torch.special.gammaincc(degrees / 2, statistic / 2))
