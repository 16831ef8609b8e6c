# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The training loop: schedule, optimizers, rows, losses, and continuation after a stop."""

from __future__ import annotations

import itertools
import json
import random
from dataclasses import replace
from pathlib import Path

import accuracy
import problems
import pytest
import torch
import train_draft
import training
from model import MoE, Target, _GroupedExperts
from tokenizers import Tokenizer
from train_target import Rows, TargetTask, pad
from training import Group, Optimizer, Settings, Trainer

from tests.examples import tiny_sizes

CPU = torch.device("cpu")
# The tokenizer's vocabulary, and the longest rows of the language.
CONFIG = replace(tiny_sizes.TARGET, vocab_size=896, max_position_embeddings=1024)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(accuracy.HERE / "tokenizer.json"))


def settings(folder: Path, **fields: object) -> Settings:
    defaults = {"minutes": 1.0, "checkpoint": folder / "run.pt", "log": folder / "run.jsonl"}
    return Settings(**{**defaults, **fields})  # type: ignore[arg-type]


def target_task(tokenizer: Tokenizer) -> TargetTask:
    torch.manual_seed(0)
    return TargetTask(tokenizer, num_rows=4, device=CPU, config=CONFIG)


def parameters(trainer: Trainer) -> list[torch.Tensor]:
    return [tensor.clone() for tensor in trainer.task.net.state_dict().values()]


def test_resumed_run_takes_the_same_steps(tokenizer: Tokenizer, tmp_path: Path) -> None:
    whole = Trainer(target_task(tokenizer), settings(tmp_path, warmup_steps=2), Group())
    losses = []
    for step in range(4):
        if step == 2:
            whole.spent = 40.0  # in the decay
            whole.save()
        losses.append(whole.step())
    torch.manual_seed(99)  # other initial weights, to be replaced
    task = TargetTask(tokenizer, num_rows=4, device=CPU, config=CONFIG)
    rest = Trainer(task, settings(tmp_path, warmup_steps=2, resume=True), Group())
    assert (rest.num_steps, rest.spent) == (2, 40.0)
    assert [rest.step(), rest.step()] == losses[2:]
    assert rest.num_tokens == whole.num_tokens
    assert losses[0] != losses[1]
    for got, expected in zip(parameters(rest), parameters(whole), strict=True):
        assert torch.equal(got, expected)


def test_run_logs_and_saves(tokenizer: Tokenizer, tmp_path: Path) -> None:
    class Quick(TargetTask):
        def evaluate(self, group: Group, *, final: bool) -> dict[str, object]:
            assert not self.net.training
            return {"final": final}

    ticks = itertools.count(step=10.0)
    task = Quick(tokenizer, num_rows=2, device=CPU, config=CONFIG)
    chosen = settings(tmp_path, log_steps=2, evaluate_seconds=25.0)
    trainer = Trainer(task, chosen, Group(), clock=lambda: next(ticks))
    trainer.run()
    rows = [json.loads(line) for line in chosen.log.read_text().splitlines()]
    assert trainer.spent >= 60.0
    assert [row["final"] for row in rows if "final" in row] == [False, True]
    lines = [row for row in rows if "loss" in row]
    assert [row["step"] for row in lines] == [2, 4]
    assert all(0 < row["loss"] < 20 and row["tokens_per_s"] > 0 for row in lines)
    state = torch.load(chosen.checkpoint, weights_only=True)
    assert state["step"] == trainer.num_steps
    assert not chosen.checkpoint.with_name("run.pt.partial").exists()


def test_rate_rises_and_falls(tokenizer: Tokenizer, tmp_path: Path) -> None:
    trainer = Trainer(target_task(tokenizer), settings(tmp_path, warmup_steps=4), Group())
    assert trainer.rate() == 0.25
    trainer.num_steps = 3
    assert trainer.rate() == 1.0
    trainer.spent = 45.0
    assert trainer.rate() == pytest.approx(0.5)
    trainer.spent = 70.0
    assert trainer.rate() == 0.0


def test_orthogonalise() -> None:
    for shape in ((3, 16, 40), (2, 40, 16)):
        matrices = torch.randn(shape, generator=torch.Generator().manual_seed(1))
        values = torch.linalg.svdvals(training.orthogonalise(matrices))
        assert 0.6 < values.min() <= values.max() < 1.3


def test_muon_takes_matrices_and_their_blocks(tmp_path: Path) -> None:
    net = Target(CONFIG)
    optimizer = Optimizer(net, settings(tmp_path), Group())
    names = {id(p): n for n, p in net.named_parameters()}
    rows = {names[id(m.parameter)]: m.rows for m in optimizer.matrices}
    left = {n for n in names.values() if n not in rows}
    assert {n for n in left if "norm" not in n} == {
        "embed.weight",
        "head.weight",
        "layers.1.mlp.gate",
        "layers.2.mlp.gate",
    }
    assert rows["layers.0.mlp.gate_proj.weight"] == CONFIG.intermediate_size
    assert rows["layers.1.mlp.wgu"] == CONFIG.moe_intermediate_size
    assert rows["layers.1.mlp.wd"] == CONFIG.hidden_size
    assert rows["layers.1.self_attn.kv_b_proj.weight"] == CONFIG.v_head_dim


def train_together(group: Group, folder: Path) -> None:
    """Takes two steps in each process and writes what came of it."""
    tokenizer = Tokenizer.from_file(str(accuracy.HERE / "tokenizer.json"))
    trainer = Trainer(target_task(tokenizer), settings(folder), group)
    losses = [trainer.step(), trainer.step()]
    state = {"losses": losses, "net": trainer.task.net.state_dict(), "tokens": trainer.num_tokens}
    torch.save(state, folder / f"{group.rank}.pt")
    assert group.agree(float(group.rank)) == 0.0


def test_processes_stay_equal(tokenizer: Tokenizer, tmp_path: Path) -> None:
    training.launch(train_together, 2, "cpu", tmp_path)
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1))
    assert first["losses"] == second["losses"]
    assert first["tokens"] == second["tokens"]
    for name, tensor in first["net"].items():
        assert torch.equal(tensor, second["net"][name]), name
    alone = Trainer(target_task(tokenizer), settings(tmp_path), Group())
    assert alone.step() != first["losses"][0]  # the second process drew other rows
    assert alone.num_tokens < first["tokens"]


def test_experts_gradient() -> None:
    generator = torch.Generator().manual_seed(5)

    def draw(*shape: int) -> torch.Tensor:
        values = torch.randn(shape, generator=generator, dtype=torch.float64)
        return values.requires_grad_()

    inputs = draw(7, 4), draw(3, 6, 4), draw(3, 4, 3)
    assert torch.autograd.gradcheck(
        lambda x, wgu, wd: _GroupedExperts.apply(x, wgu, wd, [3, 0, 4]), inputs
    )


def test_balance_moves_biases_against_the_load(tokenizer: Tokenizer) -> None:
    task = target_task(tokenizer)
    rng = random.Random(1)
    task.loss(rng, 0, 0.0)
    loads = task.statistics()
    moes = [module for module in task.net.modules() if isinstance(module, MoE)]
    tokens = loads.view(len(moes), -1).sum(-1)
    assert len(set(tokens.tolist())) == 1  # each token has as many experts in each layer
    task.balance(loads, 0.5)
    for moe, load in zip(moes, loads.split(CONFIG.num_experts), strict=True):
        assert torch.equal(torch.sign(moe.bias), torch.sign(load.mean() - load))
        assert moe.bias.abs().max() == pytest.approx(0.0015)
    assert not task.statistics().any()


def test_rows(tokenizer: Tokenizer) -> None:
    rows = Rows(tokenizer, question_weight=0.1)
    ids, weights = rows.problem_row(random.Random(2), 3)
    rng = random.Random(2)
    drawn = [problems.draw("train", rng) for _ in range(3)]
    assert tokenizer.decode(ids) == "\n\n".join(map(problems.format_text, drawn))
    assert ids[-1] == accuracy.EOS_TOKEN_ID
    answers = tokenizer.decode([i for i, w in zip(ids, weights, strict=True) if w == 1.0])
    assert answers == "".join(f" {problem.answer}" for problem in drawn)

    ids, weights = rows.drill_row(random.Random(4))
    drill = problems.drill(random.Random(4))
    assert tokenizer.decode(ids) == drill + "\n"
    counted = tokenizer.decode([i for i, w in zip(ids, weights, strict=True) if w])
    assert counted == "".join(f"{line.split('=')[1]}\n" for line in drill.split("\n"))


def test_draw_mixes_rows(tokenizer: Tokenizer) -> None:
    rows = Rows(tokenizer, question_weight=0.1)
    rng = random.Random(3)
    question = tokenizer.token_to_id("Question")
    plain = [row for step in range(13) for row in rows.draw(rng, step, 20, 0.45)]
    drills = sum(question not in ids for ids, _ in plain) / len(plain)
    assert drills == pytest.approx(0.45, abs=0.07)
    several = rows.draw(rng, 13, 20, 0.45)
    assert [ids.count(question) >= 4 for ids, _ in several] == [True, True]
    ids, weights = pad(several, CPU)
    assert ids.shape == weights.shape == (2, max(len(i) for i, _ in several))


def test_greedy_does_not_depend_on_the_batch() -> None:
    net = tiny_sizes.target(4)
    prompts = [[5, 6, 7], [8], [9, 10, 11, 12, 13]]
    together = accuracy.greedy(net, prompts, max_new_tokens=6)
    for prompt, row in zip(prompts, together, strict=True):
        ids = list(prompt)
        while len(ids) < len(prompt) + 6 and ids[-1] != accuracy.EOS_TOKEN_ID:
            logits = net.head(net(torch.tensor([ids]))[0])
            ids.append(int(logits[0, -1].argmax()))
        assert row == ids


class KnowsTheText:
    """In the place of a draft: its first `num_right` steps predict the row itself."""

    def __init__(self, num_right: int) -> None:
        self.num_right = num_right

    def unroll(
        self, states: object, embed: object, ids: torch.Tensor, num_steps: int
    ) -> list[torch.Tensor]:
        steps = []
        for j in range(num_steps):
            wanted = torch.roll(ids, -2 - j, dims=1)
            wanted = wanted if j < self.num_right else wanted + 1
            steps.append(torch.nn.functional.one_hot(wanted, 62).float())
        return steps


@pytest.mark.parametrize(
    ("num_right", "counts"), [(0, [10, 0, 0, 0]), (2, [4, 4, 4, 0]), (3, [3, 3, 3, 3])]
)
def test_count_accepted(num_right: int, counts: list[int]) -> None:
    net = Target(replace(tiny_sizes.TARGET, num_layers=8))
    row = [5, 6, 7, *range(20, 33)]  # a prompt of 3 tokens and an answer of 13
    draft = KnowsTheText(num_right)
    # A step moves by one more than it accepts; none is taken that could draft past the end.
    assert train_draft.count_accepted(net, draft, [row], [3]) == counts  # type: ignore[arg-type]


def test_draft_learns_what_the_target_says() -> None:
    probs = torch.softmax(torch.randn(2, 9, 5, generator=torch.Generator().manual_seed(6)), -1)
    weights = torch.ones(2, 9)
    steps = [torch.roll(probs, -1 - j, dims=1).log() for j in range(3)]
    best = train_draft.unrolled_loss(steps, probs, weights)
    entropy = -(probs * probs.log()).sum(-1)
    expected = sum(0.85**j * entropy[:, 1 + j : 8].mean() for j in range(3))
    torch.testing.assert_close(best, expected)
    shifted = [probs.log(), *steps[1:]]
    assert train_draft.unrolled_loss(shifted, probs, weights) > best
    # Tokens without weight do not count, whatever is said of them.
    weights[0] = 0.0
    steps[1][0] = 0.0
    alone = train_draft.unrolled_loss([s[1:] for s in steps], probs[1:], weights[1:])
    torch.testing.assert_close(train_draft.unrolled_loss(steps, probs, weights), alone)


def test_draft_task(tokenizer: Tokenizer, tmp_path: Path) -> None:
    torch.manual_seed(0)
    target = Target(replace(CONFIG, num_layers=8)).eval().requires_grad_(False)
    config = replace(tiny_sizes.DRAFT, vocab_size=896, max_position_embeddings=1024)
    task = train_draft.DraftTask(
        tokenizer, target, num_rows=2, num_steps=2, stop_at=2.0, config=config
    )
    assert torch.equal(task.net.lm_head.weight, target.head.weight)
    trainer = Trainer(task, settings(tmp_path, warmup_steps=1), Group())
    losses = [trainer.step() for _ in range(3)]
    assert losses[-1] < losses[0]
    assert task.is_done({"acceptance_length": 2.1})
    assert not task.is_done({"acceptance_length": 1.9})
