# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""What NVFP4 costs tiny_kimi's draft in acceptance: body and full tier, W4A16 and W4A4, and QAD.

Drafts are quantized by the bundled recipes on problems of the training split, then answer the
held-out problems greedily on the embedded engine, in float32. Every ratio is of pooled acceptance
lengths on the same prompts, with a 95 % bootstrap interval over prompts. The texts must be equal,
token for token, in every run: a draft never decides what is said.

    python benchmarks/quantized_acceptance.py --out benchmarks/results/nvfp4-acceptance.json

Takes about half an hour on two cores. `--drafts FOLDER` keeps the quantized drafts, and uses those
that are already there.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress

from tensorrt_llm_ext.benchmarking.problems import load_problems
from tensorrt_llm_ext.benchmarking.runs import encode_all
from tensorrt_llm_ext.checkpoints.loader import load_draft
from tensorrt_llm_ext.engine.loading import LoadedModels, load_models
from tensorrt_llm_ext.quantizing.acceptance import EngineRun, acceptance_ratio, run_engine
from tensorrt_llm_ext.quantizing.distill import DistillOptions
from tensorrt_llm_ext.quantizing.job import QuantizeOptions
from tensorrt_llm_ext.quantizing.runner import quantize_draft

ROOT = Path(__file__).resolve().parents[1]
TINY_KIMI = ROOT / "examples" / "tiny_kimi"
MIN_STEPS = 10_000
CALIBRATION_SEED = 77  # of problems of the training split

# Name of the draft, recipe, texts to calibrate (and train) on.
DRAFTS = (
    ("body", "nvfp4_layer", 96),
    ("full", "nvfp4_layer_fc_head", 96),
    ("full, QAD", "qad/nvfp4_layer_fc_head", 256),
)
# Label, loader's mode, and the least ratio that each draft must keep; None where it is reported.
MODES: tuple[tuple[str, str, dict[str, float | None]], ...] = (
    ("W4A16", "dequantized", {"body": 0.98, "full": 0.97, "full, QAD": None}),
    ("W4A4", "w4a4", {"body": 0.95, "full": None, "full, QAD": 0.98}),
)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--problems", type=int, default=1000)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--max-draft-len", type=int, default=3)
    parser.add_argument("--train-seconds", type=float, default=240.0)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--drafts", type=Path, help="where quantized drafts are kept")
    parser.add_argument("--out", type=Path, help="result as JSON; a table goes beside it as .md")
    return parser.parse_args()


def make_draft(name: str, recipe: str, count: int, folder: Path, args: argparse.Namespace) -> None:
    """Quantizes one draft on problems of the training split."""
    sys.path.insert(0, str(TINY_KIMI))
    from problems import format_prompt, generate

    prompts = [format_prompt(p) for p in generate("train", CALIBRATION_SEED, count)]
    with Progress(transient=True) as bar:
        task = bar.add_task(name)

        def show(text: str, done: int, total: int) -> None:
            bar.update(task, description=f"{name}: {text}", completed=done, total=total)

        quantize_draft(
            TINY_KIMI / "draft",
            folder,
            recipe=recipe,
            target=TINY_KIMI / "target",
            prompts=prompts,
            options=QuantizeOptions(
                max_tokens=args.max_tokens,
                max_draft_len=args.max_draft_len,
                distill=DistillOptions(seconds=args.train_seconds),
                run_engine=False,
            ),
            progress=show,
        )


def run(
    models: LoadedModels, prompts: Any, folder: Path, mode: str, label: str, args: Any
) -> EngineRun:
    """Answers all prompts with one draft."""
    draft = load_draft(folder, models.target, quant_mode=mode)
    with Progress(transient=True) as bar:
        task = bar.add_task(label, total=len(prompts))
        return run_engine(
            models.target,
            draft,
            prompts,
            max_draft_len=args.max_draft_len,
            max_tokens=args.max_tokens,
            eos_token_ids=models.eos_token_ids,
            batch_size=args.batch_size,
            progress=lambda count: bar.advance(task, count),
        )


def row(
    draft: str, mode: str, base: EngineRun, other: EngineRun, least: float | None
) -> dict[str, Any]:
    """One line of the table."""
    stats, ratio = other.pooled, acceptance_ratio(base.per_prompt, other.per_prompt)
    return {
        "draft": draft,
        "mode": mode,
        "acceptance_length": stats.acceptance_length,
        "per_position": stats.per_position,
        "verify_steps": stats.num_steps,
        "ratio": ratio.value,
        "interval": [ratio.low, ratio.high],
        "least": least,
        "holds": least is None or ratio.value >= least,
        "same_text": base.token_ids == other.token_ids,
    }


def markdown(rows: list[dict[str, Any]]) -> str:
    """The table for the README."""
    lines = [
        "| draft | run as | acceptance length | of bf16's (95 % interval) | required |",
        "|---|---|---|---|---|",
    ]
    for r in rows:
        low, high = r["interval"]
        ratio = "-" if r["mode"] == "bf16" else f"{r['ratio']:.4f} ({low:.4f} to {high:.4f})"
        least = "-" if r["least"] is None else f"{r['least']:.2f}"
        length = f"{r['acceptance_length']:.3f}"
        lines.append(f"| {r['draft']} | {r['mode']} | {length} | {ratio} | {least} |")
    return "\n".join(lines) + "\n"


def measure(folder: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Makes what is missing and measures everything."""
    paths = {name: folder / name.replace(", ", "-").lower() for name, _, _ in DRAFTS}
    for name, recipe, count in DRAFTS:
        if not paths[name].exists():
            make_draft(name, recipe, count, paths[name], args)
    models = load_models(TINY_KIMI / "target", dtype="float32")
    problems = load_problems(TINY_KIMI / "heldout.jsonl", args.problems)
    prompts = encode_all(models, [problem.prompt for problem in problems])
    base = run(models, prompts, TINY_KIMI / "draft", "auto", "bf16", args)
    rows = [row("float", "bf16", base, base, None)]
    for name, path in paths.items():
        for label, mode, least in MODES:
            other = run(models, prompts, path, mode, f"{name} {label}", args)
            rows.append(row(name, label, base, other, least[name]))
            print(json.dumps(rows[-1]), flush=True)
    return rows


def main() -> None:
    args = arguments()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.drafts or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        rows = measure(folder, args)
    print(markdown(rows))
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        result = {"problems": args.problems, "max_draft_len": args.max_draft_len, "rows": rows}
        args.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
        args.out.with_suffix(".md").write_text(markdown(rows), encoding="utf-8")
    if min(r["verify_steps"] for r in rows) < MIN_STEPS:
        raise SystemExit(f"fewer than {MIN_STEPS} verify steps; raise --problems")
    failed = [f"{r['draft']} {r['mode']}" for r in rows if not (r["holds"] and r["same_text"])]
    ptq, qad = (
        next(r for r in rows if r["draft"] == d and r["mode"] == "W4A4")
        for d in ("full", "full, QAD")
    )
    if qad["ratio"] < ptq["ratio"]:
        failed.append("QAD is worse than the PTQ that it started from")
    if failed:
        raise SystemExit("not held: " + "; ".join(failed))


if __name__ == "__main__":
    main()
