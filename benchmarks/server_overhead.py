# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""What the HTTP server costs at batch 1: tokens/s behind it against the engine alone.

    python benchmarks/server_overhead.py [--problems 24] [--rounds 5] [--json FILE]

Rounds alternate between the engine in this process, the server without streaming and the server
with it, over the same greedy prompts; ratios are medians of rounds. Texts must be equal. Exit code
1 below 0.9 without streaming or 0.75 with it.
"""

from __future__ import annotations

import argparse
import http.client
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from tensorrt_llm_ext import LLM, EagleDecodingConfig, SamplingParams
from tensorrt_llm_ext.benchmarking.problems import load_problems

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "tiny_kimi"
TOKENS = 64
BARS = {"server": 0.9, "server, streaming": 0.75}
REUSE = {"enable_block_reuse": False}  # rounds after the first would find their prompts cached


class Client:
    """One connection, one request at a time."""

    def __init__(self, url: str) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc)

    def ask(self, prompt: str, stream: bool) -> tuple[str, int]:
        body = {"prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "stream": stream}
        if stream:
            body["stream_options"] = {"include_usage": True}
        self._connection.request("POST", "/v1/completions", json.dumps(body))
        answer = self._connection.getresponse()
        if not stream:
            got = json.loads(answer.read())
            return got["choices"][0]["text"], got["usage"]["completion_tokens"]
        text, tokens = "", 0
        for line in answer:
            if line.startswith(b"data: {"):
                piece = json.loads(line[6:])
                text += "".join(choice["text"] for choice in piece["choices"])
                tokens = (piece.get("usage") or {}).get("completion_tokens", tokens)
        return text, tokens


@contextmanager
def serving() -> Iterator[str]:
    """The server with the draft, in a process of its own that ends with the block."""
    with tempfile.TemporaryDirectory() as scratch:
        log, config = Path(scratch) / "log", Path(scratch) / "extra.yaml"
        config.write_text(json.dumps({"kv_cache_config": REUSE}))
        command = [sys.executable, "-m", "tensorrt_llm_ext", "serve", str(EXAMPLE / "target")]
        command += ["--draft", str(EXAMPLE / "draft"), "--port", "0", "--config", str(config)]
        with log.open("w") as errors, subprocess.Popen(command, stderr=errors) as process:
            try:
                while not (found := re.search(r"Serving on (http://\S+)", log.read_text())):
                    if process.poll() is not None:
                        sys.exit(log.read_text())
                    time.sleep(0.1)
                yield found[1]
            finally:
                process.terminate()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    prompts = [p.prompt for p in load_problems(EXAMPLE / "heldout.jsonl", args.problems)]
    draft = EagleDecodingConfig(max_draft_len=3, speculative_model=str(EXAMPLE / "draft"))
    sampling = SamplingParams(max_tokens=TOKENS, temperature=0.0)
    with (
        serving() as url,
        LLM(model=str(EXAMPLE / "target"), speculative_config=draft, kv_cache_config=REUSE) as llm,
    ):

        def offline() -> list[tuple[str, int]]:
            done = [llm.generate(prompt, sampling, use_tqdm=False) for prompt in prompts]
            return [(o.outputs[0].text, len(o.outputs[0].token_ids)) for o in done]

        def through(stream: bool) -> list[tuple[str, int]]:
            client = Client(url)  # a server may close what was idle during another's round
            return [client.ask(prompt, stream) for prompt in prompts]

        report = measure(
            {
                "engine": offline,
                "server": lambda: through(False),
                "server, streaming": lambda: through(True),
            },
            args.rounds,
        )
    print(json.dumps(report, indent=1))
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    return int(any(report["ratios"][name] < bar for name, bar in BARS.items()))


def measure(ways: dict, rounds: int) -> dict:
    speeds: dict[str, list[float]] = {name: [] for name in ways}
    shares: dict[str, list[float]] = {name: [] for name in ways}
    texts: dict[str, list[str]] = {}
    for index in range(rounds + 1):
        for name, run in ways.items():
            cpu, begin = time.process_time(), time.perf_counter()
            got = run()
            seconds = time.perf_counter() - begin
            texts[name] = [text for text, _ in got]
            if index:  # the first round warms up
                speeds[name].append(sum(tokens for _, tokens in got) / seconds)
                shares[name].append((time.process_time() - cpu) / seconds)
    if len({tuple(t) for t in texts.values()}) != 1:
        sys.exit("texts differ: nothing is timed")
    ratios = {
        name: statistics.median(a / b for a, b in zip(speeds[name], speeds["engine"], strict=True))
        for name in ways
        if name != "engine"
    }
    return {
        "tokens_per_s": {name: statistics.median(values) for name, values in speeds.items()},
        "ratios": ratios,
        "client_cpu_share": {n: statistics.median(v) for n, v in shares.items() if n != "engine"},
        "rounds": rounds,
        "texts": "identical",
    }


if __name__ == "__main__":
    sys.exit(main())
