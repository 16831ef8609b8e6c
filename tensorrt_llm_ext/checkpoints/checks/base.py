# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""What a check is, what it sees and what it says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from tensorrt_llm_ext.checkpoints.normalize import DraftCheckpoint, TargetCheckpoint
from tensorrt_llm_ext.errors import presentable


class Status(str, Enum):
    """Outcome of a check, from good to bad."""

    PASSED = "passed"
    INFO = "info"
    NOT_APPLICABLE = "not applicable"
    NOT_CHECKED = "not checked"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What one check found.

    Attributes:
        check_id: Stable id, "V1" to "V31".
        status: Outcome.
        message: For errors and warnings: what was found, what was expected, what to do. Otherwise
            the fact that was established.
        data: The same as values, for `--json`.
    """

    check_id: str
    status: Status
    message: str
    data: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Keeps the message printable: it quotes files of strangers."""
        object.__setattr__(self, "message", presentable(self.message))


@dataclass(frozen=True, kw_only=True)
class HostFacts:
    """What was probed of an installed TensorRT-LLM.

    Attributes:
        version: Its version; None when it is not installed.
        missing: What an MLA Eagle3 draft needs and the installed host lacks, as `module.name`.
    """

    version: str | None = None
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CheckContext:
    """Everything that a check may look at.

    Attributes:
        draft: The draft, from headers; see `checkpoints.normalize`.
        target: The target, or None when only the draft was given.
        boundaries: The user's override of the captured boundaries.
        layers_to_capture: `eagle3_layers_to_capture` of the user's host config, to be compared.
        max_seq_len: The length that the user wants to serve.
        max_draft_len: Draft tokens per round, which run past the end of a request.
        use_tree: Whether tree drafting is asked for.
        host: The installed TensorRT-LLM; None when nobody probed.
        deep: Whether weights may be loaded.
    """

    draft: DraftCheckpoint
    target: TargetCheckpoint | None = None
    boundaries: Sequence[int] | None = None
    layers_to_capture: Sequence[int] | None = None
    max_seq_len: int | None = None
    max_draft_len: int = 0
    use_tree: bool = False
    host: HostFacts | None = None
    deep: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One entry of the validator.

    Attributes:
        check_id: Stable id.
        title: A few words for tables.
        run: Yields at least one finding; an `ExtError` that it raises becomes an error finding.
    """

    check_id: str
    title: str
    run: Callable[[CheckContext], Iterable[Finding]]
