# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""What `generate` prints: tables for people, plain data for machines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tensorrt_llm_ext.benchmarking.compare import Comparison, median_tokens_per_s
from tensorrt_llm_ext.benchmarking.margins import Divergence
from tensorrt_llm_ext.benchmarking.problems import exact_match, final_answer
from tensorrt_llm_ext.benchmarking.runs import RunResult, Workload
from tensorrt_llm_ext.cli.prompts import Task
from tensorrt_llm_ext.devices import probe
from tensorrt_llm_ext.engine.loading import LoadedModels
from tensorrt_llm_ext.speculative.stats import AcceptanceStats

_MAX_TEXTS_SHOWN = 6
_VERDICT_STYLES = {"identical": "bold green", "near_tie": "bold yellow", "different": "bold red"}


@dataclass(frozen=True)
class Setting:
    """Under which conditions something was generated."""

    models: LoadedModels
    workload: Workload
    task: Task
    draft_len: int

    def texts(self, run: RunResult) -> list[str]:
        """Returns the decoded texts of a run."""
        tokenizer = self.models.tokenizer
        return [] if tokenizer is None else [tokenizer.decode(ids) for ids in run.token_ids]

    def exact_match(self, run: RunResult) -> float | None:
        """Returns the share of right answers, None when the prompts are no problems."""
        if not self.task.problems:
            return None
        return exact_match(self.task.problems, self.texts(run))

    def to_dict(self) -> dict[str, Any]:
        """Returns the conditions as plain data."""
        sampling = self.workload.sampling
        return {
            "device": str(probe(self.models.device)),
            "dtype": str(self.models.dtype).removeprefix("torch."),
            "quant_mode": self.models.quant_mode,
            "draft_quant_mode": self.models.draft_quant_mode,
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "num_prompts": len(self.workload.prompts),
            "batch_size": self.workload.batch_size,
            "max_draft_len": self.draft_len,
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.effective_temperature,
            "seed": self.workload.seed,
        }

    def caption(self) -> str:
        """Returns the conditions in one line for people."""
        names = self.to_dict()
        return (
            f"{names['device']}, {names['dtype']}, {names['threads']} thread(s), "
            f"batch {names['batch_size']}, {names['num_prompts']} prompt(s)"
        )


@dataclass(frozen=True, kw_only=True)
class RunReport:
    """One run, with or without a draft."""

    setting: Setting
    run: RunResult
    is_failure = False

    def to_dict(self) -> dict[str, Any]:
        """Returns everything as plain data."""
        result = {"setting": self.setting.to_dict(), "num_tokens": self.run.num_tokens}
        result |= {"tokens_per_s": self.run.tokens_per_s, **acceptance_dict(self.run.acceptance)}
        score = self.setting.exact_match(self.run)
        if score is not None:
            result["exact_match"] = score
        return result | {"outputs": output_dicts(self.setting, self.run)}

    def show(self) -> None:
        """Prints texts and tables."""
        console = Console()
        show_texts(console, self.setting, self.run)
        if self.setting.draft_len:
            console.print("[bold]Acceptance[/bold]")
            console.print(acceptance_table(self.run.acceptance))
        console.print(
            f"{self.run.num_tokens} tokens in {self.run.seconds:.2f} s: "
            f"[bold]{self.run.tokens_per_s:.1f} tokens/s[/bold] ({self.setting.caption()})"
        )
        show_score(console, self.setting, self.run)


@dataclass(frozen=True, kw_only=True)
class ComparisonReport:
    """Interleaved runs with and without the draft."""

    setting: Setting
    comparison: Comparison

    @property
    def is_failure(self) -> bool:
        """Whether the draft changed the text."""
        return self.comparison.verdict == "different"

    def to_dict(self) -> dict[str, Any]:
        """Returns everything as plain data."""
        comparison, setting = self.comparison, self.setting
        sides = {"baseline": comparison.baseline, "speculative": comparison.speculative}
        result: dict[str, Any] = {
            "identical": comparison.verdict == "identical",
            "verdict": comparison.verdict,
        }
        for name, runs in sides.items():
            result[name] = {
                "tokens_per_s": median_tokens_per_s(runs),
                "runs": [run.tokens_per_s for run in runs],
                "num_tokens": runs[0].num_tokens,
            }
            score = setting.exact_match(runs[0])
            if score is not None:
                result[name]["exact_match"] = score
        result["speculative"] |= acceptance_dict(comparison.acceptance)
        result["speedup"] = comparison.speedup
        if setting.task.problems:
            result["exact_match"] = result["speculative"]["exact_match"]
        if comparison.first_divergence is not None:
            result["first_divergence"] = divergence_dict(comparison.first_divergence)
            result["num_divergent_prompts"] = len(comparison.divergent_prompts)
        result["setting"] = setting.to_dict()
        result["outputs"] = output_dicts(setting, comparison.speculative[0])
        return result

    def show(self) -> None:
        """Prints texts, verdict, acceptance and speed."""
        console = Console()
        comparison, setting = self.comparison, self.setting
        show_texts(console, setting, comparison.speculative[0])
        verdict = comparison.verdict
        style = _VERDICT_STYLES[verdict]
        console.print(f"Text with and without the draft: [{style}]{verdict}[/{style}]")
        if comparison.first_divergence is not None:
            console.print(divergence_text(setting, comparison.first_divergence))
        console.print("\n[bold]Acceptance[/bold]")
        console.print(acceptance_table(comparison.acceptance))
        pairs = len(comparison.baseline)
        console.print(f"[bold]Tokens per second[/bold], median of {pairs} interleaved pair(s)")
        console.print(speed_table(comparison))
        console.print(setting.caption(), style="dim")
        show_score(console, setting, comparison.speculative[0])


def acceptance_dict(acceptance: AcceptanceStats) -> dict[str, Any]:
    """Returns acceptance by the names of the definitions; rates are None without a step."""
    return {
        "acceptance_length": acceptance.acceptance_length,
        "acceptance_rate": acceptance.acceptance_rate,
        "per_position": acceptance.per_position,
        "num_steps": acceptance.num_steps,
        "num_drafted": acceptance.num_drafted,
        "num_accepted": acceptance.num_accepted,
    }


def divergence_dict(divergence: Divergence) -> dict[str, Any]:
    """Returns a divergence as plain data; a margin without bound is None."""
    return {
        "prompt_index": divergence.prompt_index,
        "position": divergence.position,
        "baseline_token": divergence.baseline_token,
        "speculative_token": divergence.speculative_token,
        "margin": divergence.margin if math.isfinite(divergence.margin) else None,
        "tolerance": divergence.tolerance,
    }


def divergence_text(setting: Setting, divergence: Divergence) -> str:
    """Returns one sentence on where the runs part."""
    tokenizer = setting.models.tokenizer
    names = [
        "the end" if token is None else repr(tokenizer.decode([token]) if tokenizer else token)
        for token in (divergence.baseline_token, divergence.speculative_token)
    ]
    return escape(
        f"They part in prompt {divergence.prompt_index}, token {divergence.position}: {names[0]} "
        f"without, {names[1]} with the draft. Margin {divergence.margin:.3g}, tolerance of the "
        f"dtype {divergence.tolerance:.3g}."
    )


def output_dicts(setting: Setting, run: RunResult) -> list[dict[str, Any]]:
    """Returns prompt, text and length of every output."""
    rows = zip(setting.task.prompts, setting.texts(run), run.token_ids, strict=True)
    return [{"prompt": prompt, "text": text, "num_tokens": len(ids)} for prompt, text, ids in rows]


def show_texts(console: Console, setting: Setting, run: RunResult) -> None:
    """Prints the first texts, each after its prompt, with a mark on answers of problems."""
    task = setting.task
    texts = setting.texts(run)
    for index, (prompt, text) in enumerate(zip(task.prompts, texts, strict=True)):
        if index == _MAX_TEXTS_SHOWN:
            console.print(f"… and {len(texts) - index} more; --json prints all\n", style="dim")
            break
        console.print(prompt, style="cyan", markup=False, highlight=False, soft_wrap=True, end="")
        console.print(text.rstrip(), markup=False, highlight=False, soft_wrap=True)
        if task.problems:
            expected = task.problems[index].final
            is_right = final_answer(text) == expected
            mark = "[green]right[/green]" if is_right else f"[red]wrong, expected {expected}[/red]"
            console.print(mark)
        console.print()


def show_score(console: Console, setting: Setting, run: RunResult) -> None:
    """Prints the share of right answers of problems."""
    score = setting.exact_match(run)
    if score is not None:
        console.print(f"Exact match on {len(setting.task.problems)} problem(s): {score:.3f}")


def acceptance_table(acceptance: AcceptanceStats) -> Table:
    """Returns acceptance length, rate and the share per position as a table."""
    table = Table(box=box.SIMPLE_HEAD)
    shares = acceptance.per_position
    titles = ["length", "rate", *(f"position {i + 1}" for i in range(len(shares)))]
    for title in [*titles, "verify steps"]:
        table.add_column(title, justify="right")
    values = [acceptance.acceptance_length, acceptance.acceptance_rate, *shares]
    table.add_row(*map(_number, values), str(acceptance.num_steps))
    return table


def speed_table(comparison: Comparison) -> Table:
    """Returns tokens per second with and without the draft as a table."""
    table = Table(box=box.SIMPLE_HEAD)
    for title in ("without draft", "with draft", "speed-up"):
        table.add_column(title, justify="right")
    table.add_row(
        _range(comparison.baseline),
        _range(comparison.speculative),
        f"[bold]{comparison.speedup:.2f}x[/bold]",
    )
    return table


def _range(runs: Sequence[RunResult]) -> str:
    speeds = [run.tokens_per_s for run in runs]
    return f"{median_tokens_per_s(runs):.1f} ({min(speeds):.1f}–{max(speeds):.1f})"  # noqa: RUF001


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"  # noqa: RUF001
