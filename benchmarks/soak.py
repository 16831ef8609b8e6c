# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Mixed load on the server for a long time: what it must not lose, leak or leave unanswered.

    python benchmarks/soak.py [--minutes 30] [--clients 64] [--json FILE]

Clients complete texts (greedy or seeded, streamed or not, with stop conditions), leave in the
middle, and send bodies that are malformed or too long. Afterwards the server must be idle with all
its blocks; then it is ended under load. Answers are repeated offline with their seeds. Exit code 1
unless every token is the same (or the first that differs is a near-tie), every error has a type,
nothing leaks, and the server's memory grows by less than 5 % after minute 5.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from tensorrt_llm_ext import LLM, EagleDecodingConfig, SamplingParams
from tensorrt_llm_ext.benchmarking.margins import find_divergences
from tensorrt_llm_ext.benchmarking.problems import load_problems
from tensorrt_llm_ext.benchmarking.runs import Workload, make_core
from tensorrt_llm_ext.engine.loading import load_models

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "tiny_kimi"
KEPT = 2000
GROWTH, SETTLED_SECONDS = 0.05, 300.0
PATH = "/v1/completions"


@dataclass
class Found:
    """What all clients saw."""

    counts: Counter = field(default_factory=Counter)
    answers: list[tuple[dict, list[int], str]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, kind: str, answer: tuple[dict, list[int], str] | None = None) -> None:
        with self.lock:
            self.counts[kind] += 1
            if answer is not None and len(self.answers) < KEPT:
                self.answers.append(answer)

    def fault(self, text: str) -> None:
        with self.lock:
            self.faults.append(text)


class Client(threading.Thread):
    """One client, with its own stream of chances."""

    def __init__(self, url: str, seed: int, end: float, prompts: list[str], found: Found) -> None:
        super().__init__(daemon=True)
        self._host, self._end = urlsplit(url).netloc, end
        self._rng, self._prompts, self._found = random.Random(seed), prompts, found

    def run(self) -> None:
        ways = (self._complete, self._leave, self._malformed, self._too_long)
        while time.monotonic() < self._end:
            way = self._rng.choices(ways, weights=(70, 15, 10, 5))[0]
            try:
                way()
            except Exception as error:  # noqa: BLE001 - a soak reports whatever happens
                self._found.fault(f"{way.__name__}: {type(error).__name__}: {error}")

    def _body(self) -> dict:
        rng = self._rng
        body: dict = {"prompt": rng.choice(self._prompts), "max_tokens": rng.randint(1, 48)}
        body["temperature"] = rng.choice((0, 0, 0.7, 1.0))
        body["seed"] = rng.randrange(2**31)
        if rng.random() < 0.3:
            body["stop"] = rng.choice((["."], ["####", " is"], ["=", "\n"], ["never said"]))
        if rng.random() < 0.2:
            body["ignore_eos"] = True
        if rng.random() < 0.1:
            body["top_p"] = 0.9
        if body["temperature"] and rng.random() < 0.1:
            body["presence_penalty"] = 0.5
        return body

    def _send(self, body: bytes, seconds: float = 120.0) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(self._host, timeout=seconds)
        connection.request("POST", PATH, body)
        return connection

    def _complete(self) -> None:
        body = self._body()
        streams = self._rng.random() < 0.5
        sent = {**body, "stream": streams, "return_token_ids": True}
        if streams:
            sent["stream_options"] = {"include_usage": True}
        connection = self._send(json.dumps(sent).encode())
        answer = connection.getresponse()
        if answer.status != 200:
            self._found.fault(f"status {answer.status}: {answer.read()[:200]!r}")
            return
        if streams:
            text, tokens, usage = _read_stream(answer)
        else:
            got = json.loads(answer.read())
            choice, usage = got["choices"][0], got["usage"]
            text, tokens = choice["text"], choice["token_ids"]
        connection.close()
        if usage is None or usage["completion_tokens"] != len(tokens):
            self._found.fault(f"{len(tokens)} tokens came, usage says {usage}")
        self._found.note("streamed" if streams else "whole", (body, tokens, text))

    def _leave(self) -> None:
        body = {**self._body(), "max_tokens": 200, "ignore_eos": True}
        body.pop("stop", None)
        streams = self._rng.random() < 0.7
        connection = self._send(json.dumps({**body, "stream": streams}).encode())
        if streams:
            answer = connection.getresponse()
            for _ in range(self._rng.randint(1, 8)):
                answer.readline()
        else:
            time.sleep(self._rng.random() * 0.2)
        connection.close()
        self._found.note("left")

    def _malformed(self) -> None:
        body = json.dumps({**self._body(), "zzz": 1}).encode()
        bad = (body, body[: len(body) // 2], b"\xff\x00", b"[]", b'{"prompt": {}}', b"")
        self._refused(self._rng.choice(bad), "malformed")

    def _too_long(self) -> None:
        body = {**self._body(), "max_tokens": 10**6}
        if self._rng.random() < 0.5:
            body = {**self._body(), "prompt": "pens " * 5000}
        self._refused(json.dumps(body).encode(), "too long")

    def _refused(self, body: bytes, kind: str) -> None:
        connection = self._send(body)
        answer = connection.getresponse()
        error = json.loads(answer.read()).get("error", {})
        connection.close()
        if not 400 <= answer.status < 500 or not error.get("type") or not error.get("message"):
            self._found.fault(f"{kind}: status {answer.status}, {error}")
        self._found.note(kind)


def _read_stream(answer: http.client.HTTPResponse) -> tuple[str, list[int], dict | None]:
    text, tokens, usage, is_done = "", [], None, False
    for line in answer:
        if line.startswith(b"data: {"):
            piece = json.loads(line[6:])
            if "error" in piece:
                raise RuntimeError(f"a stream failed: {piece}")
            for choice in piece["choices"]:
                text += choice["text"]
                tokens += choice["token_ids"]
            usage = piece.get("usage") or usage
        is_done = is_done or line.startswith(b"data: [DONE]")
    if not is_done:
        raise RuntimeError("a stream ended without [DONE]")
    return text, tokens, usage


class Server:
    """The server as a process, and what can be seen of it."""

    def __init__(self, scratch: Path) -> None:
        self.log = scratch / "log"
        command = [sys.executable, "-m", "tensorrt_llm_ext", "serve", str(EXAMPLE / "target")]
        command += ["--draft", str(EXAMPLE / "draft"), "--port", "0", "--max-batch-size", "16"]
        command += ["--max-seq-len", "1024", "--shutdown-seconds", "5", "--dtype", "float32"]
        self._errors = self.log.open("w")
        self.process = subprocess.Popen(command, stderr=self._errors)
        while not (found := re.search(r"Serving on (http://\S+)", self.log.read_text())):
            if self.process.poll() is not None:
                sys.exit(self.log.read_text())
            time.sleep(0.1)
        self.url = found[1]

    def memory(self) -> int:
        """Resident bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * int(re.search(r"VmRSS:\s+(\d+)", status)[1])

    def metric(self, name: str) -> float:
        """The value of a metric without more labels than model and engine."""
        with urllib.request.urlopen(f"{self.url}/prometheus/metrics") as answer:
            text = answer.read().decode()
        return float(re.search(rf"^{name}\{{[^}}]*\}} (\S+)$", text, re.MULTILINE)[1])

    def leaks(self, seconds: float = 60.0) -> list[str]:
        """What is still held once nobody asks for anything."""
        names = ("trtllm_num_requests_running", "trtllm_num_requests_waiting")
        names += ("trtllm_ext_requests_in_flight", "trtllm_ext_kv_cache_blocks_used")
        deadline = time.monotonic() + seconds
        while True:
            left = [f"{name} is {self.metric(name):.0f}" for name in names if self.metric(name)]
            if not left or time.monotonic() > deadline:
                return left
            time.sleep(0.2)

    def end_under_load(self, clients: int) -> list[str]:
        """Ends it while requests run; each must get an answer that says how it ended."""
        faults: list[str] = []
        body = {"prompt": "Question: ", "max_tokens": 900, "ignore_eos": True, "temperature": 0}

        def ask(stream: bool) -> None:
            connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=60)
            try:
                connection.request("POST", PATH, json.dumps({**body, "stream": stream}))
                answer = connection.getresponse()
                text = answer.read().decode()
                is_whole = answer.status == 200 and not stream
                is_told = "shutting down" in text or text.rstrip().endswith("[DONE]")
                if not (is_whole or is_told):
                    faults.append(f"at shutdown: status {answer.status}, {text[-200:]!r}")
            except Exception as error:  # noqa: BLE001 - reported
                faults.append(f"at shutdown: {type(error).__name__}: {error}")

        threads = [threading.Thread(target=ask, args=(i % 2 == 0,)) for i in range(clients)]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + 30
        while self.metric("trtllm_ext_requests_in_flight") < clients:
            if time.monotonic() > deadline:
                faults.append("requests did not arrive before the shutdown")
                break
            time.sleep(0.1)
        self.process.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join(60)
        try:
            code = self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return [*faults, "the server did not end"]
        if code not in (0, -signal.SIGTERM):
            faults.append(f"the server ended with {code}")
        if "Traceback" in self.log.read_text():
            faults.append(f"the log has a traceback: {self.log.read_text()[-1500:]}")
        return faults


def replay(answers: list[tuple[dict, list[int], str]]) -> dict:
    """Repeats answers with their seeds on an engine of this process."""
    models = load_models(EXAMPLE / "target", draft=EXAMPLE / "draft", dtype="float32")
    draft = EagleDecodingConfig(max_draft_len=3, speculative_model=str(EXAMPLE / "draft"))
    asked = [_sampling(body) for body, _, _ in answers]
    with LLM(
        model=str(EXAMPLE / "target"),
        speculative_config=draft,
        max_batch_size=16,
        max_seq_len=1024,
        dtype="float32",
    ) as llm:
        prompts = [body["prompt"] for body, _, _ in answers]
        outputs = llm.generate(prompts, asked, use_tqdm=False) if prompts else []
    counts, different = Counter(), []
    for (body, tokens, text), output, sampling in zip(answers, outputs, asked, strict=True):
        mine = output.outputs[0]
        if mine.token_ids == tokens and mine.text == text:
            counts["identical"] += 1
            continue
        workload = Workload(
            prompts=(tuple(output.prompt_token_ids),), sampling=sampling, seed=body["seed"]
        )
        core = make_core(models, workload, 0)
        found = find_divergences(models, workload, [mine.token_ids], [tokens], core=core)
        if found and found[0].is_near_tie:
            counts["near_tie"] += 1
        else:
            counts["different"] += 1
            different.append({"body": body, "server": text, "offline": mine.text})
    return {**counts, "examples": different[:3]}


def _sampling(body: dict) -> SamplingParams:
    names = ("max_tokens", "temperature", "seed", "stop", "ignore_eos", "top_p", "presence_penalty")
    values = {name: body[name] for name in names if name in body}
    if values["temperature"] == 0:
        values.pop("top_p", None)
    return SamplingParams(**values)


def soak(seconds: float, clients: int, seed: int = 0, kept: int = KEPT) -> dict:
    """Runs everything, and repeats `kept` answers; "faults" is empty if all is well."""
    prompts = [p.prompt for p in load_problems(EXAMPLE / "heldout.jsonl", 100)]
    found = Found()
    with tempfile.TemporaryDirectory() as scratch:
        server = Server(Path(scratch))
        try:
            begin = time.monotonic()
            crowd = [
                Client(server.url, seed + i, begin + seconds, prompts, found)
                for i in range(clients)
            ]
            for client in crowd:
                client.start()
            settled, peak = None, 0
            while any(client.is_alive() for client in crowd):
                time.sleep(min(5.0, seconds / 10))
                now = server.memory()
                if time.monotonic() - begin >= min(SETTLED_SECONDS, seconds / 2):
                    settled, peak = settled or now, max(peak, now)
            growth = peak / settled - 1 if settled else 0.0
            found.faults += server.leaks()
            found.faults += server.end_under_load(clients)
        finally:
            if server.process.poll() is None:
                server.process.kill()
    if seconds > 2 * SETTLED_SECONDS and growth >= GROWTH:
        found.faults.append(f"memory grew by {growth:.1%} after minute 5")
    repeated = replay(found.answers[:kept])
    if repeated.get("different"):
        found.faults.append(f"{repeated['different']} answers differ offline")
    return {
        "minutes": seconds / 60,
        "clients": clients,
        "requests": dict(found.counts),
        "replayed": repeated,
        "memory_growth_after_settling": growth,
        "faults": found.faults[:20],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    report = soak(60 * args.minutes, args.clients)
    print(json.dumps(report, indent=1))
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    return 1 if report["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
