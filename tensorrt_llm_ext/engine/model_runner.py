# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Runs steps: the models, the pool, the ring, and the one place where results reach the host."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from tensorrt_llm_ext.engine.kv_cache import allocate_pool, check_latent_sizes
from tensorrt_llm_ext.engine.request import Logprob
from tensorrt_llm_ext.models.interfaces import DraftModel, TargetModel
from tensorrt_llm_ext.speculative.metadata import Logprobs, StepInputs, StepOutputs
from tensorrt_llm_ext.speculative.phases import PhaseTimer
from tensorrt_llm_ext.speculative.step import one_model_step


@dataclass
class StepResult:
    """One step's results as Python values.

    Attributes:
        tokens: Per request the emitted tokens.
        drafts: Per request the proposals for the next step; empty at k' = 0.
        logprobs: Per request and emitted token: its log-probability and the most likely ones.
        num_nan: Rows of logits that were NaN.
        prompt_logprobs: Per prompt row that was asked for, in the order of the chunks.
    """

    tokens: list[list[int]]
    drafts: list[list[int]]
    logprobs: list[list[dict[int, Logprob]]] | None
    num_nan: int = 0
    prompt_logprobs: list[dict[int, Logprob]] = field(default_factory=list)


class ModelRunner:
    """Owns what lives on the device between steps."""

    def __init__(
        self,
        target: TargetModel,
        draft: DraftModel | None,
        *,
        num_blocks: int,
        block_size: int,
        num_ring_rows: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.target = target
        self.draft = draft
        self.device = device
        self.clock: PhaseTimer | None = None
        config = target.config
        num_layers = config.num_layers
        if draft is not None:
            check_latent_sizes(config.mla.latent_size, draft.config.mla.latent_size)
            num_layers += draft.config.num_layers
        self.caches = allocate_pool(
            num_layers, num_blocks, block_size, config.mla.latent_size, dtype=dtype, device=device
        )
        self.ring: torch.Tensor | None = None
        if draft is not None and num_ring_rows:
            width = draft.config.num_captured * draft.config.target_hidden_size
            self.ring = torch.zeros((num_ring_rows, width), dtype=dtype, device=device)

    @torch.inference_mode()
    def run(self, inputs: StepInputs) -> StepResult:
        """Runs one step and reads its results: the only synchronisation of a step."""
        return read_results(self.step(inputs))

    def step(self, inputs: StepInputs) -> StepOutputs:
        """Runs one step and leaves its results on the device."""
        # Steps with prompt rows are another thing; a captured step cannot be taken apart.
        clock = self.clock if inputs.num_prefill == 0 else None
        return one_model_step(self.target, self.draft, inputs, self.caches, self.ring, clock)


def read_results(outputs: StepOutputs) -> StepResult:
    """Copies a step's results to the host."""
    tokens, emitted = outputs.tokens.tolist(), outputs.num_emitted.tolist()
    drafts = [] if outputs.drafts is None else outputs.drafts.tolist()
    logprobs = None
    if outputs.logprobs is not None:
        rows = _logprob_dicts(outputs.logprobs, outputs.tokens.shape[1])
        logprobs = [row[:count] for row, count in zip(rows, emitted, strict=True)]
    asked = outputs.prompt_logprobs
    prompts = [] if asked is None else [row[0] for row in _logprob_dicts(asked, 1)]
    kept = [row[:count] for row, count in zip(tokens, emitted, strict=True)]
    num_nan = 0 if outputs.num_nan is None else int(outputs.num_nan)
    return StepResult(kept, drafts or [[] for _ in kept], logprobs, num_nan, prompts)


def _logprob_dicts(logprobs: Logprobs, num_columns: int) -> list[list[dict[int, Logprob]]]:
    """Per row and column: the token and the most likely ones."""
    count = logprobs.tokens.numel()
    columns = (logprobs.tokens, logprobs.sampled, logprobs.sampled_rank)
    tokens, sampled, ranks = (values.flatten().tolist() for values in columns)
    top, top_ids = (v.reshape(count, -1).tolist() for v in (logprobs.top, logprobs.top_ids))
    entries: list[dict[int, Logprob]] = []
    for index in range(count):
        pairs = zip(top_ids[index], top[index], strict=True)
        entry = {token: Logprob(value, rank) for rank, (token, value) in enumerate(pairs, start=1)}
        entry.setdefault(tokens[index], Logprob(sampled[index], ranks[index]))
        entries.append(entry)
    return [entries[i : i + num_columns] for i in range(0, count, num_columns)]
