# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""What a public draft layout is: a rename table, a config reader, and the marks it is known by."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple


class IdConvention(str, Enum):
    """What an auxiliary layer id x means."""

    BOUNDARY = "boundary"  # the residual stream before layer x
    AFTER_LAYER = "after-layer"  # the residual stream after layer x: boundary x + 1


@dataclass(frozen=True, kw_only=True, slots=True)
class DraftFiles:
    """What detection may look at: names, shapes and metadata, never weights.

    Attributes:
        config: config.json as it is.
        shapes: Shape of each tensor by its stored name.
        hf_quant_config: hf_quant_config.json, or None.
    """

    config: Mapping[str, Any]
    shapes: Mapping[str, Sequence[int]] = field(repr=False)
    hf_quant_config: Mapping[str, Any] | None = None


class IdMark(NamedTuple):
    """What a producer's layer ids mean, and how that is known.

    Attributes:
        convention: What an id means.
        mark: The mark that says so, in words that continue "they are boundaries, as ...".
        weak: Whether it decides only where nothing else does: a name that conversions change
            without touching the ids.
    """

    convention: IdConvention
    mark: str
    weak: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class DraftFormat:
    """One public layout of draft checkpoints.

    Attributes:
        name: Short stable name, for instance "torchspec".
        title: What people call it, with the producers that write it.
        marks: Returns the marks of this layout that the files carry, in words; empty when it is
            another layout.
        renames: Regular expressions and replacements, applied in order, each as often as it
            matches; the result is a canonical name (`checkpoints.names`).
        read_config: Returns a flat config.json in the keys that `configs.hf_draft` reads; it never
            drops a key that changes what the draft computes.
        id_convention: Returns what this producer's layer ids mean with the mark that says so, or
            None when the layout leaves it open.
        facts: What people must know of this producer's drafts, one sentence each.
    """

    name: str
    title: str
    marks: Callable[[DraftFiles], tuple[str, ...]]
    renames: tuple[tuple[re.Pattern[str], str], ...]
    read_config: Callable[[Mapping[str, Any]], dict[str, Any]]
    id_convention: Callable[[DraftFiles], IdMark | None]
    facts: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Detection:
    """Which layout a draft has, and why.

    Attributes:
        format: The layout.
        evidence: The marks that decided, in words.
        id_convention: What its layer ids mean by the producer's marks; None when left open.
        id_evidence: The mark behind `id_convention`.
        id_is_weak: Whether that mark decides only where nothing else does.
        id_against: A mark, in words, of another producer with the other convention; empty when
            there is none.
        facts: What people must know of this producer's drafts, one sentence each.
    """

    format: DraftFormat
    evidence: tuple[str, ...]
    id_convention: IdConvention | None = None
    id_evidence: str = ""
    id_is_weak: bool = False
    id_against: str = ""
    facts: tuple[str, ...] = ()
