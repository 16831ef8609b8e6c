# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The container's health check."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import health
import pytest


class _Handler(BaseHTTPRequestHandler):
    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status if self.path == "/health" else 404)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[HTTPServer]:
    _Handler.status = 200
    with HTTPServer(("localhost", 0), _Handler) as made:
        threading.Thread(target=made.serve_forever, args=(0.02,), daemon=True).start()
        yield made
        made.shutdown()


@pytest.fixture
def port_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path / "trtllm_ext_port"


def test_container_without_a_server_is_healthy(port_file: Path) -> None:
    assert health.main() == 0


def test_server_that_answers_is_healthy(port_file: Path, server: HTTPServer) -> None:
    port_file.write_text(f"{server.server_port}\n", encoding="utf-8")
    assert health.main() == 0


def test_server_that_errs_is_not(
    port_file: Path, server: HTTPServer, capsys: pytest.CaptureFixture[str]
) -> None:
    _Handler.status = 503
    port_file.write_text(f"{server.server_port}\n", encoding="utf-8")
    assert health.main() == 1
    assert "503" in capsys.readouterr().err


def test_no_server_on_the_port_is_not(port_file: Path, server: HTTPServer) -> None:
    server.server_close()
    port_file.write_text(f"{server.server_port}\n", encoding="utf-8")
    assert health.main() == 1
