# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Checks of captured layers: V9 to V14 and V31."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tensorrt_llm_ext.checkpoints.checks.base import CheckContext, Finding
from tensorrt_llm_ext.checkpoints.checks.examination import (
    BOUNDARIES,
    DRAFT,
    IDS_KEYS,
    Examination,
)
from tensorrt_llm_ext.checkpoints.checks.rules import check, error, info, not_checked, passed
from tensorrt_llm_ext.configs.boundaries import check_layers_to_capture, default_after_layers
from tensorrt_llm_ext.configs.draft import DraftConfig
from tensorrt_llm_ext.errors import ConfigError

_NEEDS = (BOUNDARIES, DRAFT)


def _draft(found: Examination) -> DraftConfig:
    if found.draft is None:
        raise ConfigError("The draft's config is not known; a check asks for it without needing it")
    return found.draft


@check("V9", "layer ids present", needs=_NEEDS)
def ids_present(ctx: CheckContext, found: Examination) -> Iterable[Finding]:
    """The draft says which target layers it captures, or the user does."""
    count = _draft(found).num_captured
    eagle = ctx.draft.raw.get("eagle_config")
    sections = {"": ctx.draft.raw, "eagle_config.": eagle if isinstance(eagle, Mapping) else {}}
    places = [
        f"{prefix}{key}" for prefix, values in sections.items() for key in IDS_KEYS if key in values
    ]
    if ctx.boundaries is not None:
        places.insert(0, "the user's option")
    yield passed(
        "V9",
        f"{count} captured layers are named by {' and '.join(places) or 'the draft'}.",
        count=count,
        places=places,
    )


@check("V10", "layer ids resolved", needs=_NEEDS)
def ids_resolved(ctx: CheckContext, found: Examination) -> Iterable[Finding]:
    """The meaning of the ids is known and nothing contradicts it."""
    draft, detection = _draft(found), ctx.draft.detection
    convention = detection.id_convention
    yield passed(
        "V10",
        f"Boundaries {list(draft.boundaries)}; evidence: {draft.boundaries_evidence}.",
        boundaries=list(draft.boundaries),
        evidence=draft.boundaries_evidence,
        producer_convention=None if convention is None else convention.value,
        producer_evidence=detection.id_evidence,
    )


@check("V11", "captured layers", needs=_NEEDS)
def captured_layers(ctx: CheckContext, found: Examination) -> Iterable[Finding]:
    """One line with the captured layers in both ways of counting."""
    draft = _draft(found)
    after = [b - 1 for b in draft.boundaries]
    yield info(
        "V11",
        f"captures after target layers {after} (0-based), i.e. boundaries "
        f"{list(draft.boundaries)}; evidence: {draft.boundaries_evidence}",
        after_layers=after,
        boundaries=list(draft.boundaries),
        evidence=draft.boundaries_evidence,
    )


@check("V12", "eagle3_layers_to_capture", needs=_NEEDS)
def host_option(ctx: CheckContext, found: Examination) -> Iterable[Finding]:
    """The host's option names the same states; the host reads nothing else."""
    boundaries = _draft(found).boundaries
    wanted = [b - 1 for b in boundaries]
    if 0 in boundaries:
        yield error(
            "V12",
            f"Boundary 0 (the bare embeddings) of {list(boundaries)} has no "
            "eagle3_layers_to_capture: -1 means the state after the final norm there. This draft "
            "runs in the embedded engine only.",
        )
        return
    data = {"eagle3_layers_to_capture": wanted}
    if ctx.layers_to_capture is not None:
        given = tuple(ctx.layers_to_capture)
        if min(given, default=0) < 0:
            yield not_checked("V12", "depends on V31")
            return
        check_layers_to_capture(boundaries, given)
        yield passed("V12", f"eagle3_layers_to_capture {wanted} names the same states.", **data)
        return
    depth = None if found.target is None else found.target.num_layers
    default = None if depth is None else default_after_layers(depth)
    if default is None:
        usual = ""
    elif list(default) == wanted:
        usual = f" It equals the host's default for {depth} layers."
    else:
        usual = (
            f" Without it the host captures {list(default)}, its default for {depth} layers, and "
            "acceptance collapses."
        )
    yield info(
        "V12",
        f"Set eagle3_layers_to_capture to {wanted}; the host reads no layer ids from a draft."
        f"{usual}",
        host_default=None if default is None else list(default),
        **data,
    )


@check("V13", "boundaries in range", needs=_NEEDS)
def boundaries_in_range(ctx: CheckContext, found: Examination) -> Iterable[Finding]:
    """Boundaries are unique, ascending and exist in the target."""
    shown = list(_draft(found).boundaries)
    yield passed("V13", f"Boundaries {shown} are unique and ascending.", boundaries=shown)
    if found.target is None:
        yield not_checked("V13", "whether the target is deep enough: no target was given")
    else:
        depth = found.target.num_layers
        yield passed("V13", f"All lie within 1..{depth}, the target's layers.", num_layers=depth)


@check("V14", "width of fc", needs=_NEEDS)
def fc_width(ctx: CheckContext, found: Examination) -> Iterable[Finding]:
    """The columns of fc are as many as captured layers times the target's width."""
    draft = _draft(found)
    columns = draft.num_captured * draft.target_hidden_size
    sizes = f"{draft.num_captured} captured layers x {draft.target_hidden_size}"
    data = {"captured": draft.num_captured, "target_hidden_size": draft.target_hidden_size}
    if not draft.has_fc:
        yield info("V14", f"No fc: the state is taken as it is, {columns} = {sizes}.", **data)
        return
    yield passed("V14", f"fc reads {columns} columns = {sizes}.", **data)


@check("V31", "no negative ids", needs=_NEEDS)
def no_negative_ids(ctx: CheckContext, found: Examination) -> Iterable[Finding]:
    """No id is -1, which is the state after the final norm in the host."""
    if ctx.layers_to_capture is not None and any(i < 0 for i in ctx.layers_to_capture):
        yield error(
            "V31",
            f"eagle3_layers_to_capture {list(ctx.layers_to_capture)} holds a negative id: the host "
            "takes the state after the final norm for it, which no Eagle3 draft was trained on. "
            f"Set it to {[b - 1 for b in _draft(found).boundaries]}.",
        )
        return
    yield passed("V31", "No captured state is the one after the final norm (id -1).")
