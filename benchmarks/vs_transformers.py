# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The engine without speculation against `generate` of transformers: same weights, same cores.

Both generate the same number of tokens for the same prompts in one process, taking turns.
transformers runs in evaluation mode with its cache, in the fastest of its attention and expert
implementations, chosen by a trial per batch size. The tokens are compared first; when they differ
by more than a near-tie, no time is printed and the exit code is 1.

    python benchmarks/vs_transformers.py [--json] [--batch-sizes 1 8] [--model FOLDER]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from rich.console import Console
from rich.table import Table
from safetensors import safe_open

from tensorrt_llm_ext.benchmarking.compare import Comparison
from tensorrt_llm_ext.benchmarking.margins import find_divergences
from tensorrt_llm_ext.benchmarking.problems import load_problems
from tensorrt_llm_ext.benchmarking.runs import RunResult, Workload, make_core, measure, warm_up
from tensorrt_llm_ext.checkpoints.writer import save_checkpoint
from tensorrt_llm_ext.cli.prompts import tiny_kimi
from tensorrt_llm_ext.configs.sampling import SamplingParams
from tensorrt_llm_ext.devices import probe
from tensorrt_llm_ext.engine.loading import LoadedModels, load_models
from tensorrt_llm_ext.errors import ConfigError, ExtError
from tensorrt_llm_ext.speculative.stats import AcceptanceStats

# What a model of transformers can be asked to compute with. Versions without a choice of experts
# ignore the second name.
ATTENTION = ("sdpa", "eager")
EXPERTS = ("default", "eager", "batched_mm", "grouped_mm")
TRIAL_TOKENS = 8


@dataclass(frozen=True)
class Row:
    """The result at one batch size."""

    batch_size: int
    comparison: Comparison
    implementation: str

    def to_dict(self) -> dict[str, Any]:
        result: dict[str, Any] = {
            "batch_size": self.batch_size,
            "verdict": self.comparison.verdict,
            "transformers_implementation": self.implementation,
        }
        if self.comparison.first_divergence is not None:
            result["margin"] = self.comparison.first_divergence.margin
        if self.comparison.verdict != "different":
            result |= {
                "transformers_tokens_per_s": speeds(self.comparison.baseline),
                "engine_tokens_per_s": speeds(self.comparison.speculative),
                "ratio": self.comparison.speedup,
            }
        return result


def speeds(runs: tuple[RunResult, ...]) -> float:
    return statistics.median(run.tokens_per_s for run in runs)


class Peer:
    """transformers' DeepseekV3 with the weights of a checkpoint folder."""

    def __init__(self, folder: Path, models: LoadedModels) -> None:
        self.device, self.dtype = models.device, models.dtype
        with tempfile.TemporaryDirectory() as unwrapped:
            unwrap(folder, Path(unwrapped))
            self.model = transformers.DeepseekV3ForCausalLM.from_pretrained(
                unwrapped, dtype=self.dtype, local_files_only=True
            )
        self.model = self.model.eval().to(self.device)
        # No early end, as in the engine's runs; prompts are padded by hand.
        self.model.generation_config = transformers.GenerationConfig(
            do_sample=False, use_cache=True, eos_token_id=None, pad_token_id=0
        )
        self.implementation = ""

    def use(self, attention: str, experts: str) -> None:
        """Chooses implementations; ValueError when this version of transformers has them not."""
        config = self.model.config
        self.model.set_attn_implementation(attention)
        if hasattr(self.model, "set_experts_implementation") and experts != "default":
            self.model.set_experts_implementation(experts)
        elif experts != "default":
            raise ValueError("no choice of experts")
        self.implementation = f"{config._attn_implementation}, experts {experts}"

    @torch.inference_mode()
    def run(self, workload: Workload, num_tokens: int) -> RunResult:
        """Generates greedily, `batch_size` left-padded prompts at a time."""
        tokens: list[tuple[int, ...]] = []
        start = time.perf_counter()
        for prompts in batches(workload):
            width = max(map(len, prompts))
            ids = torch.zeros(len(prompts), width, dtype=torch.int64)
            mask = torch.zeros_like(ids)
            for row, prompt in enumerate(prompts):
                ids[row, width - len(prompt) :] = torch.tensor(prompt)
                mask[row, width - len(prompt) :] = 1
            output = self.model.generate(
                input_ids=ids.to(self.device),
                attention_mask=mask.to(self.device),
                max_new_tokens=num_tokens,
            )
            tokens += [tuple(row) for row in output[:, width:].tolist()]
        seconds = time.perf_counter() - start
        return RunResult(token_ids=tuple(tokens), seconds=seconds, acceptance=AcceptanceStats())


def batches(workload: Workload) -> Iterator[tuple[tuple[int, ...], ...]]:
    for start in range(0, len(workload.prompts), workload.batch_size):
        yield workload.prompts[start : start + workload.batch_size]


def unwrap(folder: Path, into: Path) -> None:
    """Writes the text part of a Kimi wrapper as `DeepseekV3ForCausalLM`; others as they are."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    prefix = "language_model." if "text_config" in config else ""
    text = config.get("text_config", config)
    text |= {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3"}
    text.pop("auto_map", None)
    tensors = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as shard:
            for name in shard.keys():  # noqa: SIM118 - it is no mapping
                if name.startswith(prefix):
                    tensors[name.removeprefix(prefix)] = shard.get_tensor(name)
    save_checkpoint(into, text, tensors)


def fastest(peer: Peer, workload: Workload) -> str:
    """Leaves the peer in the fastest of its implementations for a workload; returns its name."""
    attention = _fastest_of(peer, workload, [(name, EXPERTS[0]) for name in ATTENTION])[0]
    choice = _fastest_of(peer, workload, [(attention, name) for name in EXPERTS])
    peer.use(*choice)
    return peer.implementation


def _fastest_of(peer: Peer, workload: Workload, choices: list[tuple[str, str]]) -> tuple[str, str]:
    timings = {}
    for choice in choices:
        try:
            peer.use(*choice)
            peer.run(workload, TRIAL_TOKENS)
        except (ImportError, NotImplementedError, RuntimeError, ValueError):
            continue  # not on this device, or not in this version
        timings[choice] = min(peer.run(workload, TRIAL_TOKENS).seconds for _ in range(3))
    if not timings:
        raise ConfigError("transformers runs in none of its implementations here")
    return min(timings, key=lambda choice: timings[choice])


def compare(models: LoadedModels, peer: Peer, workload: Workload, rounds: int) -> Row:
    """Lets both sides take turns, and compares their tokens."""
    num_tokens = workload.sampling.max_tokens
    implementation = fastest(peer, workload)
    core = make_core(models, workload, 0)
    warm_up(core, workload, ())
    theirs, ours = [], []
    for number in range(rounds):
        if number % 2 == 0:
            theirs.append(peer.run(workload, num_tokens))
        ours.append(measure(core, workload, ()))
        if number % 2 == 1:
            theirs.append(peer.run(workload, num_tokens))
    divergences = find_divergences(
        models, workload, theirs[0].token_ids, ours[0].token_ids, core=core
    )
    result = Comparison(baseline=tuple(theirs), speculative=tuple(ours), divergences=divergences)
    return Row(workload.batch_size, result, implementation)


def prompts_for(
    models: LoadedModels, model: Path | None, count: int
) -> tuple[tuple[int, ...], ...]:
    """Held-out problems of tiny_kimi, or for another model texts of its own tokens."""
    if model is None and models.tokenizer is not None:
        problems = load_problems(tiny_kimi("heldout.jsonl"), count)
        return tuple(tuple(models.tokenizer.encode(problem.prompt)) for problem in problems)
    generator = torch.Generator().manual_seed(0)
    vocab_size = models.target.config.vocab_size
    return tuple(
        tuple(torch.randint(vocab_size, (48 + 3 * i,), generator=generator).tolist())
        for i in range(count)
    )


def table(rows: list[Row]) -> Table:
    result = Table(title="Tokens per second without speculation, medians")
    for title in ("batch", "tokens", "transformers", "engine", "ratio", "transformers' choice"):
        result.add_column(title, justify="right")
    for row in rows:
        values = row.to_dict()
        timed = "ratio" in values
        result.add_row(
            str(row.batch_size),
            row.comparison.verdict,
            f"{values['transformers_tokens_per_s']:.1f}" if timed else "-",
            f"{values['engine_tokens_per_s']:.1f}" if timed else "-",
            f"{values['ratio']:.2f}x" if timed else "-",
            row.implementation,
        )
    return result


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--model", type=Path, help="default: examples/tiny_kimi/target")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--min-ratio", type=float, help="exit with 1 below this ratio")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    console = Console(stderr=True)
    folder = options.model or tiny_kimi("target")
    with console.status("loading"):
        models = load_models(folder, device="cpu", dtype="float32")
        peer = Peer(folder, models)
    rows = []
    for batch_size in options.batch_sizes:
        workload = Workload(
            prompts=prompts_for(models, options.model, batch_size),
            sampling=SamplingParams(max_tokens=options.new_tokens, ignore_eos=True),
            batch_size=batch_size,
        )
        with console.status(f"batch {batch_size}"):
            rows.append(compare(models, peer, workload, options.rounds))
    setting = {
        "device": str(probe("cpu")),
        "dtype": "float32",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "new_tokens": options.new_tokens,
        "rounds": options.rounds,
    }
    if options.json:
        print(json.dumps({"setting": setting, "rows": [row.to_dict() for row in rows]}, indent=2))
    else:
        Console().print(table(rows))
        print(", ".join(f"{name} {value}" for name, value in setting.items()))
    is_failure = any(row.comparison.verdict == "different" for row in rows)
    is_slow = options.min_ratio and min(r.comparison.speedup for r in rows) < options.min_ratio
    return int(is_failure or bool(is_slow))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ExtError as error:
        sys.exit(f"error: {error}")
