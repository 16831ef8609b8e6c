# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Simultaneous confidence intervals of paired differences, clustered by text.

Anchors of one text are not independent, so texts are the units. Many settings are compared with
one, so the intervals hold together: their width is a quantile of the largest deviation over all
settings, drawn by Gaussian multipliers on the texts' influences (Chernozhukov, Chetverikov and
Kato, Annals of Statistics 41(6), 2013). With few texts the normal tail is too light: the quantile
is replaced by that of Student's t, with one degree of freedom less than texts, at the same tail.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

MIN_TEXTS = 6  # with fewer, nothing is said
_NUM_DRAWS = 20_000


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
    # How far each text moves each mean, [texts, settings].
    influence = (sums - means * counts.unsqueeze(1)) / counts.sum()
    num_texts = len(texts)
    errors = (influence.square().sum(dim=0) * (num_texts / (num_texts - 1))).sqrt()
    width = _critical_value(influence, confidence, seed) * errors
    return tuple(
        Difference(mean=float(m), low=float(m - w), high=float(m + w))
        for m, w in zip(means, width, strict=True)
    )


def _critical_value(influence: torch.Tensor, confidence: float, seed: int) -> float:
    """How many standard errors every interval must reach for all of them to hold."""
    norms = influence.norm(dim=0)
    varying = norms > 0
    if not bool(varying.any()):
        return 0.0
    generator = torch.Generator().manual_seed(seed)
    num_texts = influence.shape[0]
    draws = torch.randn((_NUM_DRAWS, num_texts), generator=generator, dtype=torch.float64)
    largest = (draws @ (influence[:, varying] / norms[varying])).abs().amax(dim=1)
    return _student(float(largest.quantile(confidence)), num_texts - 1)


def _student(z: float, degrees: int) -> float:
    """The value with the same tail under Student's t as `z` has under the normal distribution.

    Cornish-Fisher expansion (Abramowitz and Stegun, 26.7.5).
    """
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return sum(term / float(degrees) ** power for power, term in enumerate(terms))
