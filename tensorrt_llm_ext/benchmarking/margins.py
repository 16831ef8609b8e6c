# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Where two runs part, and whether rounding alone can explain it.

The same function evaluated for other batches and query lengths rounds differently. Where two tokens
are nearly tied, that may decide. A divergence counts as a near-tie when the *margin* at its first
differing position, recomputed by the target alone from the common prefix, is within the tolerance
of the dtype.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch

from tensorrt_llm_ext.benchmarking.runs import Workload
from tensorrt_llm_ext.configs.sampling import SamplingParams
from tensorrt_llm_ext.engine.core import EngineCore
from tensorrt_llm_ext.engine.loading import LoadedModels
from tensorrt_llm_ext.ops.sampling import SamplingRows, process_logits, uniform

# How far two log-probabilities may move by rounding. For the half-precision formats it is two
# spacings of numbers between 16 and 32, where the largest logits of these models lie; for the
# others, twice the difference that independent implementations of one target show.
TOLERANCES: Mapping[torch.dtype, float] = MappingProxyType(
    {
        torch.float64: 1e-9,
        torch.float32: 2e-4,
        torch.float16: 2 * 2.0**-6,
        torch.bfloat16: 2 * 2.0**-3,
    }
)


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """The first position at which two runs of one prompt differ.

    Attributes:
        prompt_index: Which prompt.
        position: Index into the generated tokens.
        baseline_token: Token without speculation; None when that run ended before.
        speculative_token: Token with it; None when that run ended before.
        margin: Greedy: difference of the two largest log-probabilities. Sampled: how far, in
            cumulative probability, the draw's uniform number would have to move for the other
            token. Infinite when one run ended and the other went on.
        tolerance: Largest margin that rounding explains.
    """

    prompt_index: int
    position: int
    baseline_token: int | None
    speculative_token: int | None
    margin: float
    tolerance: float

    @property
    def is_near_tie(self) -> bool:
        """Whether rounding explains it."""
        return self.margin <= self.tolerance


def first_difference(left: Sequence[int], right: Sequence[int]) -> int | None:
    """Returns the first index at which two sequences differ, an end included; None when equal."""
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return None if len(left) == len(right) else min(len(left), len(right))


def find_divergences(
    models: LoadedModels,
    workload: Workload,
    baseline: Sequence[Sequence[int]],
    speculative: Sequence[Sequence[int]],
    *,
    core: EngineCore,
) -> tuple[Divergence, ...]:
    """Compares two runs prompt by prompt.

    Args:
        models: The target's dtype decides the tolerance.
        workload: What both ran.
        baseline: Generated tokens without speculation.
        speculative: Generated tokens with it.
        core: An idle engine without speculation, to recompute margins with.

    Returns:
        One entry per prompt whose tokens differ.
    """
    found = []
    for index, (left, right) in enumerate(zip(baseline, speculative, strict=True)):
        position = first_difference(left, right)
        if position is None:
            continue
        tokens = [run[position] if position < len(run) else None for run in (left, right)]
        prefix = [*workload.prompts[index], *left[:position]]
        seed = workload.seed_of(index)
        found.append(
            Divergence(
                prompt_index=index,
                position=position,
                baseline_token=tokens[0],
                speculative_token=tokens[1],
                margin=_margin(models, core, workload.sampling, seed, prefix, tokens),
                tolerance=TOLERANCES[models.dtype],
            )
        )
    return tuple(found)


def _margin(
    models: LoadedModels,
    core: EngineCore,
    sampling: SamplingParams,
    seed: int,
    prefix: list[int],
    tokens: Sequence[int | None],
) -> float:
    known = [token for token in tokens if token is not None]
    if len(known) < len(tokens):  # ending early is no matter of rounding
        return float("inf")
    logprobs = next_logprobs(models, core, prefix)
    if sampling.is_greedy:
        # From the best token to the worse of the two that were emitted: a token that rounding
        # cannot explain is told apart even where the top two are close.
        return float(logprobs.max() - min(logprobs[token] for token in known))
    return _sampled_margin(logprobs, sampling, seed, len(prefix), known)


def next_logprobs(models: LoadedModels, core: EngineCore, prefix: Sequence[int]) -> torch.Tensor:
    """Returns the target's log-probabilities of the token after `prefix`, [vocab] float64.

    Args:
        models: Whose target the engine runs.
        core: Idle, without speculation.
        prefix: At least one token.
    """
    vocab_size = models.target.config.vocab_size
    core.add_request(list(prefix), SamplingParams(max_tokens=1, logprobs=vocab_size))
    values = torch.full((vocab_size,), float("-inf"), dtype=torch.float64)
    while core.has_unfinished():
        for update in core.step():
            for row in update.new_logprobs or []:
                for token, entry in row.items():
                    values[token] = entry.logprob
    return values


def _sampled_margin(
    logprobs: torch.Tensor,
    sampling: SamplingParams,
    seed: int,
    position: int,
    tokens: Sequence[int],
) -> float:
    """Largest distance from the draw's uniform number to the interval of one of the tokens."""
    rows = SamplingRows(
        temperature=torch.tensor([sampling.effective_temperature]),
        top_k=torch.tensor([sampling.effective_top_k]),
        top_p=torch.tensor([sampling.effective_top_p]),
        min_p=torch.tensor([sampling.effective_min_p]),
    )
    probs = process_logits(logprobs.unsqueeze(0), rows).softmax(dim=-1)[0]
    ends = probs.cumsum(dim=0)
    draw = float(uniform(torch.tensor([seed]), torch.tensor([position]))[0])
    distances = []
    for token in tokens:
        end = float(ends[token])
        start = end - float(probs[token])
        distances.append(max(start - draw, draw - end, 0.0))
    return max(distances)
