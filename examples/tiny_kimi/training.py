# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The training loop of target and draft: Muon and AdamW, several processes, a wall-clock budget.

On two cores, two processes of one thread each train faster than one process of two. They draw rows
of their own and average gradients over gloo; each works out a share of Muon's updates. The
learning rate follows the time spent, not the number of steps, so a run of given minutes ends with a
finished schedule on any machine. A run resumes from its checkpoint as if it had not stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn

Clock = Callable[[], float]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of one run.

    Attributes:
        minutes: Budget, with evaluations; the learning rate falls to zero at its end.
        checkpoint: Where the state goes, and whence it comes when `resume`.
        log: JSON lines; appended to.
        seed: Of the initial weights and of the rows drawn.
        muon_lr: Peak learning rate of matrices.
        adam_lr: Peak learning rate of embeddings, heads, routers and norms.
        momentum: Muon's.
        betas: AdamW's.
        warmup_steps: Steps in which the rate rises.
        decay_share: Share of the budget in which it falls.
        log_steps: Steps between lines of loss.
        save_seconds: Between checkpoints.
        evaluate_seconds: Between evaluations.
        autocast: Whether matrix products are in bfloat16.
        resume: Whether to go on from `checkpoint`.
    """

    minutes: float
    checkpoint: Path
    log: Path
    seed: int = 0
    muon_lr: float = 0.02
    adam_lr: float = 3e-3
    momentum: float = 0.95
    betas: tuple[float, float] = (0.9, 0.98)
    warmup_steps: int = 60
    decay_share: float = 0.5
    log_steps: int = 25
    save_seconds: float = 240.0
    evaluate_seconds: float = 330.0
    autocast: bool = True
    resume: bool = False

    @property
    def seconds(self) -> float:
        """The budget in seconds."""
        return 60.0 * self.minutes


class Group:
    """The processes of a run. One process needs no initialised `torch.distributed`."""

    def __init__(self, rank: int = 0, size: int = 1, device: str = "cpu") -> None:
        self.rank, self.size = rank, size
        self.device = torch.device(device)

    def sum_(self, tensor: Tensor) -> Tensor:
        """Adds up a tensor over all processes, in place."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def agree(self, value: float) -> float:
        """Returns the first process's value in all processes."""
        if self.size == 1:
            return value
        shared = torch.tensor([value], dtype=torch.float64)
        dist.broadcast(shared, 0)
        return float(shared.item())


class Task(Protocol):
    """What is trained."""

    net: nn.Module

    def loss(self, rng: random.Random, step: int, progress: float) -> tuple[Tensor, int]:
        """Draws rows and returns their loss and number of tokens.

        `progress` is the share of the time budget that is spent.
        """
        ...

    def statistics(self) -> Tensor:
        """Returns [n] float32 numbers of this process, to be averaged with the gradients."""
        ...

    def balance(self, statistics: Tensor, rate: float) -> None:
        """Takes the averaged statistics; `rate` is the schedule's, 1 before the decay."""
        ...

    def evaluate(self, group: Group, *, final: bool) -> dict[str, Any]:
        """Returns what the log shall say of the model's quality; all processes take part."""
        ...

    def is_done(self, evaluation: dict[str, Any]) -> bool:
        """Whether training may stop before its time."""
        ...


def orthogonalise(matrices: Tensor, num_iterations: int = 5) -> Tensor:
    """Muon's update direction: Newton-Schulz iteration towards the nearest orthogonal matrix.

    Coefficients of the quintic from Muon (K. Jordan and others, 2024); singular values end near 1.

    Args:
        matrices: [..., rows, columns] gradients.
        num_iterations: How many iterations.

    Returns:
        As `matrices`, float32.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrices.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(num_iterations):
        gram = x @ x.mT
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return (x.mT if tall else x).float()


@dataclass
class MuonMatrix:
    """A parameter that Muon trains, and the matrices that it is made of.

    Attributes:
        parameter: The parameter.
        rows: Rows of one matrix: stacked projections are orthogonalised one by one.
        momentum: Running average of gradients.
    """

    parameter: nn.Parameter
    rows: int
    momentum: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.momentum = torch.zeros_like(self.parameter)

    def direction(self, momentum: float) -> Tensor:
        """Returns the update for a learning rate of 1, in the parameter's shape."""
        gradient = self.parameter.grad.lerp(self.momentum, momentum)
        columns = gradient.shape[-1]
        update = orthogonalise(gradient.reshape(-1, self.rows, columns))
        return update.reshape(gradient.shape) * max(1.0, self.rows / columns) ** 0.5


def _matrix_rows(name: str, parameter: nn.Parameter, config: Any) -> int:
    """Rows of the matrices that a parameter stacks."""
    if name.endswith("kv_b_proj.weight"):  # keys and values of each head
        return int(config.qk_nope_head_dim)
    if name.endswith(".wgu"):  # gate and up of each expert
        return int(config.moe_intermediate_size)
    return int(parameter.shape[-2])


def _is_matrix(name: str, parameter: nn.Parameter) -> bool:
    """Whether Muon trains it: all matrices but embeddings, heads and routers."""
    return parameter.ndim >= 2 and not name.endswith(("embed.weight", "head.weight", ".gate"))


class Optimizer:
    """Muon for matrices and AdamW for the rest; each process updates a share of the matrices."""

    def __init__(self, net: nn.Module, settings: Settings, group: Group) -> None:
        self.settings, self.group = settings, group
        named = list(net.named_parameters())
        self.matrices = [
            MuonMatrix(p, _matrix_rows(n, p, net.config)) for n, p in named if _is_matrix(n, p)
        ]
        rest = [p for n, p in named if not _is_matrix(n, p)]
        self.adam = torch.optim.AdamW(
            rest, lr=settings.adam_lr, betas=settings.betas, weight_decay=0.0, fused=True
        )
        self.parameters = [*(m.parameter for m in self.matrices), *rest]

    def step(self, rate: float) -> None:
        """Updates the parameters from their averaged gradients; `rate` scales both peak rates."""
        for options in self.adam.param_groups:
            options["lr"] = self.settings.adam_lr * rate
        self.adam.step()
        self._step_matrices(self.settings.muon_lr * rate)

    @torch.no_grad()
    def _step_matrices(self, lr: float) -> None:
        momentum = self.settings.momentum
        updates = []
        for i, matrix in enumerate(self.matrices):
            matrix.momentum.lerp_(matrix.parameter.grad, 1 - momentum)
            mine = i % self.group.size == self.group.rank
            update = matrix.direction(momentum) if mine else torch.zeros_like(matrix.parameter)
            updates.append(update.flatten())
        flat = self.group.sum_(torch.cat(updates))
        parameters = [matrix.parameter for matrix in self.matrices]
        for parameter, update in _unflatten(flat, parameters):
            parameter.add_(update, alpha=-lr)

    def state(self) -> dict[str, Any]:
        """Returns what a checkpoint must hold."""
        return {"opt": self.adam.state_dict(), "mom": [m.momentum for m in self.matrices]}

    def load(self, state: dict[str, Any]) -> None:
        """Takes over what `state` returned."""
        self.adam.load_state_dict(state["opt"])
        for matrix, momentum in zip(self.matrices, state["mom"], strict=True):
            matrix.momentum.copy_(momentum)


def _unflatten(flat: Tensor, like: list[nn.Parameter]) -> Iterator[tuple[nn.Parameter, Tensor]]:
    parts = flat.split([parameter.numel() for parameter in like])
    for parameter, part in zip(like, parts, strict=True):
        yield parameter, part.view_as(parameter)


class Trainer:
    """One run, or its continuation."""

    def __init__(
        self, task: Task, settings: Settings, group: Group, clock: Clock = time.monotonic
    ) -> None:
        self.task, self.settings, self.group, self.clock = task, settings, group, clock
        self.optimizer = Optimizer(task.net, settings, group)
        self.num_steps, self.num_tokens, self.spent = 0, 0, 0.0
        self._losses: list[float] = []
        if settings.resume:
            self.load()

    def rate(self) -> float:
        """The schedule's factor: a rise over steps, level, and a fall over time."""
        settings = self.settings
        rise = min(1.0, (self.num_steps + 1) / settings.warmup_steps)
        return rise * self._decay()

    def _decay(self) -> float:
        return min(1.0, (1.0 - self._progress()) / self.settings.decay_share)

    def _progress(self) -> float:
        return min(1.0, self.spent / self.settings.seconds)

    def step(self) -> float:
        """Takes one step; returns the loss averaged over processes."""
        settings, group = self.settings, self.group
        # A generator per step, so that a resumed run draws what an uninterrupted one would.
        rng = random.Random(f"{settings.seed}-{group.rank}-{self.num_steps}")
        with torch.autocast(group.device.type, torch.bfloat16, enabled=settings.autocast):
            loss, num_tokens = self.task.loss(rng, self.num_steps, self._progress())
        parameters = self.optimizer.parameters
        for parameter in parameters:
            parameter.grad = None
        loss.backward()
        numbers = torch.tensor([loss.item(), float(num_tokens)], device=group.device)
        gradients = [parameter.grad.flatten() for parameter in parameters]
        flat = torch.cat([*gradients, numbers, self.task.statistics()])
        group.sum_(flat).div_(group.size)
        count = sum(parameter.numel() for parameter in parameters)
        for parameter, gradient in _unflatten(flat[:count], parameters):
            parameter.grad = gradient
        mean_loss, mean_tokens = flat[count : count + 2].tolist()
        self.task.balance(flat[count + 2 :], self._decay())
        self.optimizer.step(self.rate())
        self.num_steps += 1
        self.num_tokens += round(mean_tokens * group.size)
        return mean_loss

    def run(self) -> None:
        """Trains until the time is up, then evaluates and saves."""
        settings = self.settings
        last_save = last_evaluation = self.spent
        begin = self.clock() - self.spent
        done = False
        with self._bar() as advance:
            while self.spent < settings.seconds and not done:
                self._losses.append(self.step())
                self.spent = self.group.agree(self.clock() - begin)
                if self.num_steps % settings.log_steps == 0:
                    self._log_loss()
                if self.spent - last_evaluation > settings.evaluate_seconds:
                    done = self._evaluate(final=False)
                    self.spent = last_evaluation = self.group.agree(self.clock() - begin)
                if self.spent - last_save > settings.save_seconds:
                    last_save = self.spent
                    self.save()
                advance(self)
        self.save()
        self._evaluate(final=True)

    def _evaluate(self, *, final: bool) -> bool:
        self.task.net.eval()
        with torch.no_grad():
            evaluation = self.task.evaluate(self.group, final=final)
        self.task.net.train()
        self._write({**self._where(), **evaluation})
        return self.task.is_done(evaluation)

    def _log_loss(self) -> None:
        loss = sum(self._losses) / len(self._losses)
        self._losses.clear()
        speed = round(self.num_tokens / max(self.spent, 1e-9))
        tokens = {"tokens": self.num_tokens, "loss": round(loss, 4), "tokens_per_s": speed}
        self._write({**self._where(), **tokens})

    def _where(self) -> dict[str, Any]:
        return {"step": self.num_steps, "seconds": round(self.spent)}

    def _write(self, row: dict[str, Any]) -> None:
        if self.group.rank == 0:
            with self.settings.log.open("a", encoding="utf-8") as log:
                log.write(json.dumps(row) + "\n")

    def save(self) -> None:
        """Writes the checkpoint; one that is being replaced stays whole until the new one is."""
        if self.group.rank != 0:
            return
        path = self.settings.checkpoint
        partial = path.with_name(path.name + ".partial")
        progress = {"step": self.num_steps, "spent": self.spent, "tokens": self.num_tokens}
        torch.save(
            {"net": self.task.net.state_dict(), **self.optimizer.state(), **progress}, partial
        )
        os.replace(partial, path)

    def load(self) -> None:
        """Goes on from the checkpoint."""
        state = torch.load(
            self.settings.checkpoint, map_location=self.group.device, weights_only=True
        )
        self.task.net.load_state_dict(state["net"])
        self.optimizer.load(state)
        self.num_steps, self.num_tokens = state["step"], state["tokens"]
        self.spent = float(state["spent"])

    @contextlib.contextmanager
    def _bar(self) -> Iterator[Callable[[Trainer], None]]:
        """Shows a bar over the time budget, in the first process and only on a terminal."""
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(stderr=True)
        shown = self.group.rank == 0 and console.is_terminal
        columns = (
            TextColumn("step {task.fields[step]}"),
            BarColumn(),
            TextColumn("loss {task.fields[loss]:.3f}"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console, disable=not shown) as bar:
            job = bar.add_task("", total=self.settings.seconds, step=0, loss=float("nan"))

            def advance(trainer: Trainer) -> None:
                loss = trainer._losses[-1] if trainer._losses else bar.tasks[0].fields["loss"]
                bar.update(job, completed=trainer.spent, step=trainer.num_steps, loss=loss)

            yield advance


def _join(rank: int, size: int, device: str, rendezvous: str, work: Callable, args: tuple) -> None:
    """Runs one process of a group."""
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // size))
    if size > 1:
        dist.init_process_group(
            "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=size
        )
    try:
        work(Group(rank, size, device), *args)
    finally:
        if size > 1:
            dist.destroy_process_group()


def launch(work: Callable[..., None], num_processes: int, device: str, *args: Any) -> None:
    """Runs `work(group, *args)` in so many processes.

    Args:
        work: A function at the top of a module.
        num_processes: One runs here, more are spawned.
        device: "cpu" or "cuda".
        *args: Picklable.
    """
    # Threads that spin while they wait for one another take the core from the other process.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    with tempfile.TemporaryDirectory() as folder:
        rendezvous = str(Path(folder) / "rendezvous")
        common = (num_processes, device, rendezvous, work, args)
        if num_processes == 1:
            _join(0, *common)
        else:
            mp.spawn(_join, args=common, nprocs=num_processes)


def add_options(parser: argparse.ArgumentParser, *, minutes: float, name: str) -> None:
    """Adds the options that both training scripts have."""
    cuda = torch.cuda.is_available()
    parser.add_argument("--minutes", type=float, default=minutes, help="time budget (%(default)s)")
    parser.add_argument(
        "--checkpoint", type=Path, default=Path(f"{name}.pt"), help="state to write (%(default)s)"
    )
    parser.add_argument("--log", type=Path, help="JSON lines; default: beside the checkpoint")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if cuda else "cpu", help="default: %(default)s")
    parser.add_argument(
        "--processes",
        type=int,
        default=1 if cuda else min(2, os.cpu_count() or 1),
        help="default: %(default)s",
    )


def settings_from(options: argparse.Namespace, **fixed: Any) -> Settings:
    """Makes the settings of a run from its options; creates the checkpoint's folder."""
    options.checkpoint.parent.mkdir(parents=True, exist_ok=True)
    return Settings(
        minutes=options.minutes,
        checkpoint=options.checkpoint,
        log=options.log or options.checkpoint.with_suffix(".jsonl"),
        seed=options.seed,
        resume=options.resume,
        **fixed,
    )
