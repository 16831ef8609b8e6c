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

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from tensorrt_llm_ext.errors import ConfigError, UnsupportedError

EXPLICIT_KEY: Final = "trtllm_ext_aux_boundaries"
BOUNDARY: Final = "boundary"
AFTER_LAYER: Final = "after-layer"
_NAMES: Final = {BOUNDARY: "boundaries", AFTER_LAYER: "after-layer ids"}
_HOW_TO_GIVE = (
    f"Give the boundaries with eagle3_layers_to_capture (boundary - 1) or write "
    f'"{EXPLICIT_KEY}": [b1, b2, ...] into the draft\'s config.json, where boundary b is the '
    "residual stream before 0-based target layer b"
)
_HOW_TO_DECIDE = (
    "The card or the training script of the draft says which; `trtllm-ext canary` measures it by "
    "running the draft at both"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class BoundaryEvidence:
    """What a draft's files say about its captured layers.

    Attributes:
        ids: The layer ids as written, or None.
        ids_key: Where they were written.
        explicit: The value of `trtllm_ext_aux_boundaries`, or None.
        convention: What the producer's ids mean, "boundary" or "after-layer"; None when its marks
            leave that open.
        fingerprint: The marks of the producer behind `convention`, in words.
        weak: Whether those marks decide only where nothing else does: they are names that a
            conversion changes without touching the ids.
        against: Marks, in words, of a producer with the other convention; empty when there are
            none.
    """

    ids: tuple[int, ...] | None = None
    ids_key: str = ""
    explicit: tuple[int, ...] | None = None
    convention: str | None = None
    fingerprint: str = ""
    weak: bool = False
    against: str = ""

    def __post_init__(self) -> None:
        """Refuses an unknown convention."""
        if self.convention is not None and self.convention not in _NAMES:
            raise ConfigError(
                f"convention must be one of {', '.join(_NAMES)} or None, got {self.convention!r}."
            )


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
    """Resolves the captured boundaries (DESIGN section 6).

    The user's override comes first, then the explicit key, then an exact match of the ids with one
    of the two default triples for the target's number of layers, then the marks of the producer.
    Whatever decides, the rest must agree with it.

    Args:
        evidence: What the draft's files say.
        num_target_layers: Number of target layers, N; None when the target is not known.
        override: The user's boundaries.

    Returns:
        The boundaries in the order of the draft's fc columns, and a sentence with the evidence.

    Raises:
        ConfigError: If evidence is missing (V9), ambiguous or contradictory (V10), contradicts the
            override (V12), or a boundary is out of range or order (V13); the message says what to
            do.
        UnsupportedError: If an id is negative, the state after the final norm (V31).
    """
    if evidence.ids is not None and any(i < 0 for i in evidence.ids):
        raise UnsupportedError(
            f"{evidence.ids_key} {list(evidence.ids)} holds a negative id, which names the state "
            "after the final norm. Eagle3 drafts take states before it: use a draft without it, or "
            "ask its publisher which boundary (number of target layers for the last) was meant.",
            check="V31",
        )
    if override is not None:
        boundaries, reason = tuple(override), "given by the user"
        if evidence.explicit is not None and evidence.explicit != boundaries:
            raise ConfigError(
                f"The boundaries given, {list(boundaries)}, contradict {EXPLICIT_KEY} "
                f"{list(evidence.explicit)} in the draft's config.json. Drop the option, or "
                "correct the file if it is wrong.",
                check="V12",
            )
    elif evidence.explicit is not None:
        boundaries, reason = evidence.explicit, f"{EXPLICIT_KEY} in config.json"
    else:
        boundaries, reason = _from_ids(evidence, num_target_layers)
    _check_range(boundaries, num_target_layers, allow_embeddings=override is not None)
    agreement = _agreement(
        boundaries, evidence, num_target_layers, check="V10" if override is None else "V12"
    )
    return boundaries, f"{reason}{agreement}"


def check_layers_to_capture(boundaries: Sequence[int], layers: Iterable[int]) -> None:
    """Compares a host's `eagle3_layers_to_capture` with the resolved boundaries.

    Args:
        boundaries: What the draft captures.
        layers: The user's option: 0-based layers after which the host takes a state. Hosts sort it.

    Raises:
        ConfigError: If they name other states (V12).
    """
    given = sorted(set(layers))
    wanted = [b - 1 for b in boundaries]
    if given != wanted:
        hint = " The option holds boundaries, not layers." if given == list(boundaries) else ""
        raise ConfigError(
            f"eagle3_layers_to_capture is {given}, but the draft captures boundaries "
            f"{list(boundaries)}, that is after layers {wanted}.{hint} Set it to {wanted}.",
            check="V12",
        )


def _reading(ids: tuple[int, ...], convention: str) -> tuple[int, ...]:
    return ids if convention == BOUNDARY else tuple(i + 1 for i in ids)


def _default_convention(ids: tuple[int, ...], num_layers: int | None) -> str | None:
    """The one reading of ids that are a default triple for this number of layers."""
    if num_layers is None:
        return None
    if ids == default_after_layers(num_layers):
        return AFTER_LAYER
    return BOUNDARY if ids == default_boundaries(num_layers) else None


def _depth_of_default_boundaries(ids: tuple[int, ...]) -> int | None:
    """The number of layers whose default boundaries these ids are, if there is one."""
    depth = ids[-1] + 3 if ids else 0
    return depth if ids and ids == default_boundaries(depth) else None


def _from_ids(evidence: BoundaryEvidence, num_layers: int | None) -> tuple[tuple[int, ...], str]:
    ids = evidence.ids
    if ids is None:
        raise ConfigError(
            "The draft's config.json does not say which target layers it captures (no "
            f"eagle_aux_hidden_state_layer_ids). {_HOW_TO_GIVE}.",
            check="V9",
        )
    default = _default_convention(ids, num_layers)
    mark = evidence.convention
    if mark is not None and evidence.against:
        raise _contradiction(evidence, ids, evidence.against, _other(mark))
    if default is not None:
        default_is = "default after-layer ids" if default == AFTER_LAYER else "default boundaries"
        reason = f"ids are the {default_is} for {num_layers} layers"
        if mark is None or mark == default:
            return _reading(ids, default), reason + _as_well(evidence)
        if evidence.weak:
            return _reading(ids, default), f"{reason}, although {evidence.fingerprint}"
        raise _contradiction(evidence, ids, reason, default)
    if mark is not None:
        depth = _depth_of_default_boundaries(ids) if num_layers is None else None
        if depth is not None and mark == AFTER_LAYER:
            # The target would decide; without it the marks must not pass over the coincidence.
            reason = f"they are the default boundaries for {depth} layers"
            raise _contradiction(evidence, ids, reason, BOUNDARY)
        return _reading(ids, mark), f"{evidence.fingerprint} (producer of {_NAMES[mark]})"
    known = f"a target of {num_layers} layers" if num_layers is not None else "an unknown target"
    raise ConfigError(
        f"{evidence.ids_key} {list(ids)} can be read in two ways for {known}: as boundaries "
        f"{list(ids)}, or as after-layer ids, boundaries {[i + 1 for i in ids]}. Neither is that "
        f"target's default, and the files carry no mark of a producer. {_HOW_TO_DECIDE}. "
        f"{_HOW_TO_GIVE}.",
        check="V10",
    )


def _other(convention: str) -> str:
    return AFTER_LAYER if convention == BOUNDARY else BOUNDARY


def _as_well(evidence: BoundaryEvidence) -> str:
    return f", as {evidence.fingerprint}" if evidence.convention is not None else ""


def _contradiction(
    evidence: BoundaryEvidence, ids: tuple[int, ...], other: str, convention: str
) -> ConfigError:
    """Builds the error for marks of the producer and other evidence that read the ids apart."""
    mark = evidence.convention or _other(convention)
    return ConfigError(
        f"{evidence.ids_key} {list(ids)}: evidence disagrees. By the producer's marks "
        f"({evidence.fingerprint}) they are {_NAMES[mark]}, boundaries "
        f"{list(_reading(ids, mark))}; but {other}, which makes them {_NAMES[convention]}, "
        f"boundaries {list(_reading(ids, convention))}. {_HOW_TO_DECIDE}. {_HOW_TO_GIVE}.",
        check="V10",
    )


def _agreement(
    boundaries: tuple[int, ...], evidence: BoundaryEvidence, num_layers: int | None, *, check: str
) -> str:
    """Checks the ids against the decision; returns how they agree, for the log."""
    ids = evidence.ids
    if ids is None:
        return ""
    readings = {_NAMES[c]: _reading(ids, c) for c in (BOUNDARY, AFTER_LAYER)}
    default = _default_convention(ids, num_layers)
    # A default triple has one reading only, unless the producer's own marks read it the other way:
    # that contradiction is what an override or the explicit key is there to decide.
    disputed = evidence.convention not in (None, default) and not evidence.weak
    if default is not None and not disputed:
        del readings[_NAMES[_other(default)]]
    for name, reading in readings.items():
        if reading == boundaries:
            return f"; {evidence.ids_key} {list(ids)} read as {name}"
    listing = " or ".join(f"{list(reading)} (as {name})" for name, reading in readings.items())
    raise ConfigError(
        f"Captured boundaries {list(boundaries)} contradict {evidence.ids_key} {list(ids)} in the "
        f"draft's config.json, which means {listing}. Correct whichever is wrong; "
        "eagle3_layers_to_capture counts layers after which a state is taken (boundary - 1).",
        check=check,
    )


def _check_range(
    boundaries: tuple[int, ...], num_layers: int | None, *, allow_embeddings: bool
) -> None:
    shown = list(boundaries)
    if not boundaries or list(boundaries) != sorted(set(boundaries)):
        raise ConfigError(
            f"Captured boundaries must be unique and ascending, got {shown}: their order is the "
            "order of the fc columns, and engines capture layers in ascending order. Permute the "
            "column blocks of fc.weight (and fc_norm) with the ids if the draft was trained so.",
            check="V13",
        )
    if boundaries[0] < 0 or (num_layers is not None and boundaries[-1] > num_layers):
        raise ConfigError(
            f"Captured boundaries {shown} must lie within 0..{num_layers}: the target has "
            f"{num_layers} layers. The draft was made for a deeper target, or the ids are wrong.",
            check="V13",
        )
    if boundaries[0] == 0 and not allow_embeddings:
        raise ConfigError(
            f"Captured boundaries {shown} include 0, the bare token embeddings, which no known "
            f"draft uses: the ids are probably after-layer ids. {_HOW_TO_GIVE}.",
            check="V13",
        )
