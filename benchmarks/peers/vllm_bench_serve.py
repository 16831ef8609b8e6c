# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""`vllm bench serve` as a foreign load generator against `trtllm-ext serve`.

Every request must end, with as many tokens as were asked for; the speeds are printed as vLLM says
them.

    .venv/bin/python benchmarks/peers/vllm_bench_serve.py --vllm-python VENV/bin/python
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from pathlib import Path

import serving
from vllm_acceptance import TINY_KIMI

NAMES = ("completed", "total_output_tokens", "output_throughput", "mean_ttft_ms", "mean_itl_ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vllm-python", required=True)
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--output-len", type=int, default=32)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    found = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for name, draft in (("with the draft", TINY_KIMI / "draft"), ("without", None)):
            with serving.ours(TINY_KIMI / "target", draft, folder / "server.log") as url:
                command = [str(Path(args.vllm_python).with_name("vllm")), "bench", "serve"]
                command += ["--backend", "openai", "--base-url", url, "--model", "target"]
                command += ["--tokenizer", str(TINY_KIMI / "target"), "--dataset-name", "random"]
                command += ["--random-input-len", "40", "--seed", "1", "--ignore-eos"]
                command += ["--random-output-len", str(args.output_len), "--max-concurrency", "8"]
                command += ["--num-prompts", str(args.prompts), "--save-result"]
                command += ["--result-dir", str(folder), "--result-filename", "result.json"]
                env = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
                done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
                if done.returncode:
                    raise SystemExit(f"vllm bench serve failed:\n{done.stderr[-3000:]}")
                result = json.loads((folder / "result.json").read_text())
                found[name] = {key: result[key] for key in NAMES}
    print(json.dumps(found, indent=2))
    if args.out:
        args.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    for name, row in found.items():
        if row["completed"] != args.prompts:
            raise SystemExit(f"{name}: {row['completed']} of {args.prompts} requests ended")
        if row["total_output_tokens"] != args.prompts * args.output_len:
            raise SystemExit(f"{name}: {row['total_output_tokens']} tokens")


if __name__ == "__main__":
    main()
