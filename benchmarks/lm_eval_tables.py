# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The two tables of a draft: lm_eval with and without it, and its acceptance on the same prompts.

    python benchmarks/lm_eval_tables.py [--problems 200] [--json benchmarks/results/FILE.json]

Starts `trtllm-ext serve` twice and runs the real `lm_eval` against it (pip install
'tensorrt-llm-ext[serve,eval]'). Exit code 1 unless the greedy scores are identical and the server's
acceptance is that of the embedded engine on the very prompts that lm_eval sent, within 0.02.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tensorrt_llm_ext.benchmarking.runs import Workload, encode_all, make_core, measure
from tensorrt_llm_ext.configs.sampling import SamplingParams
from tensorrt_llm_ext.engine.loading import load_models

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "examples" / "tiny_kimi"
K, TOKENS, CONCURRENCY = 3, 80, 8
WITHIN = 0.02


@contextmanager
def served(draft: Path | None, log: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "tensorrt_llm_ext", "serve", str(EXAMPLE / "target")]
    command += ["--port", "0", "--max-batch-size", str(CONCURRENCY)]
    command += [] if draft is None else ["--draft", str(draft), "--max-draft-len", str(K)]
    with log.open("w") as errors, subprocess.Popen(command, stderr=errors) as process:
        try:
            while True:
                found = re.search(r"Serving on (http://\S+)", log.read_text())
                if found:
                    break
                if process.poll() is not None:
                    sys.exit(f"the server ended: {log.read_text()[-2000:]}")
            yield found[1]
        finally:
            process.terminate()


def run_lm_eval(url: str, problems: int, out: Path) -> dict:
    arguments = f"model=target,base_url={url}/v1/completions,tokenizer={EXAMPLE / 'target'}"
    arguments += f",num_concurrent={CONCURRENCY},max_retries=1,tokenized_requests=False"
    command = [sys.executable, "-m", "lm_eval", "run", "--model", "local-completions"]
    command += ["--model_args", arguments, "--tasks", "word_problems", "--batch_size", "1"]
    command += ["--include_path", str(ROOT / "examples" / "lm_eval"), "--limit", str(problems)]
    command += ["--output_path", str(out), "--log_samples"]
    offline = {"HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    with (out / "lm_eval.log").open("w") as log:
        done = subprocess.run(
            command, cwd=ROOT, env={**os.environ, **offline}, stdout=log, stderr=log, check=False
        )
    if done.returncode:
        sys.exit(f"lm_eval failed: {(out / 'lm_eval.log').read_text()[-3000:]}")
    text = (out / "lm_eval.log").read_text()
    table = [line for line in text.splitlines() if line.startswith("|")]
    print("\n".join(table))
    (results,) = out.rglob("results_*.json")
    (samples,) = out.rglob("samples_word_problems_*.jsonl")
    rows = [json.loads(line) for line in samples.read_text().splitlines()]
    answers = {row["doc_id"]: row for row in rows}
    return {
        "scores": json.loads(results.read_text())["results"]["word_problems"],
        "prompts": [answers[i]["arguments"]["gen_args_0"]["arg_0"] for i in sorted(answers)],
        "texts": [answers[i]["resps"][0][0] for i in sorted(answers)],
    }


def metric(url: str, name: str) -> float:
    with urllib.request.urlopen(f"{url}/prometheus/metrics") as answer:
        text = answer.read().decode()
    found = re.findall(rf"^{re.escape(name)}\{{[^}}]*\}} (\S+)$", text, re.MULTILINE)
    return float(found[0])


def server_acceptance(url: str) -> dict:
    prefix = "vllm:spec_decode_num"
    steps = metric(url, f"{prefix}_drafts_total")
    accepted = metric(url, f"{prefix}_accepted_tokens_total")
    return {"steps": steps, "length": 1 + accepted / steps}


def embedded_acceptance(prompts: list[str]) -> dict:
    models = load_models(EXAMPLE / "target", draft=EXAMPLE / "draft", dtype="float32", device="cpu")
    workload = Workload(
        prompts=encode_all(models, prompts),
        sampling=SamplingParams(max_tokens=TOKENS, temperature=0.0),
        batch_size=CONCURRENCY,
        seed=0,
    )
    run = measure(make_core(models, workload, K), workload, models.eos_token_ids, lambda _: None)
    return {"steps": run.acceptance.num_steps, "length": run.acceptance.acceptance_length}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=int, default=200)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    found: dict[str, dict] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, draft in (("with the draft", EXAMPLE / "draft"), ("without", None)):
            out = Path(folder) / name.replace(" ", "_")
            out.mkdir()
            with served(draft, out / "server.log") as url:
                print(f"\nlm_eval, {args.problems} problems, {name}:")
                found[name] = run_lm_eval(url, args.problems, out)
                if draft is not None:
                    found[name]["acceptance"] = server_acceptance(url)
    ours, plain = found["with the draft"], found["without"]
    scores = {k: v for k, v in ours["scores"].items() if k.startswith("exact_match")}
    same = {k: v for k, v in plain["scores"].items() if k.startswith("exact_match")}
    texts = sum(a == b for a, b in zip(ours["texts"], plain["texts"], strict=True))
    embedded = embedded_acceptance(ours["prompts"])
    difference = ours["acceptance"]["length"] - embedded["length"]
    print(f"\ntexts identical: {texts} of {len(ours['texts'])}")
    print(f"acceptance length, {K} draft tokens, on the prompts that lm_eval sent:")
    print(f"  server   {ours['acceptance']['length']:.4f} over {ours['acceptance']['steps']:.0f}")
    print(f"  embedded {embedded['length']:.4f} over {embedded['steps']} verify steps")
    is_right = scores == same and abs(difference) <= WITHIN
    print("scores identical, acceptance as measured offline" if is_right else "DIFFERENT")
    if args.json:
        report = {
            "problems": args.problems,
            "draft_tokens": K,
            "scores": {"with": scores, "without": same},
            "texts_identical": texts,
            "acceptance": {"server": ours["acceptance"], "embedded": embedded},
        }
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
