# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""A server's life and its answers, with a small program in the place of `trtllm-serve`."""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path

import pytest
import yaml
from smoke_server import Launch, Server, ServerError

PROGRAM = """
import json, os, subprocess, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
folder, words = sys.argv[1], sys.argv[2:]
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open(folder + "/child", "w").write(str(child.pid))
json.dump(words, open(folder + "/words", "w"))

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send(200 if self.path == "/health" else 404, {})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body["prompt"] == [0]:
            return self.send(400, {"message": "no such prompt"})
        tokens = None if body["prompt"] == [1] else [t + 1 for t in body["prompt"]]
        assert body["temperature"] == 0 and body["detokenize"] is False
        choice = {"token_ids": tokens, "finish_reason": "stop"}
        self.send(200, {"choices": [{**choice, "avg_decoded_tokens_per_iter": 2.5}]})

    def send(self, status, body):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

port = int(words[words.index("--port") + 1])
ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def launch(tmp_path: Path, program: str = PROGRAM) -> Launch:
    """How to start the program."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return Launch(
        model=tmp_path / "model",
        config={"max_batch_size": 2, "moe_config": {"backend": "CUTLASS"}},
        config_option="--config",
        port=port,
        folder=tmp_path,
        name="try",
        command=(sys.executable, "-c", program, str(tmp_path)),
    )


def is_running(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text(encoding="utf-8").split()[2] != "Z"


def test_prompts_are_answered_in_order_and_workers_end_with_the_server(tmp_path: Path) -> None:
    started = launch(tmp_path)
    with Server(started, start_timeout_s=20) as server:
        answers = server.complete([[2, 3], [7], [5]], max_tokens=4, concurrency=2)
        with pytest.raises(ServerError, match=r"400: .*no such prompt"):
            server.complete([[0]], max_tokens=4, concurrency=1)
        with pytest.raises(ServerError, match="no token_ids"):
            server.complete([[1]], max_tokens=4, concurrency=1)
        child = int((tmp_path / "child").read_text(encoding="utf-8"))
        assert is_running(child)
    assert [answer.token_ids for answer in answers] == [(3, 4), (8,), (6,)]
    assert answers[0].tokens_per_iteration == 2.5
    for _ in range(50):
        if not is_running(child):
            break
        time.sleep(0.05)
    assert not is_running(child)


def test_command_line_and_yaml_are_what_the_host_takes(tmp_path: Path) -> None:
    started = launch(tmp_path)
    words = started.arguments()
    yaml_file = tmp_path / "try.yaml"
    assert words[4:] == [
        str(tmp_path / "model"), "--backend", "pytorch", "--host", "127.0.0.1",
        "--port", str(started.port), "--config", str(yaml_file),
    ]  # fmt: skip
    assert yaml.safe_load(yaml_file.read_text(encoding="utf-8")) == started.config


def test_a_server_that_ends_at_once_shows_its_log(tmp_path: Path) -> None:
    program = "import sys; print('out of memory'); sys.exit(5)"
    with (
        pytest.raises(ServerError, match=r"(?s)exit code 5.*out of memory"),
        Server(launch(tmp_path, program), start_timeout_s=20),
    ):
        pass


def test_a_server_that_never_answers_is_ended(tmp_path: Path) -> None:
    program = "import time; time.sleep(600)"
    begin = time.monotonic()
    with (
        pytest.raises(ServerError, match=r"not healthy after 0 s"),
        Server(launch(tmp_path, program), start_timeout_s=0.3),
    ):
        pass
    assert time.monotonic() - begin < 10
