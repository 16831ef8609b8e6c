# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Runs a dense draft over the target's texts as an engine would: extend, then chains of drafts.

Several texts are packed side by side without padding, so that every row that a calibrated module
sees is a row that an engine would feed it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from tensorrt_llm_ext.engine.teacher_states import TeacherSequence, TeacherStates
from tensorrt_llm_ext.errors import ConfigError
from tensorrt_llm_ext.models.eagle3 import Eagle3Draft
from tensorrt_llm_ext.models.interfaces import TargetTokenId
from tensorrt_llm_ext.quantizing.dense import DenseContext

DEFAULT_ROWS = 768  # rows per pack


@dataclass(frozen=True, kw_only=True)
class TextPack:
    """Rows of several texts side by side.

    Attributes:
        captured: [rows, L * target_hidden_size], the states of the draft's boundaries.
        successors: [rows] int64, the token after each row.
        positions: [rows] int64.
        text: [rows] int64, which text each row belongs to (its index among all texts).
        anchors: [anchors] int64, rows from which chains of drafts start.
        labels: [anchors, steps] int64, the target's tokens that the drafts stand for.
    """

    captured: torch.Tensor
    successors: torch.Tensor
    positions: torch.Tensor
    text: torch.Tensor
    anchors: torch.Tensor
    labels: torch.Tensor

    def visible(self) -> torch.Tensor:
        """[rows, rows] bool: causal attention within each text."""
        same = self.text.unsqueeze(1) == self.text.unsqueeze(0)
        return same & (self.positions.unsqueeze(1) >= self.positions.unsqueeze(0))


def make_packs(
    states: TeacherStates,
    boundaries: Sequence[int],
    steps: int,
    *,
    dtype: torch.dtype = torch.float32,
    max_rows: int = DEFAULT_ROWS,
    max_positions: int | None = None,
) -> list[TextPack]:
    """Packs texts; texts without an anchor are left out.

    Args:
        states: The texts.
        boundaries: The draft's captured boundaries.
        steps: Drafts per chain.
        dtype: Of the captured states.
        max_rows: Rows per pack; a longer text is a pack of its own.
        max_positions: Length of the draft's rotary table; longer texts are cut to it.

    Raises:
        ConfigError: If states of a boundary are missing, or no text is long enough.
    """
    absent = sorted(set(boundaries) - states.boundaries)
    if absent:
        raise ConfigError(
            f"{states.source} has states of boundaries {sorted(states.boundaries)}, but the draft "
            f"captures {list(boundaries)}: {absent} are missing. Capture them again."
        )
    packs: list[TextPack] = []
    pending: list[tuple[int, TeacherSequence, torch.Tensor]] = []
    rows = 0
    for index, whole in enumerate(states.sequences):
        sequence = _cut(whole, max_positions)
        anchors = sequence.anchors(steps)
        if not anchors.numel():
            continue
        if pending and rows + sequence.length > max_rows:
            packs.append(_pack(pending, boundaries, steps, dtype))
            pending, rows = [], 0
        pending.append((index, sequence, anchors))
        rows += sequence.length - 1
    if pending:
        packs.append(_pack(pending, boundaries, steps, dtype))
    if not packs:
        raise ConfigError(
            f"No text of {states.source} has a position from which {steps} drafts can be judged. "
            "Give longer texts, which the target wrote itself."
        )
    return packs


def _cut(sequence: TeacherSequence, max_positions: int | None) -> TeacherSequence:
    if max_positions is None or sequence.length <= max_positions:
        return sequence
    part = slice(0, max_positions)
    return TeacherSequence(
        input_ids=sequence.input_ids[part],
        states={b: state[part] for b, state in sequence.states.items()},
        labels=sequence.labels[part],
        counted=sequence.counted[part],
    )


def _pack(
    texts: Sequence[tuple[int, TeacherSequence, torch.Tensor]],
    boundaries: Sequence[int],
    steps: int,
    dtype: torch.dtype,
) -> TextPack:
    captured, successors, positions, owner, anchors, labels = [], [], [], [], [], []
    offset = 0
    ahead = torch.arange(1, steps + 1)
    for index, sequence, starts in texts:
        rows = sequence.length - 1  # the successor of the last one is not known
        captured.append(torch.cat([sequence.states[b][:rows].to(dtype) for b in boundaries], -1))
        successors.append(sequence.input_ids[1:])
        positions.append(torch.arange(rows))
        owner.append(torch.full((rows,), index))
        anchors.append(starts + offset)
        labels.append(sequence.labels[starts.unsqueeze(1) + ahead])
        offset += rows
    return TextPack(
        captured=torch.cat(captured),
        successors=torch.cat(successors),
        positions=torch.cat(positions),
        text=torch.cat(owner),
        anchors=torch.cat(anchors),
        labels=torch.cat(labels),
    )


@dataclass(frozen=True, kw_only=True)
class StepLogits:
    """What the draft says at one step of all chains of a pack.

    Attributes:
        step: 0 for the extend row, then 1 and so on.
        logits: [anchors, draft_vocab_size].
        tokens: [anchors] int64, the target ids that the next step is fed with.
    """

    step: int
    logits: torch.Tensor
    tokens: torch.Tensor


def rollout(
    core: Eagle3Draft,
    pack: TextPack,
    steps: int,
    *,
    tokens: Sequence[torch.Tensor] | None = None,
) -> Iterator[StepLogits]:
    """Runs extend over all rows, then `steps - 1` chain steps from each anchor.

    Args:
        core: The draft, over `dense` blocks.
        pack: The texts.
        steps: Drafts per chain.
        tokens: What each step is fed with, [anchors] target ids per step; the draft's own greedy
            proposals when None, as in an engine.

    Yields:
        One item per step.
    """
    limit = core.config.mla.rope.max_position_embeddings - 1
    visible = pack.visible()
    ctx = DenseContext(visible=visible)
    hidden = core.combine(pack.captured)
    state = core.forward(
        hidden, TargetTokenId(pack.successors), pack.positions.clamp(max=limit), ctx
    )
    state = state.index_select(0, pack.anchors)
    positions = pack.positions.index_select(0, pack.anchors)
    chain = ctx.for_chain(visible.index_select(0, pack.anchors))
    fed = pack.successors.index_select(0, pack.anchors)
    for step in range(steps):
        if step:
            at = (positions + step).clamp(max=limit)
            state = core.forward(state, TargetTokenId(fed), at, chain)
        logits = core.compute_logits(state)
        fed = proposals(core, logits) if tokens is None else tokens[step]
        yield StepLogits(step=step, logits=logits, tokens=fed)


def proposals(core: Eagle3Draft, logits: torch.Tensor) -> torch.Tensor:
    """Returns the target ids of the greedy drafts, [rows] int64."""
    ids = logits.detach().argmax(dim=-1)
    return ids if core.d2t is None else ids + core.d2t.index_select(0, ids)
