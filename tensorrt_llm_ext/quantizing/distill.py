# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Quantization-aware self-distillation: the rounded draft learns to say what the float one says."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from tensorrt_llm_ext.errors import ConfigError
from tensorrt_llm_ext.models.eagle3 import Eagle3Draft
from tensorrt_llm_ext.quantizing.rollout import TextPack, rollout

# Called with a text, how much is done, and how much there is.
Progress = Callable[[str, int, int], None]

_STEP_DECAY = 0.9  # weight of a draft step relative to the one before, as in training drafts
_WARM_UP = 0.05


@dataclass(frozen=True, kw_only=True)
class DistillOptions:
    """How a draft is trained after its formats were chosen.

    Attributes:
        seconds: Time to train for; the rate falls to zero over it.
        max_updates: Updates after which training ends sooner; None for no limit.
        learning_rate: Peak rate of AdamW.
        seed: Of the order of texts.
    """

    seconds: float = 180.0
    max_updates: int | None = None
    learning_rate: float = 2e-5
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuses settings that train nothing."""
        if self.seconds <= 0 or self.learning_rate <= 0:
            raise ConfigError(
                f"Training for {self.seconds} s at rate {self.learning_rate} does nothing: both "
                "must be positive."
            )


@dataclass(frozen=True, kw_only=True)
class DistillReport:
    """What training did.

    Attributes:
        updates: Steps of the optimizer.
        seconds: How long it took.
        loss_before, loss_after: Mean KL divergence per draft on texts that were not trained on.
        is_kept: Whether the trained weights were better and are used.
    """

    updates: int
    seconds: float
    loss_before: float
    loss_after: float
    is_kept: bool


@dataclass(frozen=True, kw_only=True)
class _Lesson:
    pack: TextPack
    tokens: tuple[torch.Tensor, ...]
    logits: tuple[torch.Tensor, ...]


def distill(
    student: Eagle3Draft,
    parameters: Sequence[torch.nn.Parameter],
    teacher: Eagle3Draft,
    packs: Sequence[TextPack],
    held_out: Sequence[TextPack],
    steps: int,
    options: DistillOptions,
    progress: Progress | None = None,
) -> DistillReport:
    """Trains a draft whose products are rounded to agree with the float draft, in place.

    The loss is the KL divergence of the student's drafts from the teacher's at every step of every
    chain, with the chains that the teacher proposes; each chain step counts 0.9 of the one before.

    Args:
        student: The rounded draft.
        parameters: What is trained, in float32.
        teacher: The float draft.
        packs: Texts to train on.
        held_out: Texts to judge by; the weights go back where they began if these got no better.
        steps: Drafts per chain.
        options: How to train.
        progress: Called after each update.

    Raises:
        ConfigError: If the loss becomes NaN or infinite.
    """
    before = {id(p): p.detach().clone() for p in parameters}
    loss_before = mean_divergence(student, teacher, held_out, steps)
    for parameter in parameters:
        parameter.requires_grad_(True)
    optimizer = torch.optim.AdamW(parameters, lr=options.learning_rate, weight_decay=0.0)
    lessons = [_lesson(teacher, pack, steps) for pack in packs]
    start, updates = time.monotonic(), 0
    for lesson in _order(lessons, options.seed):
        share = _share(time.monotonic() - start, updates, options)
        if share >= 1.0:
            break
        for group in optimizer.param_groups:
            group["lr"] = options.learning_rate * min(1.0, share / _WARM_UP + 0.02) * (1.0 - share)
        _update(student, lesson, steps, optimizer)
        updates += 1
        if progress is not None:
            progress("training", round(1000 * share), 1000)
    for parameter in parameters:
        parameter.requires_grad_(False)
    loss_after = mean_divergence(student, teacher, held_out, steps)
    is_kept = loss_after < loss_before
    if not is_kept:
        for parameter in parameters:
            parameter.copy_(before[id(parameter)])
    return DistillReport(
        updates=updates,
        seconds=time.monotonic() - start,
        loss_before=loss_before,
        loss_after=loss_after,
        is_kept=is_kept,
    )


def mean_divergence(
    student: Eagle3Draft, teacher: Eagle3Draft, packs: Sequence[TextPack], steps: int
) -> float:
    """Mean KL divergence per anchor and step, in nats."""
    total = count = 0.0
    with torch.no_grad():
        for pack in packs:
            lesson = _lesson(teacher, pack, steps)
            for said in rollout(student, pack, steps, tokens=lesson.tokens):
                values = divergence(lesson.logits[said.step], said.logits)
                total, count = total + float(values.sum()), count + values.numel()
    return total / count


def divergence(teacher: torch.Tensor, student: torch.Tensor) -> torch.Tensor:
    """KL(teacher || student) of each row, in nats.

    Args:
        teacher: [rows, vocab] logits.
        student: [rows, vocab] logits.

    Returns:
        [rows] float32.
    """
    wide = teacher.float().log_softmax(dim=-1)
    return functional.kl_div(
        student.float().log_softmax(dim=-1), wide, reduction="none", log_target=True
    ).sum(dim=-1)


def _lesson(teacher: Eagle3Draft, pack: TextPack, steps: int) -> _Lesson:
    with torch.no_grad():
        said = list(rollout(teacher, pack, steps))
    return _Lesson(
        pack=pack,
        tokens=tuple(item.tokens for item in said),
        logits=tuple(item.logits for item in said),
    )


def _update(
    student: Eagle3Draft, lesson: _Lesson, steps: int, optimizer: torch.optim.Optimizer
) -> None:
    loss = torch.zeros(())
    for said in rollout(student, lesson.pack, steps, tokens=lesson.tokens):
        values = divergence(lesson.logits[said.step], said.logits)
        loss = loss + _STEP_DECAY**said.step * values.mean()
    if not bool(torch.isfinite(loss)):
        raise ConfigError(
            "Training diverged: the loss is not finite. Lower --learning-rate, or check the states."
        )
    optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(
        [p for group in optimizer.param_groups for p in group["params"]], 1.0
    )
    optimizer.step()


def _order(lessons: Sequence[_Lesson], seed: int) -> Iterator[_Lesson]:
    """Endless: every lesson once per round, in a new order each."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        for index in torch.randperm(len(lessons), generator=generator).tolist():
            yield lessons[index]


def _share(seconds: float, updates: int, options: DistillOptions) -> float:
    """How much of the training is over, in 0..1."""
    share = seconds / options.seconds
    if options.max_updates is not None:
        share = max(share, updates / options.max_updates)
    return min(share, 1.0)
