# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""`trtllm-ext serve` as a process: ready line, an answer, a clean end on SIGTERM."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="needs tensorrt-llm-ext[serve]")
httpx = pytest.importorskip("httpx")

EXAMPLE = Path(__file__).parents[2] / "examples" / "tiny_kimi"


def test_serves_until_it_is_told_to_stop(tmp_path: Path) -> None:
    config = tmp_path / "extra.yaml"
    config.write_text(
        "max_seq_len: 128\nmoe_config: {backend: TRTLLM}\n"
        "cuda_graph_config: {enable_padding: true, max_batch_size: 4}\n"
        "kv_cache_config: {free_gpu_memory_fraction: 0.5}\n",
        encoding="utf-8",
    )
    template = tmp_path / "chat.jinja"
    template.write_text("{{ messages[0].content }}", encoding="utf-8")
    command = [sys.executable, "-m", "tensorrt_llm_ext", "serve", str(EXAMPLE / "target")]
    command += ["--draft", str(EXAMPLE / "draft"), "--port", "0", "--config", str(config)]
    command += ["--chat-template", str(template), "--served_model_name", "mine"]
    env = {k: v for k, v in os.environ.items() if k != "TRTLLM_EXT_LOG_LEVEL"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env) as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if line.startswith("Serving on "):
                break
        found = re.fullmatch(r"Serving on (http://127\.0\.0\.1:\d+)\n", lines[-1])
        assert found, lines
        messages = [{"role": "user", "content": "Question: "}]
        body = {"model": "mine", "messages": messages, "max_tokens": 4, "temperature": 0}
        answer = httpx.post(f"{found[1]}/v1/chat/completions", json=body, timeout=30)
        assert answer.status_code == 200
        prompt = {"prompt": "Question: ", "max_tokens": 4, "temperature": 0}
        plain = httpx.post(f"{found[1]}/v1/completions", json=prompt, timeout=30).json()
        told = answer.json()["choices"][0]["message"]["content"]
        assert told == plain["choices"][0]["text"]
        process.send_signal(signal.SIGTERM)
        rest = process.stderr.read()
        assert process.wait(20) in (0, -signal.SIGTERM)
    log = "".join(lines) + rest
    for name in ("moe_config", "cuda_graph_config", "free_gpu_memory_fraction"):
        assert re.search(rf"{name}=.* has no effect here", log), log
    assert '"event": "request"' in log
    assert "Traceback" not in log


def test_says_what_is_wrong(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tensorrt_llm_ext", "serve", str(EXAMPLE / "target")]
    config = tmp_path / "extra.yaml"
    config.write_text("max_bach_size: 4\n", encoding="utf-8")
    done = subprocess.run(
        [*command, "--config", str(config)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "max_batch_size" in done.stderr
    assert "Traceback" not in done.stderr
