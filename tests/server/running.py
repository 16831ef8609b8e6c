# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""A server on a thread, on a free port, over real HTTP."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

from tensorrt_llm_ext import LLM, EagleDecodingConfig
from tensorrt_llm_ext.server.app import create_app
from tensorrt_llm_ext.server.options import ServeOptions
from tensorrt_llm_ext.server.runner import run_server

EXAMPLE = Path(__file__).parents[2] / "examples" / "tiny_kimi"
PROMPT = "Question: Tom has 12 pens. He buys 7 more pens. How many pens does Tom have now?\nAnswer:"
NAME = "tiny_kimi"


def make_llm(**arguments: Any) -> LLM:
    draft = EagleDecodingConfig(max_draft_len=3, speculative_model=str(EXAMPLE / "draft"))
    values = {"speculative_config": draft, "max_batch_size": 8, "max_seq_len": 512}
    return LLM(model=str(EXAMPLE / "target"), **{**values, **arguments})


@dataclass
class Running:
    llm: LLM
    url: str
    server: uvicorn.Server
    thread: threading.Thread
    state: Any

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(30)
        assert not self.thread.is_alive()

    def wait_idle(self, seconds: float = 10.0) -> None:
        """Waits until the engine holds nothing but reusable prefixes."""
        deadline = time.monotonic() + seconds
        while self.llm.snapshot.running or self.llm.snapshot.waiting or self.state.gate.num_inside:
            assert time.monotonic() < deadline, self.llm.snapshot
            time.sleep(0.01)


@contextmanager
def serving(llm: LLM, **options: Any) -> Iterator[Running]:
    app = create_app(llm, ServeOptions(**{"model_name": NAME, **options}))
    ports: list[int] = []
    started = threading.Event()

    def ready(port: int) -> None:
        ports.append(port)
        started.set()

    server = run_server(app, "127.0.0.1", 0, ready)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
    thread.start()
    assert started.wait(20)
    running = Running(llm, f"http://127.0.0.1:{ports[0]}", server, thread, app.state.server)
    try:
        yield running
    finally:
        running.stop()
