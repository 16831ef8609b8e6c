# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Trains the target on word problems, bare equations and rows of several problems.

    python examples/tiny_kimi/train_target.py --minutes 68 --checkpoint runs/target.pt

Stopped runs go on with --resume. The log has a line of loss every 25 steps and one of exact match
on problems of the test split every five and a half minutes.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path
from typing import Any

import problems
import torch
import torch.nn.functional as F
from accuracy import EOS_TOKEN_ID, count_exact
from model import TARGET, ModelConfig, MoE, Target
from tokenizers import Tokenizer
from torch import Tensor
from training import Group, Settings, Trainer, add_options, launch, settings_from

HERE = Path(__file__).resolve().parent
Row = tuple[list[int], list[float]]

_QUESTION_WEIGHT = 0.1  # of the loss on a question: drawn words cannot be predicted
_FEW_SHOT_EVERY = 14  # steps; else positions beyond one problem would stay untrained
# Share of drills in the rows of other steps: many until the equations are learnt, then few.
_DRILL_SHARE, _LATE_DRILL_SHARE, _LATE = 0.45, 0.1, 0.83
_BALANCE_STEP = 0.003  # by which the bias of an expert moves


class Rows:
    """Encodes training rows: token ids, and the weight of the loss on each."""

    def __init__(self, tokenizer: Tokenizer, *, question_weight: float) -> None:
        self.tokenizer = tokenizer
        self.question_weight = question_weight

    def _ids(self, text: str) -> list[int]:
        return self.tokenizer.encode(text).ids

    def problem_row(self, rng: random.Random, count: int) -> Row:
        """Several problems with their answers, as in a few-shot prompt, and the end token."""
        ids: list[int] = []
        weights: list[float] = []
        for i in range(count):
            problem = problems.draw("train", rng)
            prompt = self._ids(("\n\n" if i else "") + problems.format_prompt(problem))
            answer = self._ids(f" {problem.answer}")
            ids += prompt + answer
            weights += [self.question_weight] * len(prompt) + [1.0] * len(answer)
        return [*ids, EOS_TOKEN_ID], [*weights, 1.0]

    def drill_row(self, rng: random.Random) -> Row:
        """Bare equations; only their right sides count."""
        ids: list[int] = []
        weights: list[float] = []
        for line in problems.drill(rng).split("\n"):
            left, right = line.split("= ")
            prompt, answer = self._ids(f"{left}="), self._ids(f" {right}\n")
            ids += prompt + answer
            weights += [0.0] * len(prompt) + [1.0] * len(answer)
        return [*ids, EOS_TOKEN_ID], [*weights, 0.0]

    def draw(self, rng: random.Random, step: int, num_rows: int, drill_share: float) -> list[Row]:
        """Draws the rows of one step."""
        if step % _FEW_SHOT_EVERY == _FEW_SHOT_EVERY - 1:
            return [self.problem_row(rng, rng.randint(4, 9)) for _ in range(max(1, num_rows // 8))]
        drills = (rng.random() < drill_share for _ in range(num_rows))
        return [self.drill_row(rng) if drill else self.problem_row(rng, 1) for drill in drills]


def pad(rows: list[Row], device: torch.device) -> tuple[Tensor, Tensor]:
    """Returns ids, int64, and weights, float32, both [num_rows, longest row]; padding is 0."""
    length = max(len(ids) for ids, _ in rows)
    ids = torch.zeros(len(rows), length, dtype=torch.long)
    weights = torch.zeros(len(rows), length)
    for i, (row, row_weights) in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row)
        weights[i, : len(row)] = torch.tensor(row_weights)
    return ids.to(device), weights.to(device)


class TargetTask:
    """Next-token prediction, with experts balanced by their biases instead of a loss."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        num_rows: int,
        device: torch.device,
        config: ModelConfig = TARGET,
    ) -> None:
        self.rows = Rows(tokenizer, question_weight=_QUESTION_WEIGHT)
        self.num_rows = num_rows
        self.device = device
        self.net = Target(config).to(device)
        self._moes = [module for module in self.net.modules() if isinstance(module, MoE)]

    def loss(self, rng: random.Random, step: int, progress: float) -> tuple[Tensor, int]:
        """Weighted cross entropy over freshly drawn rows."""
        drill_share = _DRILL_SHARE if progress < _LATE else _LATE_DRILL_SHARE
        ids, weights = pad(self.rows.draw(rng, step, self.num_rows, drill_share), self.device)
        hidden, _ = self.net(ids)
        logits = self.net.head(hidden)[:, :-1].float()
        losses = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        weights = weights[:, 1:].flatten()
        return (losses * weights).sum() / weights.sum(), ids.numel()

    def statistics(self) -> Tensor:
        """Rows per expert of each MoE since the last step."""
        return torch.cat([moe.load for moe in self._moes])

    def balance(self, statistics: Tensor, rate: float) -> None:
        """Raises the bias of experts with less than the mean load and lowers that of others."""
        loads = statistics.split(self.net.config.num_experts)
        for moe, load in zip(self._moes, loads, strict=True):
            moe.load.zero_()
            moe.bias += _BALANCE_STEP * rate * torch.sign(load.mean() - load)

    def evaluate(self, group: Group, *, final: bool) -> dict[str, Any]:
        """Exact match on problems of the test split, shared out over the processes."""
        count, seed = (200, 6) if final else (64, 5)
        mine = problems.generate("test", seed, count)[group.rank :: group.size]
        prompts = [problems.format_prompt(problem) for problem in mine]
        finals = [problem.final for problem in mine]
        hits = count_exact(self.net, self.rows.tokenizer, prompts, finals, autocast=True)
        total = int(group.sum_(torch.tensor([hits])).item())
        return {"exact_match": round(total / count, 4), "problems": count}

    def is_done(self, evaluation: dict[str, Any]) -> bool:
        """The target always trains to the end of its time."""
        return False


def work(group: Group, settings: Settings, num_rows: int) -> None:
    """Trains in one process of the group."""
    torch.manual_seed(settings.seed)
    tokenizer = Tokenizer.from_file(str(HERE / "tokenizer.json"))
    task = TargetTask(tokenizer, num_rows=num_rows, device=group.device)
    Trainer(task, settings, group).run()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_options(parser, minutes=68, name="target")
    parser.add_argument("--rows", type=int, default=20, help="per step and process (%(default)s)")
    options = parser.parse_args()
    settings = settings_from(options)
    launch(work, options.processes, options.device, settings, options.rows)


if __name__ == "__main__":
    main()
