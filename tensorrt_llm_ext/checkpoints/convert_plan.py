# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Which tensors a converted draft consists of, and where the bytes of each come from."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import torch

from tensorrt_llm_ext.checkpoints.draft_vocabulary import (
    DraftVocabulary,
    Ids,
    VocabularyChoice,
    check_vocab_size,
    choose_vocabulary,
)
from tensorrt_llm_ext.checkpoints.names import TensorRef
from tensorrt_llm_ext.checkpoints.normalize import DraftCheckpoint, TargetCheckpoint, target_config
from tensorrt_llm_ext.checkpoints.receiver_quant import module_name
from tensorrt_llm_ext.checkpoints.receivers import Embedding, Receiver
from tensorrt_llm_ext.checkpoints.rows import read_tensor
from tensorrt_llm_ext.checkpoints.stream import (
    Held,
    StreamTensor,
    digest,
    select_rows,
    stored_tensor,
)
from tensorrt_llm_ext.checkpoints.vocabulary import check_vocabulary_map
from tensorrt_llm_ext.configs.draft import DraftConfig
from tensorrt_llm_ext.errors import ConfigError

EMBEDDING: Final = "embed_tokens.weight"
HEAD: Final = "lm_head.weight"
_SAMPLES: Final = 64  # rows that tell one embedding from another


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorChange:
    """What became of one tensor.

    Attributes:
        before: Its stored name, with its rows where it is part of a fused tensor; "" when new.
        after: Its new name; "" when dropped.
        reason: Why it was added, dropped or changed; empty for a mere rename.
    """

    before: str
    after: str
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorPlan:
    """The tensors of a converted draft.

    Attributes:
        config: The draft as it will be.
        tensors: What is to be written, by canonical name.
        changes: What became of each tensor.
        vocabulary: The reduced vocabulary that was chosen; None when it stays as it is.
        warnings: What the receiver will do differently with these tensors.
    """

    config: DraftConfig
    tensors: dict[str, StreamTensor] = field(repr=False)
    changes: tuple[TensorChange, ...]
    vocabulary: VocabularyChoice | None
    warnings: tuple[str, ...]


class TensorPlanner:
    """Decides tensor by tensor.

    Args:
        source: The draft.
        config: The same, judged.
        receiver: Who is to read the result.
        target: The target's files, for its embedding and head.
        drop_embedding: Whether the draft's own embedding may go, unseen.
    """

    def __init__(
        self,
        source: DraftCheckpoint,
        config: DraftConfig,
        receiver: Receiver,
        target: TargetCheckpoint | None,
        drop_embedding: bool,
    ) -> None:
        self._source = source
        self._config = config
        self._receiver = receiver
        self._target = target
        self._drop_embedding = drop_embedding
        self._changes: list[TensorChange] = []
        self._warnings: list[str] = []
        self._tensors = {
            name: stored_tensor(self._new_name(name), source.files, ref)
            for name, ref in source.tensors.refs.items()
        }

    def plan(self, vocabulary: DraftVocabulary | None) -> TensorPlan:
        """Returns the plan.

        Args:
            vocabulary: A wish for a reduced vocabulary.

        Raises:
            CheckpointError: If the vocabulary map of the draft is wrong, or a tensor that is needed
                is nowhere.
            ConfigError: If something would be lost.
        """
        check_vocab_size(self._config.vocab_size)
        available = self._available()
        self._embedding()
        if self._receiver.needs_lm_head or vocabulary is not None:
            self._require_head()
        choice = None if vocabulary is None else choose_vocabulary(vocabulary, available)
        if choice is not None:
            self._prune(choice)
        self._maps(available if choice is None else choice.target_ids)
        tensors = dict(sorted(self._tensors.items()))
        return TensorPlan(
            config=self._config,
            tensors=tensors,
            changes=tuple(self._renames(tensors) + self._changes),
            vocabulary=choice,
            warnings=tuple(self._warnings),
        )

    def _new_name(self, canonical: str) -> str:
        module, dot, kind = canonical.rpartition(".")
        if not dot:
            return canonical
        return f"{module_name(self._receiver, module, self._config.num_layers)}.{kind}"

    def _stored_name(self, canonical: str) -> str:
        ref = self._source.tensors.refs.get(canonical)
        if ref is None:
            return ""
        return ref.name if ref.rows is None else f"{ref.name}[{ref.rows[0]}:{ref.rows[1]}]"

    def _renames(self, tensors: dict[str, StreamTensor]) -> list[TensorChange]:
        """Renamed tensors; those of unchanged name and bytes are not mentioned."""
        changed = {change.after for change in self._changes}
        return [
            TensorChange(before=self._stored_name(name), after=tensor.name)
            for name, tensor in tensors.items()
            if tensor.name not in changed and self._stored_name(name) != tensor.name
        ]

    def _drop(self, canonical: str, reason: str) -> None:
        if self._tensors.pop(canonical, None) is not None:
            change = TensorChange(before=self._stored_name(canonical), after="", reason=reason)
            self._changes.append(change)

    def _add(self, canonical: str, tensor: StreamTensor, reason: str) -> None:
        self._tensors[canonical] = tensor
        self._changes.append(
            TensorChange(before=self._stored_name(canonical), after=tensor.name, reason=reason)
        )

    def _available(self) -> Ids | None:
        """Target id of each row of the head; None when it has one for every id."""
        config = self._config
        t2d = self._map("t2d")
        d2t = self._map("d2t") if config.has_d2t else None
        if d2t is None:
            return None
        check_vocabulary_map(
            d2t, t2d, draft_vocab_size=config.draft_vocab_size, vocab_size=config.vocab_size
        )
        if config.draft_vocab_size == config.vocab_size:
            return None
        ids: Ids = d2t.to(torch.int64).numpy() + np.arange(len(d2t), dtype=np.int64)
        return ids

    def _map(self, name: str) -> torch.Tensor | None:
        """A vocabulary map in memory: 1.3 MB for Kimi's 163,840 ids."""
        ref = self._source.tensors.refs.get(name)
        files = self._source.files
        return None if ref is None else read_tensor(files, ref.name, allow_large=True)

    def _embedding(self) -> None:
        if EMBEDDING not in self._tensors:
            return
        kind = self._receiver.embedding
        if self._drop_embedding or kind is Embedding.REFUSED:
            self._leave_embedding_out()
        elif kind is Embedding.TARGET and self._config.hidden_size == self._target_width:
            same = self._equals_target(EMBEDDING, sampled=True)
            if not same:
                known = "was not compared with it (no --target)" if same is None else "differs"
                self._warnings.append(
                    f"{self._receiver.title} uses the target's embedding; the draft's own {known}."
                )

    @property
    def _target_width(self) -> int:
        return self._config.target_hidden_size

    def _leave_embedding_out(self) -> None:
        """Drops the embedding where the draft can borrow an equal one.

        Raises:
            ConfigError: If it cannot, or nobody knows.
        """
        same = self._equals_target(EMBEDDING)
        if same is False or self._config.hidden_size != self._target_width:
            raise ConfigError(
                "The draft's embedding differs from the target's, so leaving it out would make "
                f"another draft of it, and {self._receiver.title} "
                + (
                    "has no place for it. Choose another receiver."
                    if self._receiver.embedding is Embedding.REFUSED
                    else "can hold it. Leave out --drop-embedding."
                ),
                check="V22",
            )
        if same is None and not self._drop_embedding:
            raise ConfigError(
                f"{self._receiver.title} has no place for the draft's own embedding, which cannot "
                "be compared with the target's. Give the target with --target or, if you know that "
                "both are equal, --drop-embedding.",
                check="V22",
            )
        reason = "bit-equal to the target's" if same else "asked for, not compared"
        for name in [n for n in self._tensors if n.startswith("embed_tokens.")]:
            self._drop(name, f"embedding shared with the target ({reason})")
        self._config = dataclasses.replace(self._config, has_own_embedding=False)

    def _target_tensor(self, name: str) -> StreamTensor | None:
        """Embedding or head of the target, under the draft's name for it."""
        if self._target is None:
            return None
        config = target_config(self._target)
        prefix = config.weight_prefix
        stored = prefix + name
        if name == EMBEDDING or (name == HEAD and config.tie_word_embeddings):
            stored = f"{prefix}model.{EMBEDDING}"
        entry = self._target.files.entries.get(stored)
        scaled = f"{stored}_scale" in self._target.files.entries
        if entry is None or scaled or entry.dtype not in ("BF16", "F16", "F32"):
            return None
        return stored_tensor(name, self._target.files, TensorRef(stored))

    def _equals_target(self, name: str, *, sampled: bool = False) -> bool | None:
        """Whether a tensor is the target's, bit for bit; None when there is no target."""
        if self._target is None:
            return None
        own, other = self._tensors[name], self._target_tensor(name)
        if other is None or (own.dtype, own.shape) != (other.dtype, other.shape):
            return False
        if sampled:
            last = own.shape[0] - 1
            rows = sorted({i * last // (_SAMPLES - 1) for i in range(_SAMPLES)})
            own, other = select_rows(own, rows), select_rows(other, rows)
        return digest(own) == digest(other)

    def _require_head(self) -> None:
        if HEAD in self._tensors:
            return
        head = self._target_tensor(HEAD)
        if head is None:
            raise ConfigError(
                "The draft has no lm_head.weight, which is needed here (pruning, or "
                f"{self._receiver.title}'s layout), and no target with an unquantized head was "
                "given. Give it with --target.",
                check="V8",
            )
        if head.shape[1:] != (self._config.hidden_size,):
            raise ConfigError(
                f"The target's head has shape {list(head.shape)}, which does not fit the draft's "
                f"hidden_size {self._config.hidden_size}.",
                check="V8",
            )
        self._add(HEAD, head, "copied from the target")
        self._config = dataclasses.replace(self._config, has_own_lm_head=True)

    def _prune(self, choice: VocabularyChoice) -> None:
        rows = choice.rows.tolist()
        size = self._config.draft_vocab_size
        if len(rows) == size:
            return
        self._changes = [change for change in self._changes if change.after != HEAD]
        for name in [n for n in self._tensors if n.startswith("lm_head.")]:
            tensor = self._tensors[name]
            if math.prod(tensor.shape) == 1:
                continue
            if tensor.shape[0] != size:
                raise ConfigError(
                    f"{name} has shape {list(tensor.shape)}, not a row for each of {size} tokens: "
                    "the head cannot be pruned row by row. Prune the bf16 draft, then quantize it.",
                    check="V24",
                )
            self._add(name, select_rows(tensor, rows), f"{len(rows)} of {size} rows kept")
        self._config = dataclasses.replace(self._config, draft_vocab_size=len(rows), has_d2t=True)
        d2t = choice.d2t.astype("<i8").tobytes()
        self._add(
            "d2t",
            StreamTensor(
                name="d2t", dtype="I64", shape=(len(rows),), nbytes=len(d2t), data=Held(d2t)
            ),
            "offsets to target ids",
        )

    def _maps(self, target_ids: Ids | None) -> None:
        """Leaves out maps that say nothing, and writes `t2d` where it may be."""
        if self._config.draft_vocab_size == self._config.vocab_size or target_ids is None:
            for name in ("d2t", "t2d"):
                self._drop(name, "says nothing: the vocabulary is full")
            self._config = dataclasses.replace(self._config, has_d2t=False)
            return
        if not self._receiver.has_t2d:
            self._drop("t2d", "follows from d2t; not part of the layout")
            return
        known = np.zeros(self._config.vocab_size, dtype=np.bool_)
        known[target_ids] = True
        data = known.tobytes()
        old = self._tensors.get("t2d")
        if old is None or b"".join(old.data.chunks()) != data or old.dtype != "BOOL":
            shape = (self._config.vocab_size,)
            tensor = StreamTensor(
                name="t2d", dtype="BOOL", shape=shape, nbytes=len(data), data=Held(data)
            )
            self._add("t2d", tensor, "which target ids the draft knows")
