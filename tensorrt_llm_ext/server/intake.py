# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""A request on its way in: its body, its prompts, and whether there is room for it."""

from __future__ import annotations

import hmac
import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

import anyio.to_thread
from starlette.requests import ClientDisconnect, Request

from tensorrt_llm_ext.engine.llm import LLM
from tensorrt_llm_ext.errors import ExtError
from tensorrt_llm_ext.server.errors import ApiError, bad_request
from tensorrt_llm_ext.server.options import ServeOptions
from tensorrt_llm_ext.server.protocol import ChatRequest

# Longer texts are encoded on a thread: the event loop serves everybody.
_LONG_TEXT = 2000


class Gate:
    """Counts requests in flight."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.is_closing = False
        self.num_inside = 0

    def enter(self) -> AbstractContextManager[None]:
        """Takes one place until the context ends.

        Raises:
            ApiError: Status 429 without room, 503 at shutdown.
        """
        if self.is_closing:
            raise ApiError(503, "The server is shutting down.", kind="server_error")
        if self.num_inside >= self._limit:
            raise ApiError(
                429,
                f"{self._limit} requests are in flight, as many as this server takes. Retry later.",
                kind="rate_limit_error",
                code="rate_limit_exceeded",
            )
        self.num_inside += 1
        return _Place(self)


class _Place(AbstractContextManager[None]):
    def __init__(self, gate: Gate) -> None:
        self._gate: Gate | None = gate

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        gate, self._gate = self._gate, None
        if gate is not None:
            gate.num_inside -= 1


def check_key(request: Request, key: str | None) -> None:
    """Refuses a request without the right bearer token."""
    if key is None:
        return
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not hmac.compare_digest(token.encode(), key.encode()):
        raise ApiError(
            401,
            "The API key is missing or wrong. Send it as 'Authorization: Bearer KEY'.",
            kind="authentication_error",
            code="invalid_api_key",
        )


async def read_json(request: Request, limit: int) -> Any:
    """Reads a body of at most so many bytes as JSON.

    Raises:
        ApiError: Status 413 for a longer body, 400 for one that is no JSON.
    """
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > limit:
                raise ApiError(413, f"The body is longer than {limit} bytes, which is the limit.")
    except ClientDisconnect as error:
        raise ApiError(499, "The client closed the connection.") from error
    try:
        return json.loads(bytes(body))
    except (ValueError, RecursionError) as error:
        raise bad_request(f"The body is no JSON: {str(error)[:200]}.") from error


async def encode(
    llm: LLM, prompt: str | Sequence[int], *, add_special_tokens: bool = True
) -> list[int]:
    """Returns the token ids of a prompt.

    Raises:
        ApiError: Status 400 if it has none, or cannot be encoded.
    """
    if not isinstance(prompt, str):
        ids = list(prompt)
    elif llm.tokenizer is None:
        raise bad_request("The prompt is a text, and the server has no tokenizer.", "prompt")
    else:
        tokenizer = llm.tokenizer
        try:
            prompt.encode()
            if len(prompt) < _LONG_TEXT:
                ids = tokenizer.encode(prompt, add_special_tokens=add_special_tokens)
            else:
                ids = await anyio.to_thread.run_sync(
                    lambda: tokenizer.encode(prompt, add_special_tokens=add_special_tokens)
                )
        except UnicodeError as error:
            raise bad_request("The prompt holds half a character (a lone surrogate).") from error
    if not ids:
        raise bad_request("The prompt has no tokens. Send at least one.", "prompt")
    return ids


def room_for(llm: LLM, num_prompt: int, max_tokens: int | None, field: str) -> int:
    """Returns how many tokens a request may generate: what it asks for, or all that is left.

    Raises:
        ApiError: Status 400 if prompt and new tokens do not fit.
    """
    left = llm.max_seq_len - num_prompt
    wanted = left if max_tokens is None else max_tokens
    if left < 1 or wanted > left:
        raise ApiError(
            400,
            f"The prompt has {num_prompt} tokens and {max(wanted, 1)} are to be generated; this "
            f"server holds {llm.max_seq_len} tokens per request. Shorten the prompt or lower "
            f"{field}.",
            param=field,
            code="context_length_exceeded",
        )
    return wanted


def render_chat(llm: LLM, request: ChatRequest, options: ServeOptions) -> str:
    """Returns the prompt of a conversation.

    Raises:
        ApiError: Status 400 if there is no template, or it refuses the messages.
    """
    messages = [message.plain() for message in request.messages]
    if llm.tokenizer is None:
        raise bad_request("Chats need a tokenizer, and the server has none.")
    template = options.chat_template or getattr(llm.tokenizer.hf_tokenizer, "chat_template", None)
    if not template:
        raise bad_request(
            "The model's tokenizer has no chat template. Start the server with --chat-template "
            "FILE, or use /v1/completions."
        )
    arguments = dict(request.chat_template_kwargs or {})
    for name in ("tokenize", "messages", "conversation", "chat_template", "add_generation_prompt"):
        if name in arguments:
            raise bad_request(f"{name} cannot be set here.", "chat_template_kwargs")
    if options.chat_template is not None:
        arguments["chat_template"] = options.chat_template
    try:
        return llm.tokenizer.apply_chat_template(
            messages, add_generation_prompt=request.add_generation_prompt, **arguments
        )
    except ExtError as error:
        raise bad_request(str(error), "messages") from error
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        # Templates are programs; what they stumble over is in the messages.
        raise bad_request(f"The chat template fails: {error}", "messages") from error


__all__ = ["Gate", "check_key", "encode", "read_json", "render_chat", "room_for"]
