# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""What a caller gets back, and how a sequence's token updates become it.

The engine core ends sequences by token ids. Text, and with it stop strings, begin here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from tensorrt_llm_ext.configs.sampling import SamplingParams
from tensorrt_llm_ext.engine.detokenizer import IncrementalDetokenizer, StopStringMatcher
from tensorrt_llm_ext.engine.request import Logprob, TokenUpdate
from tensorrt_llm_ext.engine.tokenizer import Tokenizer
from tensorrt_llm_ext.speculative.stats import AcceptanceStats

# `cancelled` is the caller's own abort; the other two come from the engine.
FinishReason = Literal["stop", "length", "cancelled"]


@dataclass(kw_only=True, slots=True)
class CompletionOutput:
    """One generated sequence, as far as it is known.

    Attributes:
        index: Which of the request's `n` sequences this is.
        text: Generated text; empty without a tokenizer. A stop string, and what follows it, is cut
            off unless `include_stop_str_in_output`.
        token_ids: Generated tokens, the one that completed a stop string included.
        cumulative_logprob: Sum of the log-probabilities of `token_ids`; None unless `logprobs` was
            asked for.
        logprobs: Per token, the log-probability and rank of it and of the most likely ones.
        prompt_logprobs: As `logprobs`, of the prompt's tokens after the first, when asked for.
        finish_reason: None while it runs.
        stop_reason: The stop string or stop token that ended it; None otherwise.
        text_diff: Part of `text` that is new since the handle last yielded.
        token_ids_diff: The tokens that are new since then.
        logprobs_diff: Their log-probabilities.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    prompt_logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    text_diff: str = ""
    token_ids_diff: list[int] = field(default_factory=list)
    logprobs_diff: list[dict[int, Logprob]] = field(default_factory=list)

    @property
    def length(self) -> int:
        """Number of generated tokens."""
        return len(self.token_ids)


@dataclass(kw_only=True, slots=True)
class RequestOutput:
    """One prompt and its sequences.

    Attributes:
        request_id: Number of the request within its `LLM`.
        prompt: The text given, None when token ids were.
        prompt_token_ids: The tokens that the model saw.
        outputs: `n` sequences, by index.
        finished: Whether all of them ended.
        acceptance: Acceptance of drafts, pooled over the sequences (not a field of TensorRT-LLM).
    """

    request_id: int
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    acceptance: AcceptanceStats = field(default_factory=AcceptanceStats)


class SequenceAssembler:
    """Collects the tokens of one sequence, decodes them and looks for stop strings.

    Not thread-safe: its owner locks.
    """

    def __init__(self, index: int, sampling: SamplingParams, tokenizer: Tokenizer | None) -> None:
        self._index = index
        self._min_tokens = sampling.effective_min_tokens
        self._include_stop = sampling.include_stop_str_in_output
        self._shows_text = sampling.detokenize
        stops = sampling.stop_strings
        self._matcher = StopStringMatcher(stops) if stops else None
        self._detokenizer = None
        if tokenizer is not None and (self._shows_text or stops):
            self._detokenizer = IncrementalDetokenizer(
                tokenizer, skip_special_tokens=sampling.skip_special_tokens
            )
        self._text = ""
        self._token_ids: list[int] = []
        self._logprobs: list[dict[int, Logprob]] = []
        self._prompt_logprobs: list[dict[int, Logprob]] = []
        self._cumulative_logprob: float | None = None
        self._num_shown_chars = 0
        self._num_shown_tokens = 0
        self._stop_reason: int | str | None = None
        self.finish_reason: FinishReason | None = None
        self.acceptance = AcceptanceStats()

    def apply(self, update: TokenUpdate) -> bool:
        """Takes in what one step produced.

        Returns:
            Whether a stop string ended the sequence while the core still runs it, so that the
            caller must abort it there before the next step.
        """
        if self.finish_reason is not None:
            return False
        self.acceptance = update.acceptance
        self._prompt_logprobs = update.prompt_logprobs or self._prompt_logprobs
        if self._append_run(update):
            return update.finish_reason is None
        if update.finish_reason is not None:
            self._finish(update.finish_reason, update.stop_reason)
        return False

    def cancel(self) -> None:
        """Ends the sequence where it is; what was generated stays, but for half a character."""
        if self.finish_reason is None:
            self.finish_reason = "cancelled"

    def _append_run(self, update: TokenUpdate) -> bool:
        """Appends the update's tokens; True when a stop string ended the sequence among them."""
        if self._matcher is None:
            self._append_tokens(update.new_token_ids, update.new_logprobs)
            if self._detokenizer is not None:
                self._text += self._detokenizer.feed(update.new_token_ids)
            return False
        for position, token_id in enumerate(update.new_token_ids):
            logprobs = update.new_logprobs
            self._append_tokens([token_id], logprobs and [logprobs[position]])
            if self._detokenizer is not None:
                delta = self._detokenizer.feed([token_id])
                if self._append_text(delta):
                    return True
        return False

    def _append_tokens(
        self, token_ids: list[int], logprobs: list[dict[int, Logprob]] | None
    ) -> None:
        self._token_ids.extend(token_ids)
        if logprobs is None:
            return
        self._logprobs.extend(logprobs)
        chosen = (row[token].logprob for row, token in zip(logprobs, token_ids, strict=True))
        self._cumulative_logprob = sum(chosen, self._cumulative_logprob or 0.0)

    def _append_text(self, delta: str) -> bool:
        """Appends decoded text; True when it completes a stop string, which ends the sequence.

        The first `min_tokens` tokens complete none.
        """
        self._text += delta
        if self._matcher is None or len(self._token_ids) <= self._min_tokens:
            return False
        match = self._matcher.find(self._text, len(delta))
        if match is None:
            return False
        self._text = self._text[: match.end if self._include_stop else match.start]
        self.finish_reason, self._stop_reason = "stop", match.stop
        return True

    def _finish(self, finish_reason: FinishReason, stop_reason: int | str | None) -> None:
        rest = self._detokenizer.flush() if self._detokenizer is not None else ""
        if not self._append_text(rest):
            self.finish_reason, self._stop_reason = finish_reason, stop_reason

    def _shown_text(self) -> str:
        """The text that no later token can take back."""
        if not self._shows_text:
            return ""
        if self._matcher is None or self._include_stop or self.finish_reason is not None:
            return self._text
        return self._text[: len(self._text) - self._matcher.num_held_back(self._text)]

    def snapshot(self, *, advance: bool) -> CompletionOutput:
        """Returns an independent copy of the sequence as it is now.

        Args:
            advance: Whether the diffs of the next snapshot begin here.
        """
        text = self._shown_text()
        shown_chars, shown_tokens = self._num_shown_chars, self._num_shown_tokens
        if advance:
            self._num_shown_chars, self._num_shown_tokens = len(text), len(self._token_ids)
        return CompletionOutput(
            index=self._index,
            text=text,
            token_ids=list(self._token_ids),
            cumulative_logprob=self._cumulative_logprob,
            logprobs=list(self._logprobs),
            prompt_logprobs=list(self._prompt_logprobs),
            finish_reason=self.finish_reason,
            stop_reason=self._stop_reason,
            text_diff=text[shown_chars:],
            token_ids_diff=self._token_ids[shown_tokens:],
            logprobs_diff=self._logprobs[shown_tokens:],
        )
