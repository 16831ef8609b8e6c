# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The engine's nouns: a request, and what a step tells about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Literal

from tensorrt_llm_ext.speculative.stats import AcceptanceStats

if TYPE_CHECKING:
    import torch

    from tensorrt_llm_ext.configs.sampling import SamplingParams

FinishReason = Literal["stop", "length"]


class RequestStatus(Enum):
    """Where a request is in its life."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class Logprob:
    """Log-probability of one token and its rank (1 is the most likely) in the vocabulary."""

    logprob: float
    rank: int | None = None


@dataclass(eq=False, slots=True)
class Request:
    """One sequence being generated.

    Attributes:
        token_ids: Prompt and committed output tokens.
        num_computed: Positions 0..num_computed-1 hold valid target KV; while decoding that is all
            committed tokens but the last.
        num_draft_valid: Positions that hold valid draft KV.
        pending_drafts: Target ids to verify in the next step.
        ring_slot: Index of the request's ring while it runs.
        num_ring_rows: Captured rows in the ring, the positions after `num_draft_valid`.
        is_drafting: False once its ring overflowed: it stays at k = 0 until it is recomputed.
        output_counts: [vocab] how often each token was generated, kept only with penalties.
        prompt_mask: [vocab] tokens of the prompt, kept only with a repetition penalty.
        prompt_logprobs: Of the prompt's tokens after the first, as far as they are computed.
    """

    request_id: int
    token_ids: list[int]
    num_prompt_tokens: int
    sampling: SamplingParams
    eos_token_ids: tuple[int, ...]
    seed: int
    status: RequestStatus = RequestStatus.WAITING
    num_computed: int = 0
    num_draft_valid: int = 0
    pending_drafts: list[int] = field(default_factory=list)
    ring_slot: int = -1
    num_ring_rows: int = 0
    is_drafting: bool = True
    acceptance: AcceptanceStats = field(default_factory=AcceptanceStats)
    num_preemptions: int = 0
    num_reused_tokens: int = 0
    output_counts: torch.Tensor | None = None
    num_counted: int = 0
    prompt_mask: torch.Tensor | None = None
    logit_bias: torch.Tensor | None = None
    banned: torch.Tensor | None = None
    prompt_logprobs: list[dict[int, Logprob]] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """Committed tokens, m."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Generated tokens."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def output_token_ids(self) -> list[int]:
        """Generated tokens."""
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def is_decoding(self) -> bool:
        """Whether only the last committed token lacks target KV."""
        return self.num_tokens - self.num_computed == 1

    @property
    def lacks_prompt_logprobs(self) -> bool:
        """Whether log-probabilities of its prompt are wanted and not there yet."""
        wanted = self.sampling.prompt_logprobs is not None
        return wanted and len(self.prompt_logprobs) < self.num_prompt_tokens - 1

    @property
    def max_tokens(self) -> int | None:
        """Output tokens after which it ends."""
        return self.sampling.max_tokens

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Tokens that end it, the model's own end tokens unless ignored first."""
        eos = () if self.sampling.ignore_eos else self.eos_token_ids
        return (*eos, *(self.sampling.stop_token_ids or ()))

    def restart(self) -> None:
        """Forgets everything computed; the committed tokens stay (recompute after preemption)."""
        self.status = RequestStatus.WAITING
        self.num_computed = 0
        self.num_draft_valid = 0
        self.pending_drafts = []
        self.ring_slot = -1
        self.num_ring_rows = 0
        self.is_drafting = True


@dataclass(slots=True)
class TokenUpdate:
    """What one step produced for one request; `prompt_logprobs` come with its first tokens."""

    request_id: int
    new_token_ids: list[int]
    new_logprobs: list[dict[int, Logprob]] | None
    finish_reason: FinishReason | None
    stop_reason: int | str | None
    acceptance: AcceptanceStats
    prompt_logprobs: list[dict[int, Logprob]] | None = None
