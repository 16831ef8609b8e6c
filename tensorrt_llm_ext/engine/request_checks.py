# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""What an engine refuses before a request is queued."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tensorrt_llm_ext.configs.sampling import SamplingParams
from tensorrt_llm_ext.errors import RequestError


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestChecks:
    """Limits of one engine.

    Attributes:
        vocab_size: The target's.
        max_seq_len: Prompt and new tokens of a request.
        max_num_tokens: Rows of a step.
        enable_chunked_prefill: Whether a longer prompt may be split.
    """

    vocab_size: int
    max_seq_len: int
    max_num_tokens: int
    enable_chunked_prefill: bool

    def check_prompt(self, tokens: list[int]) -> None:
        """Refuses a prompt that is empty, too long, or holds unknown ids, with RequestError."""
        if not tokens:
            raise RequestError("The prompt has no tokens. Send at least one token.")
        if len(tokens) >= self.max_seq_len:
            raise RequestError(
                f"The prompt has {len(tokens)} tokens; with at least one new token this engine "
                f"holds {self.max_seq_len} per request. Shorten the prompt, or raise max_seq_len "
                "or the number of cache blocks."
            )
        if not self.enable_chunked_prefill and len(tokens) > self.max_num_tokens:
            raise RequestError(
                f"The prompt has {len(tokens)} tokens, max_num_tokens is "
                f"{self.max_num_tokens} and chunked prefill is off. Turn "
                "enable_chunked_prefill on, or raise max_num_tokens."
            )
        self._check_ids("The prompt", tokens)

    def check_sampling(self, sampling: SamplingParams, eos_token_ids: tuple[int, ...]) -> None:
        """Refuses unknown token ids, and bans that leave nothing to draw, with RequestError."""
        self._check_ids("eos_token_ids", eos_token_ids)
        self._check_ids("stop_token_ids", sampling.stop_token_ids or ())
        self._check_ids("logit_bias or bad_token_ids", list(sampling.token_bias))
        banned = {token for token, bias in sampling.token_bias.items() if bias == -math.inf}
        if sampling.effective_min_tokens:
            eos = () if sampling.ignore_eos else eos_token_ids
            banned.update(eos, sampling.stop_token_ids or ())
        if len(banned) == self.vocab_size:
            raise RequestError(
                "bad_token_ids, logit_bias and min_tokens together ban every token of the "
                "vocabulary. Leave at least one token that may be drawn."
            )

    def _check_ids(self, what: str, ids: Sequence[int]) -> None:
        for token in ids:
            if not 0 <= token < self.vocab_size:
                raise RequestError(
                    f"{what} holds token id {token}; the model's vocabulary is "
                    f"0..{self.vocab_size - 1}. Check that the tokenizer belongs to the model."
                )
