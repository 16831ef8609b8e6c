# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Runs the application under uvicorn, and ends it so that every request is finished or failed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable

import uvicorn
from fastapi import FastAPI

from tensorrt_llm_ext.errors import ConfigError
from tensorrt_llm_ext.server.app import Server

logger = logging.getLogger(__name__)
_GRACE_SECONDS = 5.0  # for answers that say that the server is going
# Clients with a pool reuse idle connections; one that closes under a new request fails it.
_KEEP_ALIVE_SECONDS = 75


class _Uvicorn(uvicorn.Server):
    """Fails what does not finish in time, before connections are cut."""

    def __init__(
        self, config: uvicorn.Config, server: Server, ready: Callable[[int], None]
    ) -> None:
        super().__init__(config)
        self._server, self._ready = server, ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Tells the real port once connections are taken."""
        await super().startup(sockets)
        if self.started and self.servers:
            self._ready(self.servers[0].sockets[0].getsockname()[1])

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Lets requests finish for a while; then the engine ends, which fails the others."""
        self._server.gate.is_closing = True
        ending = asyncio.ensure_future(self._end_engine())
        await super().shutdown(sockets)
        ending.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await ending

    async def _end_engine(self) -> None:
        await asyncio.sleep(self._server.options.shutdown_seconds)
        logger.warning("%d requests did not finish in time", self._server.gate.num_inside)
        await asyncio.get_running_loop().run_in_executor(None, self._server.llm.shutdown)


def run_server(
    app: FastAPI, host: str, port: int, ready: Callable[[int], None] = lambda _: None
) -> uvicorn.Server:
    """Makes a uvicorn server for an application; `serve()` or `run()` it.

    Args:
        app: Of `create_app`.
        host: Address to listen at.
        port: 0 takes any free one.
        ready: Called with the real port when connections are taken.

    Raises:
        ConfigError: If the port is out of range.
    """
    if not 0 <= port <= 65535:
        raise ConfigError(f"The port is {port}, expected 0 to 65535.")
    server: Server = app.state.server
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=int(server.options.shutdown_seconds + _GRACE_SECONDS) + 1,
    )
    return _Uvicorn(config, server, ready)


__all__ = ["run_server"]
