# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The embedded engine's acceptance over texts that somebody else wrote.

A host's text and the embedded engine's part at near-ties, and another text is accepted otherwise.
So the embedded engine is made to write the host's text: then only the draft is compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from tensorrt_llm_ext.benchmarking.runs import Workload, make_core, measure
from tensorrt_llm_ext.configs.target import TargetConfig
from tensorrt_llm_ext.engine.loading import LoadedModels
from tensorrt_llm_ext.models.interfaces import HeadModule, TargetModel, TargetTokenId
from tensorrt_llm_ext.speculative.stats import AcceptanceStats


class Replayed(torch.nn.Module):
    """A target whose most likely next token is that of a given text, one request at a time.

    Past the text's end it says what it thinks itself.

    Args:
        target: The real one, which computes the states that a draft reads.
    """

    config: TargetConfig
    embed_tokens: torch.nn.Module
    lm_head: HeadModule

    def __init__(self, target: TargetModel) -> None:
        super().__init__()
        self.target = target
        self.config = target.config
        self.embed_tokens = target.embed_tokens
        self.lm_head = target.lm_head
        self.text: Sequence[int] = ()
        self._positions: list[int] = []

    def forward(
        self,
        token_ids: TargetTokenId,
        positions: torch.Tensor,
        ctx: Any,
        boundaries: tuple[int, ...],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Runs the real target and remembers which positions it ran."""
        self._positions = positions.tolist()
        return self.target.forward(token_ids, positions, ctx, boundaries)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[rows, hidden_size] of the last rows of the pass -> [rows, vocab_size]."""
        logits = self.target.compute_logits(hidden)
        for row, position in enumerate(self._positions[-len(hidden) :]):
            if position + 1 < len(self.text):
                logits[row, self.text[position + 1]] = float("inf")
        return logits


def replayed_acceptance(
    models: LoadedModels, workload: Workload, texts: Sequence[Sequence[int]], max_draft_len: int
) -> AcceptanceStats:
    """Counts which drafts of the embedded engine the texts would have accepted.

    Args:
        models: Target and draft.
        workload: The prompts, and how long answers may get.
        texts: The answer to each prompt, an end token included where it ended by itself.
        max_draft_len: Draft tokens per step.

    Raises:
        ValueError: If the engine wrote another text, which is a mistake of this module.
    """
    total = AcceptanceStats()
    target = Replayed(models.target)
    # One request at a time: the target knows one text.
    one = replace(workload, batch_size=1)
    core = make_core(replace(models, target=target), one, max_draft_len)
    for prompt, text in zip(workload.prompts, texts, strict=True):
        target.text = (*prompt, *text)
        run = measure(core, replace(one, prompts=(prompt,)), models.eos_token_ids)
        if run.token_ids[0] != tuple(text):
            raise ValueError(f"replayed {run.token_ids[0]} where the text is {tuple(text)}")
        total.merge(run.acceptance)
    return total
