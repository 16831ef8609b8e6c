# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""A request in flight, as the threads outside of the engine see it."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tensorrt_llm_ext.configs.sampling import SamplingParams
from tensorrt_llm_ext.engine.outputs import CompletionOutput, RequestOutput, SequenceAssembler
from tensorrt_llm_ext.engine.request import TokenUpdate
from tensorrt_llm_ext.speculative.stats import AcceptanceStats

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceRequest:
    """A request as the service takes it: tokens, and one seed per sequence.

    Attributes:
        request_id: Number given by the front end.
        prompt: The text given, None when token ids were.
        prompt_token_ids: What the model sees.
        sampling: How to draw, and when to stop.
        eos_token_ids: Tokens that end a sequence.
        seeds: One per sequence; there are as many sequences as seeds.
        streaming: Whether the handle yields after each step or once at the end.
    """

    request_id: int
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    eos_token_ids: tuple[int, ...]
    seeds: tuple[int, ...]
    streaming: bool = False


class GenerationHandle:
    """A request in flight: await it, iterate over it, ask for its result, or abort it.

    Iterating yields a `RequestOutput` whenever there is something new (once, at the end, unless
    the request streams); steps that passed meanwhile are joined. It may be read from any thread
    and any event loop, by one iterator at a time.
    """

    def __init__(
        self,
        request: ServiceRequest,
        sequences: Sequence[SequenceAssembler],
        abort: Callable[[GenerationHandle], None],
    ) -> None:
        self.request = request
        self._sequences = tuple(sequences)
        self._abort = abort
        self._condition = threading.Condition()
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self._callbacks: list[Callable[[], None]] = []
        self._has_news = False
        self._is_finished = False
        self._is_exhausted = False
        self._error: Exception | None = None

    @property
    def request_id(self) -> int:
        """Number of the request within its `LLM`."""
        return self.request.request_id

    @property
    def prompt(self) -> str | None:
        """The text given, None when token ids were."""
        return self.request.prompt

    @property
    def prompt_token_ids(self) -> list[int]:
        """What the model sees."""
        return list(self.request.prompt_token_ids)

    @property
    def outputs(self) -> list[CompletionOutput]:
        """The sequences as they are now; reading them does not move the diffs."""
        with self._condition:
            return self._snapshot(advance=False).outputs

    @property
    def finished(self) -> bool:
        """Whether it ended: complete, aborted or failed."""
        return self._is_finished

    def result(self, timeout: float | None = None) -> RequestOutput:
        """Waits for the end and returns all of it.

        Args:
            timeout: Seconds to wait; without limit when None.

        Raises:
            TimeoutError: If it did not end in time; it keeps running.
            ExtError: If the request was refused, or the engine was shut down.
            Exception: Whatever a step raised.
        """
        with self._condition:
            if not self._condition.wait_for(lambda: self._is_finished, timeout):
                raise TimeoutError(
                    f"request {self.request_id} did not finish within {timeout} s; it keeps "
                    "running: call result() again, or abort()"
                )
            if self._error is not None:
                raise self._error
            return self._snapshot(advance=False)

    async def aresult(self) -> RequestOutput:
        """Waits for the end without blocking the event loop; errors as with `result`."""
        await self._wait_for(lambda: self._is_finished)
        return self.result()

    def abort(self) -> None:
        """Ends the request soon; what was generated stays, with finish reason `cancelled`."""
        self._abort(self)

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        """Calls `callback` when the request ends, on the engine's thread, or now if it has.

        What it raises is logged.
        """
        with self._condition:
            if not self._is_finished:
                self._callbacks.append(callback)
                return
        _call([callback])

    def __await__(self) -> Generator[Any, None, RequestOutput]:
        """`await handle` is `await handle.aresult()`."""
        return self.aresult().__await__()

    def __iter__(self) -> Iterator[RequestOutput]:
        """Iterates over the output as it grows, blocking in between."""
        return self

    def __next__(self) -> RequestOutput:
        """Returns the next output, or ends after the final one."""
        with self._condition:
            self._condition.wait_for(self._can_yield)
            output = self._take()
        if output is None:
            raise StopIteration
        return output

    def __aiter__(self) -> AsyncIterator[RequestOutput]:
        """Iterates over the output as it grows, without blocking the event loop."""
        return self

    async def __anext__(self) -> RequestOutput:
        """Returns the next output, or ends after the final one."""
        await self._wait_for(self._can_yield)
        with self._condition:
            output = self._take()
        if output is None:
            raise StopAsyncIteration
        return output

    def _can_yield(self) -> bool:
        return self._is_finished or (self.request.streaming and self._has_news)

    def _take(self) -> RequestOutput | None:
        if self._is_exhausted:
            return None
        self._has_news = False
        self._is_exhausted = self._is_finished
        if self._error is not None:
            raise self._error
        return self._snapshot(advance=True)

    def _snapshot(self, *, advance: bool) -> RequestOutput:
        acceptance = AcceptanceStats()
        for sequence in self._sequences:
            acceptance.merge(sequence.acceptance)
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt,
            prompt_token_ids=self.prompt_token_ids,
            outputs=[sequence.snapshot(advance=advance) for sequence in self._sequences],
            finished=self._is_finished,
            acceptance=acceptance,
        )

    async def _wait_for(self, predicate: Callable[[], bool]) -> None:
        loop = asyncio.get_running_loop()
        while True:
            with self._condition:
                if predicate():
                    return
                future: asyncio.Future[None] = loop.create_future()
                self._waiters.append((loop, future))
            await future

    # What follows is called by the service, on its thread.

    def apply(self, index: int, update: TokenUpdate) -> bool:
        """Hands an update to one sequence; True when the core must abort that sequence."""
        with self._condition:
            must_abort = self._sequences[index].apply(update)
            self._has_news = True
            self._is_finished = all(s.finish_reason is not None for s in self._sequences)
            callbacks = self._wake()
        _call(callbacks)
        return must_abort

    def end(self, error: Exception | None = None) -> None:
        """Ends the request where it is, as failed or (without error) as aborted; once only."""
        with self._condition:
            if self._is_finished:
                return
            for sequence in self._sequences:
                sequence.cancel()
            self._error = error
            self._is_finished = self._has_news = True
            callbacks = self._wake()
        _call(callbacks)

    def _wake(self) -> list[Callable[[], None]]:
        """Wakes whoever waits, if there is something for them; returns what to call unlocked."""
        if not self._can_yield():
            return []
        self._condition.notify_all()
        waiters, self._waiters = self._waiters, []
        for loop, future in waiters:
            try:
                loop.call_soon_threadsafe(_resolve, future)
            except RuntimeError:  # the loop of an abandoned waiter is closed
                logger.debug("the event loop waiting for request %d is closed", self.request_id)
        if not self._is_finished:
            return []
        callbacks, self._callbacks = self._callbacks, []
        return callbacks


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _call(callbacks: list[Callable[[], None]]) -> None:
    for callback in callbacks:
        try:
            callback()
        except Exception:
            # Not ours, and the thread it runs on serves everybody.
            logger.exception("a done callback raised")
