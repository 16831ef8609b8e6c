# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Trains the MLA Eagle3 draft on the states of the target, several recurrent steps at once.

    python examples/tiny_kimi/train_draft.py --target examples/tiny_kimi/target \\
        --checkpoint runs/draft.pt --minutes 10 --stop-at 3.6

Training-time test: from every position the draft takes as many steps as a chain of drafts would,
each from its own last state, and learns the target's distribution (not the text's) in all of them.
It stops at a given acceptance length, because a draft that is right about nearly everything would
hide faults that a real one shows.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import problems
import torch
from accuracy import HERE, greedy
from hf_names import read_target
from model import CAPTURED_BOUNDARIES, DRAFT, Draft, ModelConfig, Target
from tokenizers import Tokenizer
from torch import Tensor
from train_target import Rows, pad
from training import Group, Settings, Trainer, add_options, launch, settings_from

_SEVERAL_SHARE = 0.1  # of the rows hold three problems
_STEP_DECAY = 0.85  # weight of a recurrent step, relative to the one before
_MAX_DRAFT_LEN = 3  # at which acceptance is measured


def unrolled_loss(logits: Sequence[Tensor], target_probs: Tensor, weights: Tensor) -> Tensor:
    """Cross entropy against the target's distribution, over recurrent steps.

    Row p of step j predicts token p + 2 + j, for which row p + 1 + j of the target is the teacher.

    Args:
        logits: Per step [rows, row_len, vocab_size].
        target_probs: [rows, row_len, vocab_size] float32.
        weights: [rows, row_len] float32, of each token as the predicted one.
    """
    total = torch.zeros((), device=weights.device)
    for j, step_logits in enumerate(logits):
        count = weights.shape[1] - 2 - j
        log_probs = torch.log_softmax(step_logits[:, :count].float(), -1)
        teacher = target_probs[:, 1 + j : 1 + j + count]
        weight = weights[:, 2 + j : 2 + j + count]
        entropy = -(teacher * log_probs).sum(-1)
        total = total + _STEP_DECAY**j * (entropy * weight).sum() / weight.sum()
    return total


@torch.no_grad()
def count_accepted(
    target: Target, draft: Draft, rows: Sequence[Sequence[int]], starts: Sequence[int]
) -> list[int]:
    """Replays greedy answers with drafts and counts which would have been accepted.

    Args:
        target: The target that gave the answers.
        draft: The draft.
        rows: Prompts with their greedy answers.
        starts: Where each answer begins.

    Returns:
        The number of verify steps, and for each draft position how often it was accepted. Steps
        that could draft past the end of an answer are not counted.
    """
    device = target.embed.weight.device
    counts = [0] * (1 + _MAX_DRAFT_LEN)
    for row, start in zip(rows, starts, strict=True):
        ids = torch.tensor([row], device=device)
        with torch.autocast(device.type, torch.bfloat16):
            _, captured = target(ids, CAPTURED_BOUNDARIES)
            states = [captured[b] for b in CAPTURED_BOUNDARIES]
            logits = draft.unroll(states, target.embed, ids, _MAX_DRAFT_LEN)
        drafts = torch.stack([step.argmax(-1)[0] for step in logits]).tolist()
        position = start - 1  # its successor, the first token of the answer, came with the prompt
        while position + 2 + _MAX_DRAFT_LEN <= len(row):
            accepted = 0
            while (
                accepted < _MAX_DRAFT_LEN
                and drafts[accepted][position] == row[position + 2 + accepted]
            ):
                accepted += 1
                counts[accepted] += 1
            counts[0] += 1
            position += accepted + 1
    return counts


class DraftTask:
    """The draft beside a target that does not change."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        target: Target,
        *,
        num_rows: int,
        num_steps: int,
        stop_at: float,
        config: ModelConfig = DRAFT,
    ) -> None:
        self.rows = Rows(tokenizer, question_weight=0.0)
        self.target = target
        self.device = target.embed.weight.device
        self.num_rows, self.num_steps, self.stop_at = num_rows, num_steps, stop_at
        self.net = Draft(config).to(self.device)
        self.net.lm_head.weight.data.copy_(target.head.weight)
        self._replays: tuple[list[list[int]], list[int]] | None = None

    def loss(self, rng: random.Random, step: int, progress: float) -> tuple[Tensor, int]:
        """Loss of all recurrent steps over freshly drawn rows."""
        several = (rng.random() < _SEVERAL_SHARE for _ in range(self.num_rows))
        rows = [self.rows.problem_row(rng, 3 if more else 1) for more in several]
        ids, weights = pad(rows, self.device)
        with torch.no_grad():
            hidden, captured = self.target(ids, CAPTURED_BOUNDARIES)
            probs = torch.softmax(self.target.head(hidden).float(), -1)
        states = [captured[b] for b in CAPTURED_BOUNDARIES]
        logits = self.net.unroll(states, self.target.embed, ids, self.num_steps)
        return unrolled_loss(logits, probs, weights), ids.numel()

    def statistics(self) -> Tensor:
        """None: a draft has no experts."""
        return torch.zeros(0, device=self.device)

    def balance(self, statistics: Tensor, rate: float) -> None:
        """Nothing to balance."""

    def evaluate(self, group: Group, *, final: bool) -> dict[str, Any]:
        """Acceptance on greedy answers of the target, shared out over the processes."""
        if self._replays is None:
            mine = problems.generate("test", 11, 32)[group.rank :: group.size]
            tokenizer = self.rows.tokenizer
            prompts = [tokenizer.encode(problems.format_prompt(p)).ids for p in mine]
            rows = greedy(self.target, prompts, autocast=True)
            self._replays = rows, [len(prompt) for prompt in prompts]
        counts = torch.tensor(count_accepted(self.target, self.net, *self._replays))
        num_steps, *accepted = group.sum_(counts).tolist()
        return {
            "acceptance_length": round(1 + sum(accepted) / num_steps, 3),
            "per_position": [round(count / num_steps, 3) for count in accepted],
        }

    def is_done(self, evaluation: dict[str, Any]) -> bool:
        """Whether the draft is good enough."""
        return bool(evaluation["acceptance_length"] >= self.stop_at)


def work(group: Group, settings: Settings, options: argparse.Namespace) -> None:
    """Trains in one process of the group."""
    torch.manual_seed(settings.seed)
    tokenizer = Tokenizer.from_file(str(HERE / "tokenizer.json"))
    target = read_target(options.target).to(group.device)
    task = DraftTask(
        tokenizer,
        target,
        num_rows=options.rows,
        num_steps=options.steps,
        stop_at=options.stop_at,
    )
    Trainer(task, settings, group).run()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_options(parser, minutes=10, name="draft")
    parser.add_argument("--target", type=Path, default=HERE / "target", help="exported folder")
    parser.add_argument("--rows", type=int, default=16, help="per step and process (%(default)s)")
    parser.add_argument("--steps", type=int, default=4, help="recurrent steps (%(default)s)")
    parser.add_argument(
        "--stop-at", type=float, default=3.6, help="acceptance length (%(default)s)"
    )
    options = parser.parse_args()
    settings = settings_from(
        options,
        muon_lr=0.01,
        adam_lr=1e-3,
        momentum=0.9,
        betas=(0.9, 0.95),
        warmup_steps=20,
        decay_share=0.4,
        log_steps=10,
        save_seconds=60.0,
        evaluate_seconds=20.0,
    )
    launch(work, options.processes, options.device, settings, options)


if __name__ == "__main__":
    main()
