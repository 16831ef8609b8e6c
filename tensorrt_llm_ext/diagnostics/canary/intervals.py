# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Simultaneous confidence intervals of paired differences, clustered by text.

Anchors of one text are not independent, so whole texts are resampled. Many settings are compared
with one, so the intervals hold together: their width is the quantile of the largest studentized
deviation over all settings (max-t bootstrap; Romano and Wolf, Econometrica 73(4), 2005).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

MIN_TEXTS = 4  # with fewer, resampling says nothing
_NUM_RESAMPLES = 4000
_CHUNK = 500


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """A mean difference with its simultaneous interval.

    Attributes:
        mean: Mean over all anchors.
        low, high: Bounds; infinite when there are too few texts to say anything.
    """

    mean: float
    low: float
    high: float


def paired_differences(
    base: Sequence[torch.Tensor],
    others: Sequence[Sequence[torch.Tensor]],
    *,
    confidence: float = 0.95,
    seed: int = 0,
) -> tuple[Difference, ...]:
    """Compares several measurements with one, anchor by anchor.

    Args:
        base: Per text [anchors], the declared setting's values.
        others: The same of each other setting, at the same anchors.
        confidence: That all intervals hold at once.
        seed: Of the resampling.

    Returns:
        One difference per setting: its mean minus that of `base`.
    """
    if not others:
        return ()
    texts = [index for index, part in enumerate(base) if part.numel()]
    counts = torch.tensor([float(base[i].numel()) for i in texts], dtype=torch.float64)
    sums = torch.stack(
        [
            torch.stack([(other[i] - base[i]).sum() for i in texts]).to(torch.float64)
            for other in others
        ],
        dim=1,
    )  # [texts, settings]
    means = sums.sum(dim=0) / counts.sum()
    if len(texts) < MIN_TEXTS:
        inf = float("inf")
        return tuple(Difference(mean=float(m), low=-inf, high=inf) for m in means)
    errors = _standard_errors(sums, counts.unsqueeze(0), means.unsqueeze(0))[0]
    width = _max_t_quantile(sums, counts, means, errors, confidence, seed) * errors
    return tuple(
        Difference(mean=float(m), low=float(m - w), high=float(m + w))
        for m, w in zip(means, width, strict=True)
    )


def _standard_errors(sums: torch.Tensor, counts: torch.Tensor, means: torch.Tensor) -> torch.Tensor:
    """Cluster-robust errors of ratios of sums.

    Args:
        sums: [texts, settings] or [resamples, texts, settings].
        counts: [resamples, texts].
        means: [resamples, settings].

    Returns:
        [resamples, settings].
    """
    if sums.dim() == 2:
        sums = sums.unsqueeze(0)
    num_texts = counts.shape[1]
    influence = sums - means.unsqueeze(1) * counts.unsqueeze(2)
    total = counts.sum(dim=1, keepdim=True)
    variance = influence.square().sum(dim=1) / total.square()
    return (variance * (num_texts / (num_texts - 1))).sqrt()


def _max_t_quantile(
    sums: torch.Tensor,
    counts: torch.Tensor,
    means: torch.Tensor,
    errors: torch.Tensor,
    confidence: float,
    seed: int,
) -> float:
    """Quantile of max over settings of |resampled mean - mean| / resampled error."""
    generator = torch.Generator().manual_seed(seed)
    num_texts = counts.numel()
    varies = errors > 0
    if not bool(varies.any()):
        return 0.0
    sums, means = sums[:, varies], means[varies]
    largest = []
    for _ in range(_NUM_RESAMPLES // _CHUNK):
        picks = torch.randint(num_texts, (_CHUNK, num_texts), generator=generator)
        new_sums, new_counts = sums[picks], counts[picks]
        new_means = new_sums.sum(dim=1) / new_counts.sum(dim=1, keepdim=True)
        new_errors = _standard_errors(new_sums, new_counts, new_means)
        # A resample of one text only has no error: it says nothing about the spread.
        deviation = (new_means - means).abs() / new_errors.clamp_min(1e-12)
        deviation[new_errors <= 1e-12] = 0.0
        largest.append(deviation.amax(dim=1))
    return float(torch.cat(largest).quantile(confidence))
