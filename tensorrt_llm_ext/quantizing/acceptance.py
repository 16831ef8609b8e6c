# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Acceptance length on the embedded engine, and its ratio between two drafts with an interval."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from tensorrt_llm_ext.configs.sampling import SamplingParams
from tensorrt_llm_ext.engine.core import EngineCore
from tensorrt_llm_ext.engine.settings import EngineConfig
from tensorrt_llm_ext.errors import ConfigError
from tensorrt_llm_ext.models.interfaces import DraftModel, TargetModel
from tensorrt_llm_ext.speculative.stats import AcceptanceStats

_NUM_RESAMPLES = 10_000
_CHUNK = 500
_MIN_TEXTS = 4


@dataclass(frozen=True, kw_only=True)
class EngineRun:
    """One draft over all prompts, greedily.

    Attributes:
        token_ids: Generated tokens per prompt.
        per_prompt: Acceptance per prompt.
    """

    token_ids: tuple[tuple[int, ...], ...]
    per_prompt: tuple[AcceptanceStats, ...]

    @property
    def pooled(self) -> AcceptanceStats:
        """Acceptance over all prompts."""
        total = AcceptanceStats()
        for stats in self.per_prompt:
            total.merge(stats)
        return total


@dataclass(frozen=True, kw_only=True, slots=True)
class Ratio:
    """Acceptance length of one draft over another's on the same prompts.

    Attributes:
        value: The ratio of the pooled acceptance lengths.
        low, high: Bootstrap interval, prompts resampled as a whole; infinite with too few.
        confidence: That the interval holds.
    """

    value: float
    low: float
    high: float
    confidence: float


def run_engine(
    target: TargetModel,
    draft: DraftModel,
    prompts: Sequence[Sequence[int]],
    *,
    max_draft_len: int,
    max_tokens: int,
    eos_token_ids: tuple[int, ...],
    batch_size: int = 8,
    progress: Callable[[int], None] | None = None,
) -> EngineRun:
    """Answers prompts with speculation.

    Args:
        target: The verified model.
        draft: The proposing model.
        prompts: Token ids.
        max_draft_len: Drafts per step.
        max_tokens: Most tokens per answer.
        eos_token_ids: The target's end tokens.
        batch_size: Prompts running at once.
        progress: Called with the number of prompts that ended.
    """
    # Room behind the last token, so that the limit clips no drafts.
    longest = max(map(len, prompts)) + max_tokens + max_draft_len + 1
    config = EngineConfig(
        max_batch_size=batch_size,
        max_seq_len=min(longest, target.config.max_position_embeddings),
        enable_block_reuse=False,
        max_draft_len=max_draft_len,
    )
    core = EngineCore(target, draft, config)
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0)
    tokens: dict[int, list[int]] = {}
    stats: dict[int, AcceptanceStats] = {}
    for prompt in prompts:
        request = core.add_request(list(prompt), sampling, eos_token_ids=eos_token_ids)
        tokens[request], stats[request] = [], AcceptanceStats()
    while core.has_unfinished():
        for update in core.step():
            tokens[update.request_id].extend(update.new_token_ids)
            if update.finish_reason is not None:
                stats[update.request_id] = update.acceptance.copy()
                if progress is not None:
                    progress(1)
    return EngineRun(token_ids=tuple(map(tuple, tokens.values())), per_prompt=tuple(stats.values()))


def acceptance_ratio(
    base: Sequence[AcceptanceStats],
    other: Sequence[AcceptanceStats],
    *,
    confidence: float = 0.95,
    seed: int = 0,
) -> Ratio:
    """Compares two drafts on the same prompts.

    Steps of one prompt are not independent, so whole prompts are resampled, the same ones for both
    drafts (paired percentile bootstrap of the ratio).

    Args:
        base: Per prompt, the draft that is compared with.
        other: Per prompt, the other.
        confidence: That the interval holds.
        seed: Of the resampling.

    Raises:
        ConfigError: If the two ran other prompts, or no step had a draft.
    """
    if len(base) != len(other):
        raise ConfigError(
            f"Acceptance of {len(base)} prompts cannot be paired with that of {len(other)}. Run "
            "both drafts on the same prompts."
        )
    counts = torch.tensor(
        [
            [a.num_accepted + a.num_steps, a.num_steps, b.num_accepted + b.num_steps, b.num_steps]
            for a, b in zip(base, other, strict=True)
            if a.num_steps and b.num_steps
        ],
        dtype=torch.float64,
    )
    if not counts.numel():
        raise ConfigError("No prompt had a verify step with a draft. Let the answers be longer.")
    value = float(_ratio(counts.sum(dim=0)))
    num = counts.shape[0]
    if num < _MIN_TEXTS:
        inf = float("inf")
        return Ratio(value=value, low=-inf, high=inf, confidence=confidence)
    generator = torch.Generator().manual_seed(seed)
    drawn = []
    for _ in range(_NUM_RESAMPLES // _CHUNK):
        picks = torch.randint(num, (_CHUNK, num), generator=generator)
        drawn.append(_ratio(counts[picks].sum(dim=1)))
    tail = (1.0 - confidence) / 2.0
    ends = torch.cat(drawn).quantile(torch.tensor([tail, 1.0 - tail], dtype=torch.float64))
    return Ratio(value=value, low=float(ends[0]), high=float(ends[1]), confidence=confidence)


def _ratio(sums: torch.Tensor) -> torch.Tensor:
    """[..., 4] sums of (tokens, steps) of base and other -> [...]."""
    return (sums[..., 2] / sums[..., 3]) / (sums[..., 0] / sums[..., 1])
