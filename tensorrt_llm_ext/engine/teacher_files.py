# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Teacher states in files, so that a target that fits no laptop can be captured elsewhere.

Our own format is one safetensors file; text i has

* `{i}.input_ids`: [length] integers;
* `{i}.boundary.{b}`: [length, target_hidden_size], the residual stream before 0-based target layer
  b, for each captured b (the same ones in every text; declared ones and their neighbours, if shifts
  are to be tested);
* `{i}.target_ids` (optional): [length] integers, the target's greedy token after each position.
  Without it the text itself is what drafts are held against;
* `{i}.counted` (optional): [length] bool, positions to judge at; all of them without it.

ModelOpt writes one `.pt` per conversation: `input_ids`, `aux_hidden_states` (the captured states
side by side), `hidden_states` (after the final norm), `loss_mask`. Which boundaries were captured
is not in it: the draft's own are assumed, so that shifts cannot be tested.
"""

from __future__ import annotations

import pickle
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from tensorrt_llm_ext.engine.teacher_states import TeacherSequence, TeacherStates
from tensorrt_llm_ext.errors import CheckpointError

_KEY: Final = re.compile(r"(\d+)\.(input_ids|target_ids|counted|boundary\.(\d+))")
_MIN_FLUENT: Final = 0.2  # a target agrees with any text more often than this
_CHUNK: Final = 256

FROM_TEXT: Final = "drafts are held against the text itself (no target ids in the file)"


def save_states(states: TeacherStates, path: Path) -> None:
    """Writes texts and states in our own format (see the module's docstring).

    Raises:
        CheckpointError: If the file cannot be written.
    """
    tensors: dict[str, torch.Tensor] = {}
    for index, sequence in enumerate(states.sequences):
        tensors[f"{index}.input_ids"] = sequence.input_ids
        tensors[f"{index}.target_ids"] = sequence.labels
        tensors[f"{index}.counted"] = sequence.counted
        for boundary, state in sequence.states.items():
            tensors[f"{index}.boundary.{boundary}"] = state
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file({name: t.contiguous() for name, t in tensors.items()}, path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"The states cannot be written to {path}: {error}") from None


def load_states(
    path: Path, boundaries: Sequence[int], *, target_head: torch.Tensor | None = None
) -> TeacherStates:
    """Reads texts and states from a file, or from a folder of `.pt` files.

    Args:
        path: `.safetensors` of our own, ModelOpt's `.pt`, or a folder with the latter.
        boundaries: The draft's captured layers, for files that do not say them.
        target_head: [vocab_size, hidden_size], to read the target's tokens off its final states.

    Raises:
        CheckpointError: If a file cannot be read or is of another layout; nothing is unpickled but
            tensors.
    """
    if path.is_dir():
        files = sorted(path.glob("*.pt"))
        if not files:
            raise CheckpointError(f"{path} has no .pt files. Give a .safetensors file or a folder.")
    elif not path.is_file():
        raise CheckpointError(f"{path} does not exist. Make it with --save-states.")
    elif path.suffix == ".safetensors":
        return _from_safetensors(path)
    elif path.suffix == ".pt":
        files = [path]
    else:
        raise CheckpointError(f"{path} is neither .safetensors nor .pt.")
    sequences, fluent = [], []
    for file in files:
        sequence, is_fluent = _from_modelopt(file, tuple(boundaries), target_head)
        sequences.append(sequence)
        fluent.append(is_fluent)
    labels = "the target's tokens, from its final states" if all(fluent) else FROM_TEXT
    return TeacherStates(
        sequences=tuple(sequences),
        source=f"{len(files)} conversation(s) of ModelOpt in {path.name}",
        labels=labels,
    )


def _from_safetensors(path: Path) -> TeacherStates:
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None
    texts: dict[int, dict[str, torch.Tensor]] = defaultdict(dict)
    states: dict[int, dict[int, torch.Tensor]] = defaultdict(dict)
    for name, tensor in tensors.items():
        match = _KEY.fullmatch(name)
        if match is None:
            raise CheckpointError(
                f"{path}: tensor {name!r} is none of a file of teacher states: "
                "{i}.input_ids, {i}.boundary.{b}, {i}.target_ids, {i}.counted."
            )
        if match[3] is not None:
            states[int(match[1])][int(match[3])] = tensor
        else:
            texts[int(match[1])][match[2]] = tensor
    has_ids = all("target_ids" in text for text in texts.values())
    sequences = [
        _sequence(path, index, texts[index], states.get(index, {})) for index in sorted(texts)
    ]
    return TeacherStates(
        sequences=tuple(sequences),
        source=f"{len(sequences)} text(s) of {path.name}",
        labels="the target's tokens in the file" if has_ids else FROM_TEXT,
    )


def _sequence(
    path: Path, index: int, text: Mapping[str, torch.Tensor], states: Mapping[int, torch.Tensor]
) -> TeacherSequence:
    ids = text.get("input_ids")
    if ids is None or ids.dim() != 1 or ids.is_floating_point() or not states:
        raise CheckpointError(
            f"{path}: text {index} needs {index}.input_ids ([length] integers) and at least one "
            f"{index}.boundary.{{b}} ([length, hidden_size])."
        )
    if any(state.dim() != 2 for state in states.values()):
        raise CheckpointError(f"{path}: states of text {index} must be [length, hidden_size].")
    ids = ids.to(torch.int64)
    labels = text.get("target_ids", _shifted(ids)).to(torch.int64)
    counted = text.get("counted", torch.ones_like(ids)).to(torch.bool)
    return TeacherSequence(input_ids=ids, states=dict(states), labels=labels, counted=counted)


def _shifted(ids: torch.Tensor) -> torch.Tensor:
    """The text itself as greedy tokens; nothing follows the last one."""
    return torch.cat((ids[1:], ids.new_full((1,), -1)))


def _from_modelopt(
    path: Path, boundaries: tuple[int, ...], target_head: torch.Tensor | None
) -> tuple[TeacherSequence, bool]:
    """Reads one conversation; also whether its labels are the target's."""
    content = _unpickled(path)
    ids, aux = content.get("input_ids"), content.get("aux_hidden_states")
    if not isinstance(ids, torch.Tensor) or not isinstance(aux, torch.Tensor):
        raise CheckpointError(
            f"{path} has the keys {sorted(map(str, content))[:8]}, expected ModelOpt's input_ids "
            "and aux_hidden_states."
        )
    ids = ids.flatten().to(torch.int64)
    if aux.shape[-1] % len(boundaries):
        raise CheckpointError(
            f"{path}: aux_hidden_states are {aux.shape[-1]} wide, which is not "
            f"{len(boundaries)} captured layers side by side. They are another draft's."
        )
    aux = aux.reshape(-1, aux.shape[-1])
    chunks = aux.chunk(len(boundaries), dim=-1)
    mask = content.get("loss_mask")
    counted = torch.ones_like(ids, dtype=torch.bool)
    if isinstance(mask, torch.Tensor) and mask.numel() == ids.numel():
        counted = mask.flatten().to(torch.bool)
    labels = _labels(ids, content.get("hidden_states"), target_head)
    sequence = TeacherSequence(
        input_ids=ids,
        states={b: chunk.clone() for b, chunk in zip(boundaries, chunks, strict=True)},
        labels=_shifted(ids) if labels is None else labels,
        counted=counted,
    )
    return sequence, labels is not None


def _unpickled(path: Path) -> dict[str, Any]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, EOFError, RuntimeError, ValueError, pickle.UnpicklingError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(
            f"{path} cannot be read as tensors alone ({reason}). Nothing else is unpickled."
        ) from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds a {type(content).__name__}, expected a dict.")
    return content


def _labels(
    ids: torch.Tensor, hidden: object, target_head: torch.Tensor | None
) -> torch.Tensor | None:
    """The target's greedy tokens by its final states; None where these do not fit the head."""
    if not isinstance(hidden, torch.Tensor) or target_head is None:
        return None
    hidden = hidden.reshape(-1, hidden.shape[-1])
    if hidden.shape != (ids.numel(), target_head.shape[1]):
        return None
    head = target_head.to(torch.float32)
    labels = torch.cat(
        [(part.float() @ head.T).argmax(dim=1) for part in torch.split(hidden, _CHUNK)]
    )
    # States from before the final norm would give other tokens: then they hardly fit the text.
    fluency = float((labels[:-1] == ids[1:]).double().mean()) if ids.numel() > 1 else 0.0
    return labels if fluency >= _MIN_FLUENT else None
