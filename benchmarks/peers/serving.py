# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Servers of this package and of vLLM, started for a while."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SECONDS = 300
# vLLM 0.32 on a CPU: one thread per process, no look-ups on the net, and its engine forked, so that
# what `vllm_serve_patched.py` changes holds there, too.
_VLLM = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_WORKER_MULTIPROC_METHOD": "fork",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "passive",
}


@contextmanager
def ours(target: Path, draft: Path | None, log: Path, *options: str) -> Iterator[str]:
    """Serves a pair with `trtllm-ext serve`; yields its address."""
    command = [sys.executable, "-m", "tensorrt_llm_ext", "serve", str(target), "--port", "0"]
    command += [] if draft is None else ["--draft", str(draft)]
    with log.open("w") as errors, subprocess.Popen([*command, *options], stderr=errors) as process:
        try:
            deadline = time.monotonic() + _SECONDS
            while not (found := re.search(r"Serving on (http://\S+)", log.read_text())):
                _check(process, deadline, log)
            yield found[1]
        finally:
            process.terminate()


@contextmanager
def vllm(python: str, target: Path, draft: Path, num_draft: int, log: Path) -> Iterator[str]:
    """Serves a pair with vLLM on the CPU, in float32; yields its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = Path(__file__).with_name("vllm_serve_patched.py")
    config = f'{{"method": "eagle3", "model": "{draft}", "num_speculative_tokens": {num_draft}}}'
    command = [python, str(script), str(target), "--port", str(port), "--dtype", "float32"]
    command += ["--speculative-config", config, "--max-model-len", "1024", "--enforce-eager"]
    command += ["--max-num-seqs", "8", "--host", "127.0.0.1", "--served-model-name", "target"]
    url = f"http://127.0.0.1:{port}"
    with (
        log.open("w") as errors,
        subprocess.Popen(
            command, stdout=errors, stderr=errors, env={**os.environ, **_VLLM}
        ) as process,
    ):
        try:
            deadline = time.monotonic() + _SECONDS
            while not _answers(f"{url}/health"):
                _check(process, deadline, log)
            yield url
        finally:
            process.terminate()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return answer.status == 200
    except OSError:
        return False


def _check(process: subprocess.Popen, deadline: float, log: Path) -> None:
    if process.poll() is not None or time.monotonic() > deadline:
        raise SystemExit(f"the server did not start:\n{log.read_text()[-4000:]}")
    time.sleep(0.2)
