# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Outputs of the engine as OpenAI's responses, whole and in pieces."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from tensorrt_llm_ext.engine.outputs import CompletionOutput, RequestOutput
from tensorrt_llm_ext.engine.request import Logprob
from tensorrt_llm_ext.engine.tokenizer import Tokenizer
from tensorrt_llm_ext.speculative.stats import AcceptanceStats

Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a response of one request looks like.

    Attributes:
        is_chat: Whether it is of the chat route.
        model: Name of the model.
        tokenizer: For the texts of tokens; None without text.
        logprobs: Whether they were asked for.
        spec_stats: Whether acceptance was asked for.
        token_ids: Whether the ids of tokens were asked for.
        identity: Id of the response.
        created: Unix time.
    """

    is_chat: bool
    model: str
    tokenizer: Tokenizer | None
    logprobs: bool
    spec_stats: bool
    token_ids: bool = False
    identity: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))

    def envelope(self, *, is_piece: bool) -> Json:
        """Everything but the choices."""
        kind = "chat.completion" if self.is_chat else "text_completion"
        prefix = "chatcmpl" if self.is_chat else "cmpl"
        return {
            "id": f"{prefix}-{self.identity}",
            "object": f"{kind}.chunk" if is_piece and self.is_chat else kind,
            "created": self.created,
            "model": self.model,
        }


@dataclass(frozen=True)
class Echo:
    """What stands in front of a choice: nothing, or the prompt."""

    text: str = ""
    token_ids: Sequence[int] = ()


def whole(shape: Shape, outputs: Sequence[RequestOutput], echoes: Sequence[Echo]) -> Json:
    """The response to a request that does not stream.

    Args:
        shape: What it looks like.
        outputs: One per prompt.
        echoes: What stands in front of each prompt's choices.
    """
    choices: list[Json] = []
    for output, echo in zip(outputs, echoes, strict=True):
        for choice in output.outputs:
            choices.append(_choice(shape, choice, len(choices), echo))
    answer = {**shape.envelope(is_piece=False), "choices": choices, "usage": usage(outputs)}
    if shape.spec_stats:
        answer["spec_stats"] = spec_stats(outputs)
    return answer


def _choice(shape: Shape, choice: CompletionOutput, index: int, echo: Echo) -> Json:
    end = _end(shape, choice, choice.token_ids)
    logprobs = _logprobs(shape, choice, (choice.token_ids, choice.logprobs), echo)
    if shape.is_chat:
        message = {"role": "assistant", "content": choice.text, "refusal": None}
        return {"index": index, "message": message, "logprobs": logprobs, **end}
    return {"index": index, "text": echo.text + choice.text, "logprobs": logprobs, **end}


def piece(
    shape: Shape, choice: CompletionOutput, index: int, *, offset: int = 0, echo: Echo | None = None
) -> Json:
    """What is new of one choice.

    Args:
        shape: What it looks like.
        choice: As the handle yielded it.
        index: Number of the choice in the response.
        offset: Characters that were sent of it.
        echo: What stands in front of its first piece.
    """
    echo = echo or Echo()
    end = _end(shape, choice, choice.token_ids_diff)
    new = (choice.token_ids_diff, choice.logprobs_diff)
    logprobs = _logprobs(shape, choice, new, echo, offset)
    if shape.is_chat:
        body: Json = {"delta": {"content": choice.text_diff}}
    else:
        body = {"text": echo.text + choice.text_diff}
    parts = {"index": index, **body, "logprobs": logprobs, **end}
    return {**shape.envelope(is_piece=True), "choices": [parts]}


def _end(shape: Shape, choice: CompletionOutput, tokens: Sequence[int]) -> Json:
    end: Json = {"finish_reason": choice.finish_reason, "stop_reason": choice.stop_reason}
    return {**end, "token_ids": list(tokens)} if shape.token_ids else end


def opening(shape: Shape, index: int) -> Json:
    """The first piece of a chat's choice: who speaks."""
    delta = {"role": "assistant", "content": ""}
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
    return {**shape.envelope(is_piece=True), "choices": [choice]}


def ending(shape: Shape, outputs: Sequence[RequestOutput]) -> Json:
    """The last piece of a stream that tells its usage."""
    last: Json = {**shape.envelope(is_piece=True), "choices": [], "usage": usage(outputs)}
    if shape.spec_stats:
        last["spec_stats"] = spec_stats(outputs)
    return last


def usage(outputs: Sequence[RequestOutput]) -> Json:
    """Token counts; every prompt is counted once."""
    prompt = sum(len(output.prompt_token_ids) for output in outputs)
    new = sum(len(choice.token_ids) for output in outputs for choice in output.outputs)
    return {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new}


def spec_stats(outputs: Sequence[RequestOutput]) -> Json:
    """Acceptance of the request's drafts."""
    stats = AcceptanceStats()
    for output in outputs:
        stats.merge(output.acceptance)
    return {
        "num_drafts": stats.num_steps,
        "num_draft_tokens": stats.num_drafted,
        "num_accepted_tokens": stats.num_accepted,
        "num_accepted_tokens_per_pos": stats.accepted_per_position,
        "acceptance_length": stats.acceptance_length,
        "acceptance_rate": stats.acceptance_rate,
    }


def _logprobs(
    shape: Shape,
    choice: CompletionOutput,
    new: tuple[Sequence[int], Sequence[dict[int, Logprob]]],
    echo: Echo,
    offset: int = 0,
) -> Json | None:
    if not shape.logprobs:
        return None
    if shape.is_chat:
        content = [
            {**_entry(shape, token, row[token].logprob), "top_logprobs": _top(shape, row)}
            for token, row in zip(*new, strict=True)
        ]
        return {"content": content, "refusal": None}
    tokens = [*echo.token_ids, *new[0]]
    # Nothing stands before the first token of a prompt: OpenAI says null.
    rows: list[dict[int, Logprob] | None] = [None, *choice.prompt_logprobs]
    rows = [*rows[: len(echo.token_ids)], *new[1]]
    texts = [_text(shape, token) for token in tokens]
    return {
        "tokens": texts,
        "token_logprobs": [
            None if row is None else row[token].logprob
            for token, row in zip(tokens, rows, strict=True)
        ],
        "top_logprobs": [None if row is None else _alternatives(shape, row) for row in rows],
        "text_offset": list(accumulate(map(len, texts[:-1]), initial=offset)) if texts else [],
    }


def _alternatives(shape: Shape, row: dict[int, Logprob]) -> Json:
    return {_text(shape, token): entry.logprob for token, entry in row.items()}


def _top(shape: Shape, row: dict[int, Logprob]) -> list[Json]:
    return [_entry(shape, token, entry.logprob) for token, entry in row.items()]


def _entry(shape: Shape, token: int, logprob: float) -> Json:
    text = _text(shape, token)
    return {"token": text, "logprob": logprob, "bytes": list(text.encode())}


def _text(shape: Shape, token: int) -> str:
    if shape.tokenizer is None:
        return f"token_id:{token}"
    return shape.tokenizer.decode([token], skip_special_tokens=False)


__all__ = ["Echo", "Shape", "ending", "opening", "piece", "spec_stats", "usage", "whole"]
