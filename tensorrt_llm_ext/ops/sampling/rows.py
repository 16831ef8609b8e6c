# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The sampling settings of the rows of one call, as tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingRows:
    """Per-row settings; a field that is None is off for every row and costs nothing.

    The order in which they act: logit_bias, repetition_penalty, presence and frequency penalty,
    banned, temperature, top_k, top_p, min_p.

    Attributes:
        temperature: [R] float; 0 makes a row greedy. None makes all rows greedy.
        top_k: [R] int64; 0 is off. Tokens that tie with the k-th stay.
        top_p: [R] float; 1 is off. The smallest set of most probable tokens that reaches p stays.
        min_p: [R] float; 0 is off. Tokens below min_p times the largest probability go.
        presence_penalty: [R] float, subtracted from the logits of generated tokens.
        frequency_penalty: [R] float, subtracted once per generated occurrence.
        repetition_penalty: [R] float; 1 is off. Divides positive and multiplies negative logits of
            tokens of the prompt or the output.
        output_counts: [R, V] integer or float: how often each token was generated before the row,
            drafts that precede the row included.
        prompt_mask: [R, V] bool: tokens of the prompt.
        logit_bias: [R, V] float, added to the logits.
        banned: [R, V] bool: tokens that must not be chosen (`min_tokens`). Each row must keep one.
    """

    temperature: torch.Tensor | None = None
    top_k: torch.Tensor | None = None
    top_p: torch.Tensor | None = None
    min_p: torch.Tensor | None = None
    presence_penalty: torch.Tensor | None = None
    frequency_penalty: torch.Tensor | None = None
    repetition_penalty: torch.Tensor | None = None
    output_counts: torch.Tensor | None = None
    prompt_mask: torch.Tensor | None = None
    logit_bias: torch.Tensor | None = None
    banned: torch.Tensor | None = None

    @property
    def is_greedy(self) -> bool:
        """Whether every row is known to the host to be greedy."""
        return self.temperature is None

    def signature(self) -> tuple[torch.Size | None, ...]:
        """The shape of every field: what a check of these settings looks at."""
        return tuple(None if value is None else value.shape for value in self._values())

    def _values(self) -> tuple[torch.Tensor | None, ...]:
        return (
            self.temperature,
            self.top_k,
            self.top_p,
            self.min_p,
            self.presence_penalty,
            self.frequency_penalty,
            self.repetition_penalty,
            self.output_counts,
            self.prompt_mask,
            self.logit_bias,
            self.banned,
        )


# Fields with one number per row; the others have one per row and token.
PER_ROW_FIELDS = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)
PER_TOKEN_FIELDS = ("output_counts", "prompt_mask", "logit_bias", "banned")
