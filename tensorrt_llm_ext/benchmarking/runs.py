# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""One timed pass of prompts through an engine core."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tensorrt_llm_ext.configs.engine import CudaGraphConfig
from tensorrt_llm_ext.configs.sampling import SamplingParams
from tensorrt_llm_ext.engine.core import EngineCore
from tensorrt_llm_ext.engine.loading import LoadedModels
from tensorrt_llm_ext.engine.seeds import request_seed
from tensorrt_llm_ext.engine.settings import EngineConfig
from tensorrt_llm_ext.speculative.stats import AcceptanceStats

# Called with the number of requests that ended.
Progress = Callable[[int], None]

_STEP_TOKENS = 2048


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What a run generates.

    Attributes:
        prompts: Token ids of each prompt.
        sampling: For all of them; requests draw from seeds derived from `seed`, as in `LLM`.
        batch_size: Requests running at once; 1 runs the prompts one after the other.
        seed: Seeds the requests when `sampling` has no seed.
    """

    prompts: tuple[tuple[int, ...], ...]
    sampling: SamplingParams
    batch_size: int = 1
    seed: int = 0

    def seed_of(self, index: int) -> int:
        """Returns the seed of a prompt."""
        return request_seed(self.seed, index, self.sampling.seed)


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """What one pass produced, and how long it took.

    Attributes:
        token_ids: Generated tokens of each prompt.
        seconds: Wall time, prompts included.
        acceptance: Pooled over the prompts.
    """

    token_ids: tuple[tuple[int, ...], ...]
    seconds: float
    acceptance: AcceptanceStats

    @property
    def num_tokens(self) -> int:
        """Generated tokens of all prompts."""
        return sum(map(len, self.token_ids))

    @property
    def tokens_per_s(self) -> float:
        """Generated tokens per second of wall time."""
        return self.num_tokens / self.seconds


def make_core(models: LoadedModels, workload: Workload, max_draft_len: int) -> EngineCore:
    """Makes an engine core for a workload.

    Prefix reuse is off: a second pass would find the prompts of the first in the cache.

    Args:
        models: Shared with other cores.
        workload: Decides batch and sequence limits.
        max_draft_len: 0 leaves the draft out.
    """
    longest = max(map(len, workload.prompts), default=1) + workload.sampling.max_tokens
    # Room behind the last token, so that the limit clips no drafts.
    longest += max_draft_len + 1
    config = EngineConfig(
        max_batch_size=workload.batch_size,
        max_num_tokens=max(_STEP_TOKENS, workload.batch_size * (1 + max_draft_len)),
        max_seq_len=min(longest, models.target.config.max_position_embeddings),
        enable_block_reuse=False,
        max_draft_len=max_draft_len,
        cuda_graphs=CudaGraphConfig(enable_padding=True),
    )
    return EngineCore(models.target, models.draft if max_draft_len else None, config)


def measure(
    core: EngineCore,
    workload: Workload,
    eos_token_ids: tuple[int, ...],
    progress: Progress | None = None,
) -> RunResult:
    """Runs all prompts of a workload to their end and takes the time.

    Args:
        core: Idle; it is idle again afterwards.
        workload: What to generate.
        eos_token_ids: The model's end tokens.
        progress: Called whenever requests end.

    Raises:
        RequestError: If a prompt does not fit; nothing was run then.
    """
    tokens: dict[int, list[int]] = {}
    try:
        for index, prompt in enumerate(workload.prompts):
            request_id = core.add_request(
                list(prompt),
                workload.sampling,
                eos_token_ids=eos_token_ids,
                seed=workload.seed_of(index),
            )
            tokens[request_id] = []
        acceptance = AcceptanceStats()
        start = time.perf_counter()
        while core.has_unfinished():
            updates = core.step()
            for update in updates:
                tokens[update.request_id].extend(update.new_token_ids)
            ended = [update for update in updates if update.finish_reason is not None]
            for update in ended:
                acceptance.merge(update.acceptance)
            if progress is not None and ended:
                progress(len(ended))
        seconds = time.perf_counter() - start
    finally:
        for request_id in tokens:
            core.abort(request_id)  # does nothing to those that ended
    return RunResult(
        token_ids=tuple(map(tuple, tokens.values())), seconds=seconds, acceptance=acceptance
    )


def warm_up(core: EngineCore, workload: Workload, eos_token_ids: tuple[int, ...]) -> None:
    """Runs the first prompt for a few tokens, so that first-time costs are not measured."""
    short = replace(workload.sampling, max_tokens=min(8, workload.sampling.max_tokens), n=1)
    measure(core, replace(workload, prompts=workload.prompts[:1], sampling=short), eos_token_ids)


def encode_all(models: LoadedModels, prompts: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Returns the token ids of each prompt, by the models' tokenizer."""
    if models.tokenizer is None:
        raise ValueError("encode_all needs models with a tokenizer")
    return tuple(tuple(models.tokenizer.encode(prompt)) for prompt in prompts)
