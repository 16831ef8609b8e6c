# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Requests inside the engine: waited for, streamed, ended when the client is gone."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from starlette.requests import Request

from tensorrt_llm_ext.engine.handle import GenerationHandle
from tensorrt_llm_ext.engine.outputs import RequestOutput
from tensorrt_llm_ext.errors import ExtError
from tensorrt_llm_ext.server import answers
from tensorrt_llm_ext.server.errors import ApiError
from tensorrt_llm_ext.server.metrics import Metrics, RequestTimes

T = TypeVar("T")
_DONE = b"data: [DONE]\n\n"


@dataclass
class Job:
    """The prompts of one HTTP request in the engine.

    Attributes:
        handles: One per prompt.
        shape: Of the response.
        metrics: Told about every token.
        seconds: Limit; None for none.
        echoes: What stands in front of each prompt's choices.
        is_echo_only: Whether the one token that the engine makes at least is left out.
        wants_usage: Whether a stream ends with its counts.
        is_alive: Whether the engine still takes requests.
    """

    handles: Sequence[GenerationHandle]
    shape: answers.Shape
    metrics: Metrics
    seconds: float | None
    echoes: Sequence[answers.Echo]
    wants_usage: bool
    is_alive: Callable[[], bool]
    is_echo_only: bool = False
    begin: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        """Starts the clocks."""
        self.times = [RequestTimes() for _ in self.handles]
        self.outputs: list[RequestOutput | None] = [None] * len(self.handles)

    async def whole(self, request: Request) -> dict[str, Any]:
        """Waits for all prompts and returns the response.

        Raises:
            ApiError: If the client left, time ran out, or the engine failed.
        """
        gone = asyncio.ensure_future(_disconnected(request))
        work = asyncio.ensure_future(self._all())
        try:
            await asyncio.wait(
                {gone, work}, timeout=self._left(), return_when=asyncio.FIRST_COMPLETED
            )
            if work.done():
                outputs = await self._guarded(_now(work))
                return answers.whole(self.shape, outputs, self.echoes)
            if gone.done():
                raise ApiError(499, "The client closed the connection.")
            raise self._late()
        finally:
            self.abort()
            for task in (gone, work):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await task

    async def _all(self) -> list[RequestOutput]:
        outputs = []
        for index, handle in enumerate(self.handles):
            outputs.append(await self._follow(index, handle))
        return outputs

    async def _follow(self, index: int, handle: GenerationHandle) -> RequestOutput:
        async for output in handle:
            self._note(index, output)
        return self._shown(await handle.aresult())

    def _note(self, index: int, output: RequestOutput) -> RequestOutput:
        self.metrics.saw(self.times[index], sum(len(o.token_ids) for o in output.outputs))
        if output.finished:
            self.metrics.finished(self.times[index], output)
        self.outputs[index] = output = self._shown(output)
        return output

    def _shown(self, output: RequestOutput) -> RequestOutput:
        if not self.is_echo_only:
            return output
        nothing: dict[str, Any] = {"text": "", "token_ids": [], "logprobs": []}
        nothing |= {"text_diff": "", "token_ids_diff": [], "logprobs_diff": []}
        choices = [
            replace(o, **nothing, finish_reason=o.finish_reason and "length", stop_reason=None)
            for o in output.outputs
        ]
        return replace(output, outputs=choices)

    async def events(self) -> AsyncIterator[bytes]:
        """The response as server-sent events; errors become the last one."""
        shape = self.shape
        try:
            choices = len(self.handles[0].outputs)
            if shape.is_chat:
                for index in range(choices):
                    yield _event(answers.opening(shape, index))
            sent = [0] * (choices * len(self.handles))
            async for index, output in self._news():
                for choice in output.outputs:
                    number = index * choices + choice.index
                    for event in self._pieces(index, choice, number, sent):
                        yield event
            if self.wants_usage:
                known = [output for output in self.outputs if output is not None]
                yield _event(answers.ending(shape, known))
        except ApiError as error:
            self.metrics.failed(error.status)
            yield _event(error.body())
        finally:
            self.abort()
        yield _DONE

    def _pieces(self, index: int, choice: Any, number: int, sent: list[int]) -> list[bytes]:
        is_first = sent[number] == 0
        echo = self.echoes[index] if is_first else answers.Echo()
        has_news = choice.text_diff or choice.token_ids_diff or choice.finish_reason is not None
        if sent[number] < 0 or not (has_news or echo.text):
            return []
        offset = 0 if is_first else sent[number] - 1
        made = answers.piece(self.shape, choice, number, offset=offset, echo=echo)
        sent[number] = 1 + offset + len(echo.text) + len(choice.text_diff)
        if choice.finish_reason is not None:
            sent[number] = -1  # said once, whatever its siblings still do
        return [_event(made)]

    async def _news(self) -> AsyncIterator[tuple[int, RequestOutput]]:
        """Outputs of all handles as they come."""
        queue: asyncio.Queue[tuple[int, RequestOutput | Exception | None]] = asyncio.Queue()

        async def pump(index: int, handle: GenerationHandle) -> None:
            try:
                async for output in handle:
                    queue.put_nowait((index, output))
                queue.put_nowait((index, None))
            except Exception as error:  # noqa: BLE001 - the reader raises it
                queue.put_nowait((index, error))

        tasks = [asyncio.ensure_future(pump(i, handle)) for i, handle in enumerate(self.handles)]
        try:
            running = len(tasks)
            while running:
                index, item = await self._within(queue.get())
                if item is None:
                    running -= 1
                elif isinstance(item, Exception):
                    raise self._as_api_error(item) from item
                else:
                    yield index, self._note(index, item)
        finally:
            for task in tasks:
                task.cancel()

    async def _within(self, waited: Awaitable[T]) -> T:
        try:
            return await asyncio.wait_for(waited, self._left())
        except (TimeoutError, asyncio.TimeoutError) as error:
            raise self._late() from error

    async def _guarded(self, waited: Awaitable[T]) -> T:
        try:
            return await waited
        except Exception as error:
            raise self._as_api_error(error) from error

    def _as_api_error(self, error: Exception) -> ApiError:
        if isinstance(error, ApiError):
            return error
        if isinstance(error, ExtError) and not self.is_alive():
            return ApiError(503, "The server is shutting down.", kind="server_error")
        if isinstance(error, ExtError):
            return ApiError(400, str(error))
        return ApiError(500, f"The engine failed: {type(error).__name__}.", kind="server_error")

    def _left(self) -> float | None:
        return None if self.seconds is None else self.begin + self.seconds - time.monotonic()

    def _late(self) -> ApiError:
        return ApiError(
            408, f"The request took longer than {self.seconds} s and was ended.", kind="timeout"
        )

    def abort(self) -> None:
        """Ends what is still running; its blocks are free after the engine's current step."""
        for handle in self.handles:
            handle.abort()


async def _now(task: asyncio.Future[T]) -> T:
    return task.result()


async def _disconnected(request: Request) -> None:
    """Returns when the client is gone; the body was read before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _event(value: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(value, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()


__all__ = ["Job"]
