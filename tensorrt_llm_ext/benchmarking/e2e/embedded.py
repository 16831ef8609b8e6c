# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The embedded engine under load, with and without the draft."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tensorrt_llm_ext.benchmarking.e2e.load import (
    Trace,
    closed_loop,
    open_loop,
    summary,
)
from tensorrt_llm_ext.benchmarking.e2e.verdict import Level, explain, verdict
from tensorrt_llm_ext.benchmarking.margins import Divergence, find_divergences
from tensorrt_llm_ext.benchmarking.runs import Workload, make_core
from tensorrt_llm_ext.configs.engine import CudaGraphConfig
from tensorrt_llm_ext.configs.sampling import SamplingParams
from tensorrt_llm_ext.engine.llm import LLM
from tensorrt_llm_ext.engine.loading import LoadedModels
from tensorrt_llm_ext.engine.settings import EngineConfig
from tensorrt_llm_ext.speculative.phases import PHASES


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is run.

    Attributes:
        prompts: Token ids.
        sampling: Of all requests; greedy, so that texts can be compared.
        concurrencies: Of the closed loop.
        rates: Arrivals per second of the open loop.
        max_draft_len: Drafts per step.
        rounds: How often each load runs; tokens/s are of the fastest.
    """

    prompts: tuple[tuple[int, ...], ...]
    sampling: SamplingParams
    concurrencies: tuple[int, ...]
    rates: tuple[float, ...] = ()
    max_draft_len: int = 3
    rounds: int = 2


@dataclass(frozen=True, kw_only=True)
class E2EReport:
    """All levels of a run.

    Attributes:
        text: "identical", "near_tie" or "different", over all loads.
        num_divergent: Requests whose tokens differ.
        levels: By concurrency.
        open_loop: By arrival rate: both summaries.
        phase_seconds: Of a step with the draft, per concurrency.
    """

    text: str
    num_divergent: int
    levels: tuple[Level, ...]
    open_loop: tuple[dict[str, Any], ...]
    phase_seconds: dict[int, dict[str, float]]

    def to_dict(self) -> dict[str, Any]:
        """Returns everything as plain data."""
        levels = [
            {
                "concurrency": level.concurrency,
                "speedup": level.speedup,
                "step_ratio": level.step_ratio,
                "acceptance_length": level.length,
                "verify_share": level.verify_share,
                "draft_share": level.draft_share,
                "with_draft": level.with_draft,
                "without": level.without,
                "explanation": explain(level),
            }
            for level in self.levels
        ]
        return {
            "text": self.text,
            "num_divergent": self.num_divergent,
            "levels": levels,
            "open_loop": list(self.open_loop),
            "phase_seconds_per_step": {str(k): v for k, v in self.phase_seconds.items()},
            "verdict": verdict(self.levels),
        }


def bench_e2e(
    models: LoadedModels, plan: Plan, progress: Callable[[str], None] = lambda _: None
) -> E2EReport:
    """Runs every load with and without the draft, and compares the tokens first.

    Args:
        models: A target and a draft.
        plan: What to run.
        progress: Told what is being done.
    """
    most = max(plan.concurrencies)
    longest = max(map(len, plan.prompts)) + plan.sampling.max_tokens + plan.max_draft_len + 1
    config = EngineConfig(
        max_batch_size=most,
        max_num_tokens=max(2048, most * (1 + plan.max_draft_len)),
        max_seq_len=min(longest, models.target.config.max_position_embeddings),
        enable_block_reuse=False,
        max_draft_len=plan.max_draft_len,
        cuda_graphs=CudaGraphConfig(enable_padding=True),
    )
    plain = replace(config, max_draft_len=0)
    levels, opened, phases = [], [], {}
    differing: dict[str, list[tuple[tuple[int, ...], tuple[int, ...]]]] = {}
    with LLM.from_loaded(models, config) as fast, LLM.from_loaded(models, plain) as slow:
        for llm in (slow, fast):
            closed_loop(_sender(llm, plan), min(2, len(plan.prompts)), 1)  # first-time costs
        for concurrency in plan.concurrencies:
            progress(f"closed loop, {concurrency} at once")
            level, seconds, pair = _level(fast, slow, plan, concurrency)
            levels.append(level)
            phases[concurrency] = seconds
            differing[f"{concurrency}"] = pair
        for rate in plan.rates:
            progress(f"open loop, {rate:g} arrivals per second")
            rows = {
                name: summary(open_loop(_sender(llm, plan), len(plan.prompts), rate))
                for name, llm in (("with_draft", fast), ("without", slow))
            }
            opened.append({"rate": rate, **rows})
    text, count = _compared(models, plan, differing.values())
    return E2EReport(
        text=text,
        num_divergent=count,
        levels=tuple(levels),
        open_loop=tuple(opened),
        phase_seconds=phases,
    )


def _sender(llm: LLM, plan: Plan) -> Callable[[int], Trace]:
    def send(index: int) -> Trace:
        begin = time.monotonic()
        handle = llm.generate_async(
            list(plan.prompts[index % len(plan.prompts)]), plan.sampling, streaming=True
        )
        arrivals, tokens = [], []
        for output in handle:
            new = output.outputs[0].token_ids_diff
            if new:
                arrivals.append((time.monotonic(), len(new)))
                tokens += new
        return Trace(begin=begin, arrivals=tuple(arrivals), tokens=tuple(tokens))

    return send


def _level(
    fast: LLM, slow: LLM, plan: Plan, concurrency: int
) -> tuple[Level, dict[str, float], list[tuple[tuple[int, ...], tuple[int, ...]]]]:
    """One concurrency; both sides run in turns, and the fastest round of each counts."""
    best: dict[str, dict[str, Any]] = {}
    tokens: dict[str, tuple[Trace, ...]] = {}
    accepted = drafted_steps = 0
    fast.reset_phases()
    slow.reset_phases()
    for _ in range(plan.rounds):
        for name, llm in (("without", slow), ("with", fast)):
            before = llm.acceptance
            traces = closed_loop(_sender(llm, plan), len(plan.prompts), concurrency)
            row = summary(traces)
            if name not in best or row["tokens_per_s"] > best[name]["tokens_per_s"]:
                best[name] = row
            tokens[name] = traces
            if name == "with":
                accepted += llm.acceptance.num_accepted - before.num_accepted
                drafted_steps += llm.acceptance.num_steps - before.num_steps
    step = _per_step(fast.phases())
    total, plain = sum(step.values()), sum(_per_step(slow.phases()).values())
    level = Level(
        concurrency=concurrency,
        speedup=best["with"]["tokens_per_s"] / best["without"]["tokens_per_s"],
        step_ratio=total / plain if plain else None,
        length=1 + accepted / drafted_steps if drafted_steps else None,
        verify_share=(step["verify"] + step["accept"]) / total if total else None,
        draft_share=(step["extend"] + step["chain"]) / total if total else None,
        with_draft=best["with"],
        without=best["without"],
    )
    pairs = zip(tokens["without"], tokens["with"], strict=True)
    return level, step, [(a.tokens, b.tokens) for a, b in pairs]


def _per_step(phases: tuple[int, dict[str, float]]) -> dict[str, float]:
    steps, seconds = phases
    return {name: seconds.get(name, 0.0) / steps if steps else 0.0 for name in PHASES}


def _compared(
    models: LoadedModels,
    plan: Plan,
    runs: Any,
) -> tuple[str, int]:
    """Whether tokens with and without the draft are the same, but for near-ties."""
    workload = Workload(prompts=plan.prompts, sampling=plan.sampling)
    core = make_core(models, workload, 0)
    found: list[Divergence] = []
    for pairs in runs:
        left: Sequence[tuple[int, ...]] = [a for a, _ in pairs]
        right: Sequence[tuple[int, ...]] = [b for _, b in pairs]
        if left != right:
            found += find_divergences(models, workload, left, right, core=core)
    if not found:
        return "identical", 0
    return "near_tie" if all(item.is_near_tie for item in found) else "different", len(found)


__all__ = ["E2EReport", "Plan", "bench_e2e"]
