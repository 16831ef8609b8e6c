# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Which target states a draft captures: every convention in, boundaries out.

Boundary b is the residual stream before 0-based target layer b (b = N: after the last layer). The
same layers are spelled in two ways in public checkpoints: as boundaries, or as the layer *after*
which the state is taken (boundary - 1). An id that is off by one costs nothing but acceptance, so
nothing is guessed: evidence must agree, and what it leaves open is an error that says how to
decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tensorrt_llm_ext.errors import ConfigError, UnsupportedError

EXPLICIT_KEY = "trtllm_ext_aux_boundaries"
_HOW_TO_GIVE = (
    f"Give the boundaries with eagle3_layers_to_capture (boundary - 1) or write "
    f'"{EXPLICIT_KEY}": [b1, b2, ...] into the draft\'s config.json, where boundary b is the '
    "residual stream before 0-based target layer b"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class BoundaryEvidence:
    """What a draft's config.json says about its captured layers.

    Attributes:
        ids: The layer ids as written, or None.
        ids_key: Where they were written.
        explicit: The value of `trtllm_ext_aux_boundaries`, or None.
    """

    ids: tuple[int, ...] | None = None
    ids_key: str = ""
    explicit: tuple[int, ...] | None = None


def default_after_layers(num_layers: int) -> tuple[int, ...] | None:
    """The host's default ids {1, N//2-1, N-4}; None where N is too small for three layers."""
    return _triple(1, num_layers // 2 - 1, num_layers - 4)


def default_boundaries(num_layers: int) -> tuple[int, ...] | None:
    """The default boundaries {2, N//2, N-3}; None where N is too small for three layers."""
    return _triple(2, num_layers // 2, num_layers - 3)


def _triple(first: int, middle: int, last: int) -> tuple[int, ...] | None:
    return (first, middle, last) if 0 <= first < middle < last else None


def resolve_boundaries(
    evidence: BoundaryEvidence,
    *,
    num_target_layers: int | None,
    override: Sequence[int] | None = None,
) -> tuple[tuple[int, ...], str]:
    """Resolves the captured boundaries.

    The user's override comes first, then the explicit key, then an exact match of the ids with one
    of the two default triples for the target's number of layers. Whatever decides, the rest must
    agree with it.

    Args:
        evidence: What the draft's config.json says.
        num_target_layers: Number of target layers, N; None when the target is not known.
        override: The user's boundaries.

    Returns:
        The boundaries in the order of the draft's fc columns, and a sentence with the evidence.

    Raises:
        ConfigError: If evidence is missing, ambiguous or contradictory, or a boundary is out of
            range; the message says what to do.
        UnsupportedError: If an id is negative (the state after the final norm).
    """
    if evidence.ids is not None and any(i < 0 for i in evidence.ids):
        raise UnsupportedError(
            f"{evidence.ids_key} {list(evidence.ids)} holds a negative id, which names the state "
            "after the final norm. Eagle3 drafts take states before it."
        )
    if override is not None:
        boundaries, reason = tuple(override), "given by the user"
        if evidence.explicit is not None and evidence.explicit != boundaries:
            raise ConfigError(
                f"The boundaries given, {list(boundaries)}, contradict {EXPLICIT_KEY} "
                f"{list(evidence.explicit)} in the draft's config.json. Drop the option, or "
                "correct the file if it is wrong."
            )
    elif evidence.explicit is not None:
        boundaries, reason = evidence.explicit, f"{EXPLICIT_KEY} in config.json"
    else:
        boundaries, reason = _from_ids(evidence, num_target_layers)
    _check_range(boundaries, num_target_layers, allow_embeddings=override is not None)
    return boundaries, f"{reason}{_agreement(boundaries, evidence, num_target_layers)}"


def _from_ids(evidence: BoundaryEvidence, num_layers: int | None) -> tuple[tuple[int, ...], str]:
    ids = evidence.ids
    if ids is None:
        raise ConfigError(
            "The draft's config.json does not say which target layers it captures (no "
            f"eagle_aux_hidden_state_layer_ids). {_HOW_TO_GIVE}."
        )
    if num_layers is not None:
        if ids == default_after_layers(num_layers):
            reason = f"ids are the default after-layer ids for {num_layers} layers"
            return tuple(i + 1 for i in ids), reason
        if ids == default_boundaries(num_layers):
            return ids, f"ids are the default boundaries for {num_layers} layers"
    known = f"a target of {num_layers} layers" if num_layers is not None else "an unknown target"
    raise ConfigError(
        f"{evidence.ids_key} {list(ids)} can be read in two ways for {known}: as boundaries "
        f"{list(ids)}, or as after-layer ids, boundaries {[i + 1 for i in ids]}. Neither is that "
        f"target's default, so the producer decides. {_HOW_TO_GIVE}."
    )


def _agreement(
    boundaries: tuple[int, ...], evidence: BoundaryEvidence, num_layers: int | None
) -> str:
    """Checks the ids against the decision; returns how they agree, for the log."""
    ids = evidence.ids
    if ids is None:
        return ""
    readings = {"boundaries": ids, "after-layer ids": tuple(i + 1 for i in ids)}
    if num_layers is not None:
        # A default triple has one reading only.
        if ids == default_after_layers(num_layers):
            del readings["boundaries"]
        elif ids == default_boundaries(num_layers):
            del readings["after-layer ids"]
    for name, reading in readings.items():
        if reading == boundaries:
            return f"; {evidence.ids_key} {list(ids)} read as {name}"
    listing = " or ".join(f"{list(reading)} (as {name})" for name, reading in readings.items())
    raise ConfigError(
        f"Captured boundaries {list(boundaries)} contradict {evidence.ids_key} {list(ids)} in the "
        f"draft's config.json, which means {listing}. Correct whichever is wrong; "
        "eagle3_layers_to_capture counts layers after which a state is taken (boundary - 1)."
    )


def _check_range(
    boundaries: tuple[int, ...], num_layers: int | None, *, allow_embeddings: bool
) -> None:
    shown = list(boundaries)
    if not boundaries or list(boundaries) != sorted(set(boundaries)):
        raise ConfigError(
            f"Captured boundaries must be unique and ascending, got {shown}: their order is the "
            "order of the fc columns, and engines capture layers in ascending order."
        )
    if boundaries[0] < 0 or (num_layers is not None and boundaries[-1] > num_layers):
        raise ConfigError(
            f"Captured boundaries {shown} must lie within 0..{num_layers}: the target has "
            f"{num_layers} layers. The draft was made for a deeper target, or the ids are wrong."
        )
    if boundaries[0] == 0 and not allow_embeddings:
        raise ConfigError(
            f"Captured boundaries {shown} include 0, the bare token embeddings, which no known "
            f"draft uses: the ids are probably after-layer ids. {_HOW_TO_GIVE}."
        )
