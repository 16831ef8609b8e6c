# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""One thread that owns an engine core."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from tensorrt_llm_ext.engine.core import EngineCore
from tensorrt_llm_ext.engine.handle import GenerationHandle
from tensorrt_llm_ext.engine.request import RequestStatus, TokenUpdate
from tensorrt_llm_ext.engine.snapshot import EngineSnapshot
from tensorrt_llm_ext.errors import RequestError
from tensorrt_llm_ext.speculative.stats import AcceptanceStats

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Mailbox:
    """What other threads want from the engine's thread."""

    added: list[GenerationHandle] = field(default_factory=list)
    aborted: list[GenerationHandle] = field(default_factory=list)
    is_closing: bool = False
    finishes_first: bool = False

    @property
    def is_empty(self) -> bool:
        return not (self.added or self.aborted or self.is_closing)


class EngineService:
    """Runs a core on a thread of its own.

    The thread starts with the first request, sleeps while there is none, and ends with `shutdown`.
    """

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._condition = threading.Condition()
        self._mailbox = _Mailbox()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._snapshot = core.snapshot()
        # Sequences inside the core, by the core's id. Only the engine's thread touches it.
        self._active: dict[int, tuple[GenerationHandle, int]] = {}

    @property
    def is_closed(self) -> bool:
        """Whether `shutdown` was called."""
        return self._is_closed

    @property
    def max_seq_len(self) -> int:
        """Tokens of one request."""
        return self._core.max_seq_len

    @property
    def core(self) -> EngineCore:
        """The core, for who knows that no request is in flight."""
        return self._core

    @property
    def acceptance(self) -> AcceptanceStats:
        """Acceptance since the start, pooled over all requests, as of the last complete step."""
        return self._snapshot.acceptance.copy()

    @property
    def snapshot(self) -> EngineSnapshot:
        """Counts as of the last complete step, or of the last request that came or went."""
        return self._snapshot

    def submit(self, handles: Sequence[GenerationHandle]) -> None:
        """Queues requests; those of one call enter the engine before the same step.

        Raises:
            RequestError: If the engine was shut down.
        """
        with self._condition:
            if self._is_closed:
                raise RequestError("The engine was shut down. Make a new LLM.")
            self._mailbox.added.extend(handles)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="trtllm-ext-engine", daemon=True
                )
                self._thread.start()
            self._condition.notify_all()

    def abort(self, handle: GenerationHandle) -> None:
        """Ends a request before the next step; a finished one is left alone."""
        with self._condition:
            if handle.finished:
                return
            self._mailbox.aborted.append(handle)
            self._condition.notify_all()

    def shutdown(self, *, finish: bool = False) -> None:
        """Ends the thread and waits for that; calling it again does nothing.

        Args:
            finish: Whether the requests in flight run to their end first; they fail otherwise.
        """
        with self._condition:
            self._is_closed = True
            self._mailbox.is_closing = True
            self._mailbox.finishes_first = finish
            thread = self._thread
            self._condition.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        try:
            while True:
                mailbox = self._receive()
                if mailbox.is_closing and not (mailbox.finishes_first and self._active):
                    return
                if self._active:
                    self._step()
        finally:
            # Also when something escaped that is no error of a step: nobody must wait in vain.
            with self._condition:
                self._is_closed = True
                left = self._mailbox.added
            for handle in [*left, *(handle for handle, _ in self._active.values())]:
                handle.end(
                    RequestError(
                        f"The engine was shut down before request {handle.request_id} finished. "
                        "Use shutdown(finish=True) to let requests finish."
                    )
                )
            for core_id in self._active:
                self._core.abort(core_id)
            self._active.clear()

    def _receive(self) -> _Mailbox:
        """Takes in what other threads sent; sleeps when there is nothing to do."""
        with self._condition:
            while self._mailbox.is_empty and not self._active:
                self._condition.wait()
            mailbox = self._mailbox
            self._mailbox = _Mailbox(
                is_closing=mailbox.is_closing, finishes_first=mailbox.finishes_first
            )
        for handle in mailbox.added:
            self._add(handle)
        for handle in mailbox.aborted:
            self._drop(handle)
            handle.end()
        if mailbox.added or mailbox.aborted:
            self._snapshot = self._core.snapshot()
        return mailbox

    def _add(self, handle: GenerationHandle) -> None:
        request = handle.request
        try:
            for index, seed in enumerate(request.seeds):
                core_id = self._core.add_request(
                    list(request.prompt_token_ids),
                    request.sampling,
                    eos_token_ids=request.eos_token_ids,
                    seed=seed,
                )
                self._active[core_id] = (handle, index)
        except Exception as error:  # noqa: BLE001 - the caller's thread raises it
            self._drop(handle)
            handle.end(error)

    def _drop(self, handle: GenerationHandle) -> None:
        """Takes a request's sequences out of the core."""
        for core_id in [key for key, (owner, _) in self._active.items() if owner is handle]:
            del self._active[core_id]
            self._core.abort(core_id)

    def _step(self) -> None:
        try:
            updates = self._core.step()
        except Exception as error:  # noqa: BLE001 - the callers' threads raise it
            self._fail_running(error)
            return
        self._snapshot = self._core.snapshot()
        for update in updates:
            owner = self._active.get(update.request_id)
            if owner is None:
                continue
            self._deliver(*owner, update)

    def _deliver(self, handle: GenerationHandle, index: int, update: TokenUpdate) -> None:
        if update.finish_reason is not None:
            del self._active[update.request_id]
        try:
            must_abort = handle.apply(index, update)
        except Exception as error:  # noqa: BLE001 - a tokenizer failed: the caller raises it
            self._drop(handle)
            handle.end(error)
            return
        if must_abort:
            del self._active[update.request_id]
            self._core.abort(update.request_id)

    def _fail_running(self, error: Exception) -> None:
        """Fails the requests that took part in a step; those still waiting are not touched."""
        logger.error("a step failed: %s: %s", type(error).__name__, error)
        requests = self._core.requests
        waiting = {
            key
            for key in self._active
            if key in requests and requests[key].status is RequestStatus.WAITING
        }
        # With nothing running it is planning that failed, and it would fail again.
        running = (set(self._active) - waiting) or set(self._active)
        for handle in {id(h): h for h, _ in (self._active[key] for key in running)}.values():
            self._drop(handle)
            handle.end(error)
