# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Requests of the OpenAI API: every field is honoured, without effect, or refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr, ValidationError

from tensorrt_llm_ext.configs.sampling import SamplingParams
from tensorrt_llm_ext.errors import ExtError
from tensorrt_llm_ext.server.errors import ApiError, bad_request

_Integer = StrictInt
_Number = Annotated[float, Field(strict=False, allow_inf_nan=False)]
_Seed = Annotated[StrictInt, Field(ge=-(2**63), lt=2**64)]

# Fields of the API that change nothing here, whatever they hold.
_WITHOUT_EFFECT = frozenset(
    {
        "metadata",
        "parallel_tool_calls",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)
# Fields that this server cannot honour, why, and values that ask for nothing.
_REFUSED: Mapping[str, tuple[str, tuple[Any, ...]]] = {
    "audio": ("there is no audio", (None,)),
    "function_call": ("functions are not called", (None, "none")),
    "functions": ("functions are not called", (None, [])),
    "modalities": ("answers are text", (None, ["text"])),
    "prediction": ("predicted outputs are not used; a draft proposes tokens", (None,)),
    "reasoning_effort": ("there is no such setting in this model", (None,)),
    "response_format": ("guided decoding is not implemented", (None, {"type": "text"})),
    "suffix": ("text is not filled in", (None, "")),
    "tool_choice": ("tools are not called", (None, "none")),
    "tools": ("tools are not called", (None, [])),
    "verbosity": ("there is no such setting in this model", (None,)),
    "web_search_options": ("there is no search", (None,)),
}


class StreamOptions(BaseModel):
    """What a stream tells beside the text."""

    model_config = ConfigDict(extra="forbid")

    include_usage: StrictBool = False
    include_obfuscation: StrictBool = False


class _Common(BaseModel):
    """Fields of both routes, and what TensorRT-LLM and vLLM add to OpenAI's."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    model: StrictStr | None = None
    temperature: Annotated[_Number, Field(ge=0.0)] | None = None
    top_p: Annotated[_Number, Field(ge=0.0, le=1.0)] | None = None
    top_k: _Integer | None = None
    min_p: Annotated[_Number, Field(ge=0.0, le=1.0)] | None = None
    n: Annotated[_Integer, Field(ge=1)] = 1
    best_of: _Integer | None = None
    seed: _Seed | None = None
    stop: StrictStr | list[StrictStr] | None = None
    stop_token_ids: list[_Integer] | None = None
    include_stop_str_in_output: StrictBool = False
    presence_penalty: Annotated[_Number, Field(ge=-2.0, le=2.0)] | None = None
    frequency_penalty: Annotated[_Number, Field(ge=-2.0, le=2.0)] | None = None
    repetition_penalty: Annotated[_Number, Field(gt=0.0)] | None = None
    logit_bias: dict[StrictStr, _Number] | None = None
    min_tokens: Annotated[_Integer, Field(ge=0)] | None = None
    ignore_eos: StrictBool = False
    skip_special_tokens: StrictBool = True
    stream: StrictBool | None = False
    stream_options: StreamOptions | None = None
    return_spec_stats: StrictBool = False
    return_token_ids: StrictBool = False

    def sampling(
        self, max_tokens: int, logprobs: int | None, prompt_logprobs: int | None = None
    ) -> SamplingParams:
        """Returns the engine's parameters; OpenAI's temperature is 1 where none is given."""
        stop = [self.stop] if isinstance(self.stop, str) else self.stop
        values: dict[str, Any] = {
            "max_tokens": max_tokens,
            "temperature": 1.0 if self.temperature is None else self.temperature,
            "top_p": self.top_p or None,
            "top_k": self.top_k if self.top_k and self.top_k > 0 else None,
            "min_p": self.min_p,
            "n": self.n,
            "seed": None if self.seed is None else self.seed % 2**64,
            "stop": stop or None,
            "stop_token_ids": self.stop_token_ids or None,
            "include_stop_str_in_output": self.include_stop_str_in_output,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "repetition_penalty": self.repetition_penalty,
            "logit_bias": self._bias(),
            "min_tokens": self.min_tokens,
            "ignore_eos": self.ignore_eos,
            "skip_special_tokens": self.skip_special_tokens,
            "logprobs": logprobs,
            "prompt_logprobs": prompt_logprobs,
        }
        if values["temperature"] == 0.0 or self.top_p == 0.0:  # greedy: nothing else acts
            values |= {"temperature": 0.0, "top_p": None, "top_k": None, "min_p": None}
        if self.best_of not in (None, self.n):
            raise bad_request(
                f"best_of is {self.best_of}, expected n ({self.n}): candidates are not ranked.",
                "best_of",
            )
        if self.n > 1 and values["temperature"] == 0.0:
            raise bad_request(
                "n is above 1 and sampling is greedy: all choices would be equal.", "n"
            )
        try:
            return SamplingParams(**values)
        except ExtError as error:
            raise bad_request(str(error)) from error

    def _bias(self) -> dict[int, float] | None:
        if not self.logit_bias:
            return None
        try:
            return {int(token): value for token, value in self.logit_bias.items()}
        except ValueError as error:
            raise bad_request(
                "logit_bias maps token ids, as texts of digits, to numbers.", "logit_bias"
            ) from error

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with its token counts."""
        return self.stream_options is not None and self.stream_options.include_usage


class CompletionRequest(_Common):
    """`POST /v1/completions`."""

    prompt: StrictStr | list[StrictStr] | list[_Integer] | list[list[_Integer]]
    max_tokens: Annotated[_Integer, Field(ge=0)] | None = None
    echo: StrictBool = False
    logprobs: Annotated[_Integer, Field(ge=0, le=20)] | None = None
    add_special_tokens: StrictBool = True

    def prompts(self) -> list[str | list[int]]:
        """The prompts, each a text or token ids."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if self.prompt and all(isinstance(item, int) for item in self.prompt):
            return [[item for item in self.prompt if isinstance(item, int)]]
        return [item for item in self.prompt if isinstance(item, (str, list))]


class ChatMessage(BaseModel):
    """One message; content is text, or parts of text."""

    model_config = ConfigDict(extra="allow")

    role: StrictStr
    content: StrictStr | list[dict[str, Any]] | None = None

    def plain(self) -> dict[str, Any]:
        """The message as a template takes it."""
        content = self.content
        if isinstance(content, list):
            parts = [part.get("text") for part in content if part.get("type") == "text"]
            if len(parts) != len(content) or not all(isinstance(part, str) for part in parts):
                raise bad_request("messages hold parts that are no text.", "messages")
            content = "".join(str(part) for part in parts)
        return {**(self.model_extra or {}), "role": self.role, "content": content or ""}


class ChatRequest(_Common):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_tokens: Annotated[_Integer, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[_Integer, Field(ge=1)] | None = None
    logprobs: StrictBool | None = False
    top_logprobs: Annotated[_Integer, Field(ge=0, le=20)] | None = None
    add_generation_prompt: StrictBool = True
    chat_template_kwargs: dict[str, Any] | None = None


R = TypeVar("R", bound=_Common)


def parse(kind: type[R], values: object) -> R:
    """Checks a request body.

    Raises:
        ApiError: Status 400, naming the field.
    """
    if not isinstance(values, dict):
        raise bad_request("The body must be a JSON object.")
    left = dict(values)
    for name in _WITHOUT_EFFECT & left.keys():
        del left[name]
    for name in _REFUSED.keys() & left.keys():
        reason, unused = _REFUSED[name]
        value = left.pop(name)
        if not any(value == item and type(value) is type(item) for item in unused):
            raise bad_request(f"{name} cannot be honoured: {reason}.", name)
    try:
        return kind.model_validate(left)
    except ValidationError as error:
        raise _first(error) from error


def _first(error: ValidationError) -> ApiError:
    found = error.errors(include_url=False, include_input=False, include_context=False)[0]
    path = ".".join(str(part) for part in found["loc"])
    field = str(found["loc"][0]) if found["loc"] else None
    if found["type"] == "extra_forbidden":
        return bad_request(f"Unknown field {path!r}.", field)
    return bad_request(f"{path}: {found['msg']}.", field)


FinishReason = Literal["stop", "length"]

__all__ = ["ChatMessage", "ChatRequest", "CompletionRequest", "StreamOptions", "parse"]
