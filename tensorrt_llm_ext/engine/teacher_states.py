# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""What a draft is judged and calibrated on: texts, the target's states, and its greedy tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from tensorrt_llm_ext.errors import ConfigError, ShapeError


@dataclass(frozen=True, kw_only=True)
class TeacherSequence:
    """One text with what the target thought at each of its positions.

    Attributes:
        input_ids: [length] int64.
        states: [length, target_hidden_size] of each captured boundary.
        labels: [length] int64, the target's greedy token after each position.
        counted: [length] bool, positions from which drafts may be judged.
    """

    input_ids: torch.Tensor
    states: Mapping[int, torch.Tensor] = field(repr=False)
    labels: torch.Tensor
    counted: torch.Tensor

    def __post_init__(self) -> None:
        """Refuses tensors that do not belong to one text."""
        length = self.input_ids.shape[0]
        parts = {"labels": self.labels, "counted": self.counted}
        parts |= {f"boundary {b}": state for b, state in self.states.items()}
        for name, tensor in parts.items():
            if tensor.shape[0] != length:
                raise ShapeError(
                    f"A text of {length} tokens has {tensor.shape[0]} rows of {name}; one row per "
                    "token is needed. The file mixes texts, or was truncated."
                )

    @property
    def length(self) -> int:
        """Number of tokens."""
        return self.input_ids.shape[0]

    def anchors(self, max_draft_len: int) -> torch.Tensor:
        """Positions from which a whole chain of drafts can be judged.

        The draft of an anchor p sees the token at p + 1 and proposes the tokens from p + 2 on. What
        the target says to the j-th proposal is known only while the text is what the target itself
        would have written, so an anchor counts if the text is greedy over its chain.

        Args:
            max_draft_len: Proposals per anchor.

        Returns:
            [anchors] int64, ascending.
        """
        last = self.length - max_draft_len
        positions = torch.arange(max(last, 0))
        follows = self.input_ids[1:] == self.labels[:-1]  # token p + 1 is the target's
        keep = self.counted[: positions.numel()].clone()
        for step in range(1, max_draft_len):
            keep &= follows[positions + step]
        return positions[keep]


@dataclass(frozen=True, kw_only=True)
class TeacherStates:
    """Texts that a draft is tested on.

    Attributes:
        sequences: At least one.
        source: Where they come from, in words.
        labels: Where the greedy tokens come from, in words.
    """

    sequences: tuple[TeacherSequence, ...]
    source: str
    labels: str

    def __post_init__(self) -> None:
        """Refuses an empty set, and texts with different boundaries."""
        if not self.sequences:
            raise ConfigError(f"{self.source} holds no text. The canary needs several.")
        if len({frozenset(sequence.states) for sequence in self.sequences}) > 1:
            raise ConfigError(
                f"{self.source}: not all texts have the same boundaries. Capture the same ones "
                "for every text."
            )

    @property
    def boundaries(self) -> frozenset[int]:
        """Boundaries of which there are states."""
        return frozenset(self.sequences[0].states)

    @property
    def hidden_size(self) -> int:
        """Width of the states."""
        return next(iter(self.sequences[0].states.values())).shape[-1]

    @property
    def num_tokens(self) -> int:
        """Tokens of all texts."""
        return sum(sequence.length for sequence in self.sequences)
