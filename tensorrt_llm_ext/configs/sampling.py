# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Sampling parameters in the shape of the TensorRT-LLM LLM API: unset sampling is greedy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from tensorrt_llm_ext.configs.host_fields import (
    checked_bool,
    checked_int,
    checked_key,
    checked_number,
    from_mapping,
    host_shaped,
    no_op,
    refuse,
)
from tensorrt_llm_ext.errors import ConfigError, UnsupportedError

_KIND = "SamplingParams"
_BEAM = "it belongs to beam search, which this engine does not run"
_DECAY = "the decaying top-p of factual-nucleus sampling is not implemented; use top_p"
_LOGITS = "logits are not returned; use logprobs"

_HOST_FIELDS = {
    "bad": refuse("strings cannot be banned token by token; use bad_token_ids"),
    "embedding_bias": refuse("use logit_bias, a mapping from token id to bias"),
    "logits_processor": refuse("callbacks on logits are not run; use logit_bias or bad_token_ids"),
    "apply_batched_logits_processor": refuse("callbacks on logits are not run", False),
    "top_p_min": refuse(_DECAY),
    "top_p_reset_ids": refuse(_DECAY),
    "top_p_decay": refuse(_DECAY),
    "no_repeat_ngram_size": refuse("n-gram blocking is not implemented; use frequency_penalty"),
    "prompt_ignore_length": refuse("penalties here see the whole prompt", 0),
    "beam_search_diversity_rate": no_op(_BEAM),
    "length_penalty": no_op(_BEAM),
    "early_stopping": no_op(_BEAM),
    "beam_width_array": refuse(_BEAM),
    "return_context_logits": refuse(_LOGITS, False),
    "return_generation_logits": refuse(_LOGITS, False),
    "exclude_input_from_output": refuse("outputs never repeat the prompt", True),
    "return_encoder_output": refuse("there is no encoder", False),
    "return_perf_metrics": no_op("acceptance statistics are always returned", False),
    "additional_model_outputs": refuse("only tokens and log probabilities are returned"),
    "lookahead_config": refuse("lookahead decoding is not implemented; use an Eagle3 draft"),
    "guided_decoding": refuse("guided decoding is not implemented"),
}

_BOOLS = (
    "include_stop_str_in_output",
    "use_beam_search",
    "ignore_eos",
    "detokenize",
    "add_special_tokens",
    "skip_special_tokens",
    "spaces_between_special_tokens",
)
# Field, minimum, maximum; None is always accepted.
_INTEGERS: tuple[tuple[str, int | None, int | None], ...] = (
    ("end_id", -1, None),
    ("pad_id", -1, None),
    ("min_tokens", 0, None),
    ("top_k", 0, None),
    ("seed", 0, 2**64 - 1),
    ("best_of", 1, None),
    ("truncate_prompt_tokens", 1, None),
)
# Logits are float32: beyond this, penalties of a long text would add up to infinities and NaN.
_LARGEST = 1e9
_NUMBERS: tuple[tuple[str, float | None, float | None], ...] = (
    ("temperature", 0.0, None),
    ("top_p", 0.0, 1.0),
    ("min_p", 0.0, 1.0),
    ("presence_penalty", -_LARGEST, _LARGEST),
    ("frequency_penalty", -_LARGEST, _LARGEST),
)


@host_shaped(host_fields=_HOST_FIELDS)
@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingParams:
    """How one request is sampled and when it stops.

    Field names and defaults are the host's. Sampling is greedy when temperature, top_k and top_p
    are all unset, or when temperature is 0, top_k is 1 or top_p is 0. Otherwise unset fields mean
    "no restriction": temperature 1, all tokens.

    Attributes:
        end_id: Token that ends the text; the model's own end tokens when None, none when -1.
        pad_id: Accepted for the host's sake; `end_id` when None.
        max_tokens: Most tokens to generate.
        min_tokens: End and stop tokens are not drawn before this many tokens.
        stop: Strings that end the text; cut off unless `include_stop_str_in_output`.
        stop_token_ids: Tokens that end the text.
        bad_token_ids: Tokens that are never drawn.
        n: Number of completions; more than one needs sampling.
        best_of: Must equal `n`: there is no ranking of candidates.
        temperature: Divides the logits; 0 is greedy.
        top_k: Keeps the k likeliest tokens; 0 keeps all.
        top_p: Keeps the smallest set of likeliest tokens with this much mass.
        min_p: Keeps tokens at least this fraction as likely as the likeliest.
        seed: Seed of the request's random stream, 0..2^64-1.
        repetition_penalty: Above 0; divides positive and multiplies negative logits of seen tokens.
        presence_penalty: Subtracted once from the logit of each generated token.
        frequency_penalty: Subtracted per occurrence of each generated token.
        logit_bias: Token id to a number added to its logit; -inf bans the token.
        logprobs: Number of likeliest tokens whose log probabilities are returned; True means 1,
            0 only that of the drawn token.
        prompt_logprobs: The same for the tokens of the prompt; its prefix is then computed anew,
            also where it is cached.
        ignore_eos: Whether end tokens are ordinary tokens.
        truncate_prompt_tokens: Keeps only the last so many prompt tokens.

    Raises:
        ConfigError: If a field is unknown or out of range; the message says what is allowed.
        UnsupportedError: If a field of the host is used that this engine cannot honour.
    """

    end_id: int | None = None
    pad_id: int | None = None
    max_tokens: int = 32
    min_tokens: int | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    include_stop_str_in_output: bool = False
    bad_token_ids: Sequence[int] | None = None
    n: int = 1
    best_of: int | None = None
    use_beam_search: bool = False
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Mapping[int, float] | None = field(default=None, hash=False)
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    ignore_eos: bool = False
    detokenize: bool = True
    add_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True

    def __post_init__(self) -> None:
        """Checks every field and brings sequences into one form."""
        for name in _BOOLS:
            checked_bool(_KIND, name, getattr(self, name))
        for name, low, high in _INTEGERS:
            value = getattr(self, name)
            if value is not None:
                self._set(name, checked_int(_KIND, name, value, minimum=low, maximum=high))
        for name, lowest, highest in _NUMBERS:
            value = getattr(self, name)
            if value is not None:
                self._set(name, checked_number(_KIND, name, value, minimum=lowest, maximum=highest))
        self._set("max_tokens", checked_int(_KIND, "max_tokens", self.max_tokens, minimum=1))
        self._set("n", checked_int(_KIND, "n", self.n, minimum=1))
        self._check_penalty()
        self._check_stops()
        self._check_tokens()
        self._check_candidates()

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _check_penalty(self) -> None:
        if self.repetition_penalty is None:
            return
        penalty = checked_number(_KIND, "repetition_penalty", self.repetition_penalty)
        if not 1 / _LARGEST <= penalty <= _LARGEST:
            raise ConfigError(
                f"{_KIND}.repetition_penalty must be above 0 (1 is no penalty) and within "
                f"{1 / _LARGEST:g} and {_LARGEST:g}, got {penalty}."
            )
        self._set("repetition_penalty", penalty)

    def _check_stops(self) -> None:
        if self.stop is not None:
            stops = [self.stop] if isinstance(self.stop, str) else self.stop
            valid = isinstance(stops, Sequence) and all(isinstance(s, str) and s for s in stops)
            if not valid:
                raise ConfigError(
                    f"{_KIND}.stop must hold non-empty strings, got {stops!r}. An empty string "
                    "would stop every text at once."
                )
            stops = tuple(stops)
            self._set("stop", stops)
        if self.min_tokens is not None and self.min_tokens > self.max_tokens:
            raise ConfigError(
                f"{_KIND}.min_tokens ({self.min_tokens}) exceeds max_tokens ({self.max_tokens}). "
                "Raise max_tokens or lower min_tokens."
            )

    def _check_tokens(self) -> None:
        for name in ("stop_token_ids", "bad_token_ids"):
            values = getattr(self, name)
            if values is not None:
                if isinstance(values, (str, bytes)) or not isinstance(values, Sequence):
                    raise ConfigError(f"{_KIND}.{name} must be a list of token ids: {values!r}.")
                self._set(name, tuple(checked_int(_KIND, name, v, minimum=0) for v in values))
        if self.logit_bias is not None:
            if not isinstance(self.logit_bias, Mapping):
                raise ConfigError(
                    f"{_KIND}.logit_bias maps token ids to numbers, got {self.logit_bias!r}."
                )
            bias = {
                checked_key(_KIND, "logit_bias", key, minimum=0): _bias(value)
                for key, value in self.logit_bias.items()
            }
            self._set("logit_bias", bias)
        for name in ("logprobs", "prompt_logprobs"):
            number = getattr(self, name)
            if number is not None:
                number = int(number) if isinstance(number, bool) else number
                self._set(name, checked_int(_KIND, name, number, minimum=0))

    def _check_candidates(self) -> None:
        if self.use_beam_search:
            raise UnsupportedError(
                f"{_KIND}.use_beam_search=True: beam search is not implemented. Leave it out; use "
                "n for several sampled completions."
            )
        if self.best_of is not None and self.best_of != self.n:
            raise UnsupportedError(
                f"{_KIND}.best_of={self.best_of} with n={self.n}: candidates are not ranked. Leave "
                "best_of out, or set it equal to n."
            )
        if self.n > 1 and self.is_greedy:
            raise ConfigError(
                f"{_KIND}.n={self.n} with greedy decoding would return {self.n} equal texts. Set "
                "temperature, top_p or top_k, or leave n at 1."
            )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SamplingParams:
        """Builds parameters from a mapping; unknown keys are refused by name."""
        return from_mapping(cls, values)

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields that differ from their defaults."""
        return {
            f.name: getattr(self, f.name)
            for f in fields(self)
            if getattr(self, f.name) != f.default
        }

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is always taken (the host's rule)."""
        unset = self.temperature is None and self.top_k is None and self.top_p is None
        return unset or self.temperature == 0 or self.top_k == 1 or self.top_p == 0

    @property
    def effective_temperature(self) -> float:
        """Temperature with the defaults filled in; 0 when greedy."""
        if self.is_greedy:
            return 0.0
        return 1.0 if self.temperature is None else self.temperature

    @property
    def effective_top_k(self) -> int:
        """Number of tokens kept; 0 keeps all."""
        return self.top_k or 0

    @property
    def effective_top_p(self) -> float:
        """Mass kept; 1 keeps all."""
        return 1.0 if self.top_p is None else self.top_p

    @property
    def effective_min_p(self) -> float:
        """Fraction of the highest probability below which tokens are dropped; 0 keeps all."""
        return self.min_p or 0.0

    @property
    def effective_min_tokens(self) -> int:
        """Number of tokens before which no end or stop token is drawn."""
        return self.min_tokens or 0

    @property
    def effective_repetition_penalty(self) -> float:
        """Repetition penalty; 1 is none."""
        return 1.0 if self.repetition_penalty is None else self.repetition_penalty

    @property
    def effective_presence_penalty(self) -> float:
        """Presence penalty; 0 is none."""
        return self.presence_penalty or 0.0

    @property
    def effective_frequency_penalty(self) -> float:
        """Frequency penalty; 0 is none."""
        return self.frequency_penalty or 0.0

    @property
    def has_penalties(self) -> bool:
        """Whether any penalty depends on the tokens so far."""
        return (
            self.effective_repetition_penalty != 1.0
            or self.effective_presence_penalty != 0.0
            or self.effective_frequency_penalty != 0.0
        )

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """The stop strings; empty when there are none."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def token_bias(self) -> dict[int, float]:
        """What is added to the logit of each token: `logit_bias`, with bad tokens at -inf."""
        bias = dict(self.logit_bias or {})
        bias.update((token, -math.inf) for token in self.bad_token_ids or ())
        return bias


def _bias(value: Any) -> float:
    if isinstance(value, float) and value == -math.inf:
        return value
    return checked_number(_KIND, "logit_bias", value, minimum=-_LARGEST, maximum=_LARGEST)
