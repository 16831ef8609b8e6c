# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The routes: OpenAI's, and those that trtllm-serve has beside them."""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tensorrt_llm_ext import __version__
from tensorrt_llm_ext.configs.sampling import SamplingParams
from tensorrt_llm_ext.engine.llm import LLM
from tensorrt_llm_ext.errors import ExtError
from tensorrt_llm_ext.server.answers import Echo, Shape
from tensorrt_llm_ext.server.errors import ApiError, bad_request
from tensorrt_llm_ext.server.generation import Job
from tensorrt_llm_ext.server.intake import (
    Gate,
    check_key,
    encode,
    read_json,
    render_chat,
    room_for,
)
from tensorrt_llm_ext.server.metrics import CONTENT_TYPE, Metrics
from tensorrt_llm_ext.server.options import ServeOptions
from tensorrt_llm_ext.server.protocol import ChatRequest, CompletionRequest, parse

logger = logging.getLogger(__name__)
_DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's
_CLIENT_GONE = 499


def _body_of(kind: type[ChatRequest] | type[CompletionRequest]) -> dict[str, Any]:
    schema = kind.model_json_schema()
    content = {"application/json": {"schema": schema}}
    return {"requestBody": {"required": True, "content": content}}


_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"description": text}
    for status, text in (
        (400, "The request cannot be served as it is."),
        (401, "The API key is missing or wrong."),
        (404, "There is no such model or route."),
        (408, "The request took too long."),
        (413, "The body is too long."),
        (429, "Too many requests are in flight."),
    )
}


class Server:
    """One model behind HTTP.

    Args:
        llm: The engine.
        options: How requests are taken in.
    """

    def __init__(self, llm: LLM, options: ServeOptions) -> None:
        self.llm, self.options = llm, options
        self.gate = Gate(options.max_concurrent)
        self.metrics = Metrics(
            options.model_name, lambda: llm.snapshot, lambda: self.gate.num_inside
        )
        self._created = int(time.time())
        if not llm.has_graphs:  # a captured step cannot be taken apart
            llm.reset_phases()

    async def completions(self, request: Request) -> Response:
        """`POST /v1/completions`."""
        asked = parse(CompletionRequest, await self._body(request))
        self._check_model(asked.model)
        prompts = asked.prompts()
        self._check_counts(len(prompts), asked.n)
        wanted = _DEFAULT_COMPLETION_TOKENS if asked.max_tokens is None else asked.max_tokens
        if wanted == 0 and not asked.echo:
            raise bad_request("max_tokens is 0, expected at least 1 without echo.", "max_tokens")
        ids = [
            await encode(self.llm, prompt, add_special_tokens=asked.add_special_tokens)
            for prompt in prompts
        ]
        for tokens in ids:
            room_for(self.llm, len(tokens), max(wanted, 1), "max_tokens")
        of_prompt = asked.logprobs if asked.echo else None
        sampling = asked.sampling(max(wanted, 1), asked.logprobs, of_prompt)
        shape = self._shape(asked, is_chat=False, logprobs=asked.logprobs is not None)
        echoes = [Echo()] * len(ids)
        if asked.echo:
            echoes = [self._echo(p, tokens) for p, tokens in zip(prompts, ids, strict=True)]
        return await self._generate(request, asked, (ids, echoes), sampling, shape)

    async def chat(self, request: Request) -> Response:
        """`POST /v1/chat/completions`."""
        asked = parse(ChatRequest, await self._body(request))
        self._check_model(asked.model)
        self._check_counts(1, asked.n)
        if asked.top_logprobs is not None and not asked.logprobs:
            raise bad_request("top_logprobs needs logprobs: true.", "top_logprobs")
        text = render_chat(self.llm, asked, self.options)
        ids = await encode(self.llm, text, add_special_tokens=False)
        limit = asked.max_completion_tokens or asked.max_tokens
        wanted = room_for(self.llm, len(ids), limit, "max_completion_tokens")
        logprobs = (asked.top_logprobs or 0) if asked.logprobs else None
        sampling = asked.sampling(wanted, logprobs)
        shape = self._shape(asked, is_chat=True, logprobs=bool(asked.logprobs))
        return await self._generate(request, asked, ([ids], [Echo()]), sampling, shape)

    async def models(self, request: Request) -> Response:
        """`GET /v1/models`."""
        check_key(request, self.options.api_key)
        return JSONResponse({"object": "list", "data": [self._card()]})

    async def model(self, request: Request) -> Response:
        """`GET /v1/models/{model}`."""
        check_key(request, self.options.api_key)
        self._check_model(request.path_params["model"])
        return JSONResponse(self._card())

    def _card(self) -> dict[str, Any]:
        return {
            "id": self.options.model_name,
            "object": "model",
            "created": self._created,
            "owned_by": "tensorrt_llm_ext",
            "max_model_len": self.llm.max_seq_len,
        }

    async def health(self, request: Request) -> Response:
        """`GET /health`: whether the engine takes requests."""
        is_fine = self.llm.is_alive and not self.gate.is_closing
        return Response(status_code=200 if is_fine else 503)

    async def health_generate(self, request: Request) -> Response:
        """`GET /health_generate`: whether the engine generates a token."""
        handle = self.llm.generate_async([0], SamplingParams(max_tokens=1, ignore_eos=True))
        await handle.aresult()
        return Response(status_code=200)

    async def iterations(self, request: Request) -> Response:
        """`GET /metrics`: the host's iteration statistics."""
        return JSONResponse(self.metrics.iterations())

    async def prometheus(self, request: Request) -> Response:
        """`GET /prometheus/metrics`."""
        return Response(self.metrics.render(), media_type=CONTENT_TYPE)

    async def version(self, request: Request) -> Response:
        """`GET /version`."""
        return JSONResponse({"version": __version__})

    async def _body(self, request: Request) -> Any:
        check_key(request, self.options.api_key)
        return await read_json(request, self.options.max_body_bytes)

    def _check_model(self, name: str | None) -> None:
        if name is not None and name != self.options.model_name:
            raise ApiError(
                404,
                f"There is no model {name!r} here, only {self.options.model_name!r}.",
                param="model",
                code="model_not_found",
            )

    def _check_counts(self, num_prompts: int, n: int) -> None:
        options = self.options
        if not 1 <= num_prompts <= options.max_prompts:
            raise bad_request(
                f"{num_prompts} prompts, expected 1 to {options.max_prompts}.", "prompt"
            )
        if n > options.max_choices:
            raise bad_request(f"n is {n}, expected at most {options.max_choices}.", "n")

    def _shape(
        self, asked: CompletionRequest | ChatRequest, *, is_chat: bool, logprobs: bool
    ) -> Shape:
        return Shape(
            is_chat=is_chat,
            model=self.options.model_name,
            tokenizer=self.llm.tokenizer,
            logprobs=logprobs,
            spec_stats=asked.return_spec_stats,
            token_ids=asked.return_token_ids,
        )

    def _echo(self, prompt: str | list[int], ids: list[int]) -> Echo:
        if isinstance(prompt, str):
            return Echo(prompt, ids)
        tokenizer = self.llm.tokenizer
        text = "" if tokenizer is None else tokenizer.decode(ids, skip_special_tokens=False)
        return Echo(text, ids)

    async def _generate(
        self,
        request: Request,
        asked: CompletionRequest | ChatRequest,
        prompts: tuple[list[list[int]], list[Echo]],
        sampling: SamplingParams,
        shape: Shape,
    ) -> Response:
        ids, echoes = prompts
        place = self.gate.enter()
        try:
            # Every step is followed, streamed or not: latencies are counted from them.
            handles = [self.llm.generate_async(t, sampling, streaming=True) for t in ids]
        except ExtError as error:
            place.__exit__(None, None, None)
            raise bad_request(str(error)) from error
        job = Job(
            handles=handles,
            shape=shape,
            metrics=self.metrics,
            seconds=self.options.request_seconds,
            echoes=echoes,
            wants_usage=asked.wants_usage,
            is_alive=lambda: self.llm.is_alive,
            is_echo_only=isinstance(asked, CompletionRequest) and asked.max_tokens == 0,
        )
        if not asked.stream:
            with place:
                return JSONResponse(await job.whole(request))

        async def events() -> Any:
            with place:
                async for event in job.events():
                    yield event

        return StreamingResponse(events(), media_type="text/event-stream")


def create_app(llm: LLM, options: ServeOptions) -> FastAPI:
    """Makes the application of one model.

    Args:
        llm: The engine; it is not shut down here.
        options: How requests are taken in.
    """
    server = Server(llm, options)
    app = FastAPI(title="trtllm-ext serve", version=__version__, docs_url=None, redoc_url=None)
    app.state.server = server
    posts: tuple[tuple[str, Callable[..., Any], Any], ...] = (
        ("/v1/completions", server.completions, CompletionRequest),
        ("/v1/chat/completions", server.chat, ChatRequest),
    )
    for path, run, kind in posts:
        app.add_api_route(
            path, run, methods=["POST"], openapi_extra=_body_of(kind), responses=_ERRORS
        )
    gets: tuple[tuple[str, Callable[..., Any]], ...] = (
        ("/v1/models", server.models),
        ("/v1/models/{model:path}", server.model),
        ("/health", server.health),
        ("/health_generate", server.health_generate),
        ("/metrics", server.iterations),
        ("/prometheus/metrics", server.prometheus),
        ("/version", server.version),
    )
    for path, run in gets:
        app.add_api_route(path, run, methods=["GET"], responses={401: _ERRORS[401]})
    app.add_exception_handler(ApiError, _answer_error)
    app.add_exception_handler(HTTPException, _answer_http_error)
    app.add_exception_handler(Exception, _answer_failure)
    app.add_middleware(_RequestLog)
    return app


async def _answer_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    request.app.state.server.metrics.failed(error.status)
    return JSONResponse(error.body(), status_code=error.status)


async def _answer_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    answer = ApiError(error.status_code, f"{request.method} {request.url.path}: {error.detail}.")
    headers = dict(error.headers or {})
    return JSONResponse(answer.body(), status_code=error.status_code, headers=headers)


async def _answer_failure(request: Request, error: Exception) -> Response:
    logger.exception("a request failed", exc_info=error)
    request.app.state.server.metrics.failed(500)
    answer = ApiError(500, f"The server failed: {type(error).__name__}.", kind="server_error")
    return JSONResponse(answer.body(), status_code=500)


class _RequestLog:
    """Gives every request an id, and one line of JSON in the log.

    It is plain ASGI: a middleware that wraps responses would hide when clients go away.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes everything on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        identity = given if 0 < len(given) <= 128 and given.isprintable() else uuid.uuid4().hex
        begin, status = time.monotonic(), 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = identity
            await send(message)

        try:
            await self._app(scope, receive, sending)
        finally:
            line = {
                "event": "request",
                "request_id": identity,
                "method": scope["method"],
                "path": scope["path"],
                "status": status,
                "seconds": round(time.monotonic() - begin, 4),
            }
            level = logging.INFO if 0 < status < _CLIENT_GONE else logging.WARNING
            logger.log(level, "%s", json.dumps(line))


__all__ = ["Server", "create_app"]
