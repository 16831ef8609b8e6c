# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Captured layers: every convention in, boundaries out, contradictions refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrt_llm_ext.configs.boundaries import (
    BoundaryEvidence,
    check_layers_to_capture,
    default_after_layers,
    default_boundaries,
    resolve_boundaries,
)
from tensorrt_llm_ext.errors import ConfigError, UnsupportedError


def resolve(
    ids: Any = None, explicit: Any = None, override: Any = None, layers: int | None = 61
) -> tuple[tuple[int, ...], str]:
    evidence = BoundaryEvidence(
        ids=None if ids is None else tuple(ids),
        ids_key="ids" if ids is not None else "",
        explicit=None if explicit is None else tuple(explicit),
    )
    return resolve_boundaries(evidence, num_target_layers=layers, override=override)


@pytest.mark.parametrize(
    ("ids", "layers", "boundaries", "evidence"),
    [
        ([1, 29, 57], 61, (2, 30, 58), "after-layer"),
        ([2, 30, 58], 61, (2, 30, 58), "default boundaries"),
        ([1, 45, 89], 93, (2, 46, 90), "after-layer"),
        ([2, 46, 90], 93, (2, 46, 90), "default boundaries"),
        ([1, 3, 4], 8, (2, 4, 5), "after-layer"),
        ([2, 4, 5], 8, (2, 4, 5), "default boundaries"),
    ],
)
def test_default_triples(
    ids: list[int], layers: int, boundaries: tuple[int, ...], evidence: str
) -> None:
    found, reason = resolve(ids, layers=layers)
    assert found == boundaries
    assert evidence in reason
    assert str(ids) in reason


@given(st.integers(1, 200))
def test_the_two_defaults_are_the_same_states(num_layers: int) -> None:
    after, before = default_after_layers(num_layers), default_boundaries(num_layers)
    assert (after is None) == (num_layers < 7)
    if before is not None and after is not None:
        assert before == tuple(i + 1 for i in after)
        assert after != before
        assert resolve(after, layers=num_layers)[0] == before
        assert resolve(before, layers=num_layers)[0] == before


@pytest.mark.parametrize("ids", [None, [3, 5, 7], [2, 4, 6]])
def test_explicit_key_decides_and_ids_may_be_of_either_convention(ids: Any) -> None:
    boundaries, reason = resolve(ids, explicit=[3, 5, 7], layers=8)
    assert boundaries == (3, 5, 7)
    assert "trtllm_ext_aux_boundaries" in reason


@pytest.mark.parametrize("ids", [None, [4, 48, 88], [3, 47, 87]])
@pytest.mark.parametrize("explicit", [None, [4, 48, 88]])
def test_override_decides(ids: Any, explicit: Any) -> None:
    boundaries, reason = resolve(ids, explicit, override=[4, 48, 88], layers=93)
    assert boundaries == (4, 48, 88)
    assert "given by the user" in reason


def test_override_may_capture_the_embeddings_and_the_last_layer() -> None:
    assert resolve(override=(0, 8), layers=8)[0] == (0, 8)
    assert resolve(explicit=(4, 8), layers=8)[0] == (4, 8)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, ConfigError, "does not say which.*eagle3_layers_to_capture.*trtllm_ext_aux"),
        ({"ids": [4, 48, 88]}, ConfigError, r"two ways.*\[4, 48, 88\].*\[5, 49, 89\]"),
        ({"ids": [1, 29, 57], "layers": 60}, ConfigError, "two ways"),
        ({"ids": [1, 29, 57], "layers": None}, ConfigError, "unknown target"),
        # Order is the order of fc columns: a permuted default is not the default.
        ({"ids": [57, 29, 1]}, ConfigError, "two ways"),
        ({"ids": [-1, 29, 57]}, UnsupportedError, "final norm"),
        # Evidence that disagrees is an error, never a precedence.
        ({"ids": [1, 29, 57], "explicit": [1, 29, 57]}, ConfigError, "contradict ids"),
        ({"ids": [2, 30, 58], "explicit": [3, 31, 59]}, ConfigError, "contradict ids"),
        ({"ids": [5, 6, 7], "explicit": [2, 30, 58]}, ConfigError, "contradict ids"),
        ({"ids": [2, 30, 58], "override": [3, 31, 59]}, ConfigError, r"boundary - 1"),
        ({"explicit": [2, 30], "override": [3, 31]}, ConfigError, "Drop the option"),
        ({"explicit": [2, 2, 58]}, ConfigError, "unique and ascending"),
        ({"explicit": [58, 30, 2]}, ConfigError, "unique and ascending"),
        ({"explicit": []}, ConfigError, "unique and ascending"),
        ({"override": []}, ConfigError, "unique and ascending"),
        ({"explicit": [2, 30, 62]}, ConfigError, r"within 0\.\.61"),
        ({"override": [-1, 30]}, ConfigError, r"within 0\.\.61"),
        ({"explicit": [0, 30, 58]}, ConfigError, "include 0, the bare token embeddings"),
    ],
    ids=str,
)
def test_refusals(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        resolve(**arguments)


@given(
    ids=st.none() | st.lists(st.integers(0, 12), min_size=1, max_size=4),
    explicit=st.none() | st.lists(st.integers(0, 12), min_size=1, max_size=4),
    override=st.none() | st.lists(st.integers(0, 12), min_size=1, max_size=4),
    layers=st.integers(1, 12),
)
def test_whatever_is_resolved_is_valid_and_agrees_with_all_evidence(
    ids: Any, explicit: Any, override: Any, layers: int
) -> None:
    try:
        boundaries, reason = resolve(ids, explicit, override, layers)
    except ConfigError as error:
        assert len(str(error)) > 40  # noqa: PT017 - other evidence is fine
        return
    assert list(boundaries) == sorted(set(boundaries))
    assert boundaries[0] >= 0
    assert boundaries[-1] <= layers
    assert reason
    for given_boundaries in (explicit, override):
        assert given_boundaries is None or tuple(given_boundaries) == boundaries
    if ids is not None:
        assert boundaries in (tuple(ids), tuple(i + 1 for i in ids))


# --- the producer's marks -----------------------------------------------------------------------

MODELOPT = {"convention": "after-layer", "fingerprint": "ModelOpt's keys"}
EXPORT = {"convention": "boundary", "fingerprint": "the vLLM export"}
RENAMED = {"convention": "after-layer", "fingerprint": "midlayer names", "weak": True}


def resolve_marked(ids: list[int], layers: int | None, **marks: Any) -> tuple[tuple[int, ...], str]:
    explicit, override = marks.pop("explicit", None), marks.pop("override", None)
    evidence = BoundaryEvidence(ids=tuple(ids), ids_key="ids", explicit=explicit, **marks)
    return resolve_boundaries(evidence, num_target_layers=layers, override=override)


@pytest.mark.parametrize(
    ("ids", "layers", "marks", "boundaries"),
    [
        # Not a default triple: the producer decides, and [2, 4, 6] is not misread.
        ([2, 4, 6], 8, MODELOPT, (3, 5, 7)),
        ([2, 4, 6], 8, RENAMED, (3, 5, 7)),
        ([2, 4, 6], 8, EXPORT, (2, 4, 6)),
        ([48, 68, 88], 93, MODELOPT, (49, 69, 89)),
        ([48, 68, 88], None, RENAMED, (49, 69, 89)),
        ([4, 48, 88], 93, EXPORT, (4, 48, 88)),
        # Marks and default agree, or the target is not known.
        ([1, 29, 57], 61, MODELOPT, (2, 30, 58)),
        ([1, 29, 57], None, MODELOPT, (2, 30, 58)),
        ([2, 30, 58], 61, EXPORT, (2, 30, 58)),
        ([2, 46, 90], None, EXPORT, (2, 46, 90)),
        # A weak mark yields to a default triple.
        ([2, 30, 58], 61, RENAMED, (2, 30, 58)),
    ],
    ids=str,
)
def test_marks_of_the_producer(
    ids: list[int], layers: int | None, marks: dict[str, Any], boundaries: tuple[int, ...]
) -> None:
    found, reason = resolve_marked(ids, layers, **marks)
    assert found == boundaries
    assert marks["fingerprint"] in reason


@pytest.mark.parametrize(
    ("ids", "layers", "marks"),
    [
        ([2, 30, 58], 61, MODELOPT),
        ([1, 29, 57], 61, EXPORT),
        # Without the target: they are the default boundaries of 61 layers all the same.
        ([2, 30, 58], None, MODELOPT),
        ([2, 30, 58], None, RENAMED),
        ([3, 5, 7], 8, {**MODELOPT, "against": "two keys that differ by one"}),
        ([1, 29, 57], 61, {**MODELOPT, "against": "two keys that differ by one"}),
    ],
    ids=str,
)
def test_marks_that_disagree_are_an_error_and_can_be_decided(
    ids: list[int], layers: int | None, marks: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError) as raised:
        resolve_marked(ids, layers, **marks)
    assert raised.value.check == "V10"
    message = str(raised.value)
    after, before = [i + 1 for i in ids], ids
    for part in (marks["fingerprint"], str(after), str(before), "canary", "trtllm_ext_aux"):
        assert part in message
    # Either reading may be given by the user, or written into the file.
    for boundaries in (tuple(after), tuple(before)):
        if layers is None or marks.get("against"):
            continue
        assert resolve_marked(ids, layers, override=boundaries, **marks)[0] == boundaries
        assert resolve_marked(ids, layers, explicit=boundaries, **marks)[0] == boundaries


def test_unknown_convention() -> None:
    with pytest.raises(ConfigError, match="one of boundary, after-layer or None, got 'before'"):
        BoundaryEvidence(convention="before")


@pytest.mark.parametrize(
    ("arguments", "check"),
    [
        ({}, "V9"),
        ({"ids": [4, 48, 88]}, "V10"),
        ({"ids": [1, 29, 57], "explicit": [1, 29, 57]}, "V10"),
        ({"ids": [-1, 29, 57]}, "V31"),
        ({"ids": [2, 30, 58], "override": [3, 31, 59]}, "V12"),
        ({"explicit": [2, 30], "override": [3, 31]}, "V12"),
        ({"explicit": [58, 30, 2]}, "V13"),
        ({"explicit": [2, 30, 62]}, "V13"),
        ({"explicit": [0, 30, 58]}, "V13"),
    ],
    ids=str,
)
def test_refusals_carry_the_id_of_their_check(arguments: dict[str, Any], check: str) -> None:
    with pytest.raises((ConfigError, UnsupportedError)) as raised:
        resolve(**arguments)
    assert raised.value.check == check


@pytest.mark.parametrize("layers", [[1, 29, 57], (57, 1, 29), {29, 57, 1}])
def test_the_hosts_option_is_unordered(layers: Any) -> None:
    check_layers_to_capture((2, 30, 58), layers)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([2, 30, 58], r"holds boundaries, not layers\. Set it to \[1, 29, 57\]"),
        ([1, 29], r"after layers \[1, 29, 57\]"),
        ([-1, 1, 29, 57], r"is \[-1, 1, 29, 57\]"),
        ([], r"is \[\]"),
    ],
)
def test_another_option_of_the_host(layers: list[int], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        check_layers_to_capture((2, 30, 58), layers)
    assert raised.value.check == "V12"
