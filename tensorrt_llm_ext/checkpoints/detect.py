# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Which public layout a draft has, with the marks that say so."""

from __future__ import annotations

from typing import Final

from tensorrt_llm_ext.checkpoints.formats import ALL_FORMATS, common
from tensorrt_llm_ext.checkpoints.formats.base import Detection, DraftFiles, DraftFormat, IdMark
from tensorrt_llm_ext.checkpoints.formats.native import GENERIC, NATIVE

_FLAGS_3_1: Final = ("fc_norm", "norm_output")


def detect_format(files: DraftFiles) -> Detection:
    """Names the layout of a draft; never raises, whatever the files hold.

    The first layout of `ALL_FORMATS` with a mark wins. What the layer ids mean is asked of every
    producer: a name may be shared by two of them while a key is not.
    """
    found = [(form, form.marks(files)) for form in ALL_FORMATS]
    marked = [(form, marks) for form, marks in found if marks]
    chosen, evidence = marked[0]
    others = [form.title for form, _ in marked[1:] if form is not GENERIC]
    if others:
        evidence = (*evidence, f"also marks of: {', '.join(others)}")
    flags = [flag for flag in _FLAGS_3_1 if common.setting(files, flag) is True]
    if flags:
        evidence = (*evidence, f"EAGLE-3.1 flags: {', '.join(flags)}")
    facts = tuple(fact for form, _ in marked for fact in form.facts)
    if chosen is NATIVE:
        # What we write says its boundaries itself; the names of another layout mean nothing then.
        return Detection(format=chosen, evidence=evidence, facts=facts)
    mark, against = _id_mark(files, [form for form in ALL_FORMATS if form is not NATIVE])
    return Detection(
        format=chosen,
        evidence=evidence,
        id_convention=mark.convention if mark is not None else None,
        id_evidence=mark.mark if mark is not None else "",
        id_is_weak=mark is not None and mark.weak,
        id_against=against,
        facts=facts,
    )


def _id_mark(files: DraftFiles, forms: list[DraftFormat]) -> tuple[IdMark | None, str]:
    """Returns the strongest mark of what the ids mean, and one of equal strength against it."""
    marks = [mark for form in forms if (mark := form.id_convention(files)) is not None]
    strong = [mark for mark in marks if not mark.weak] or marks
    if not strong:
        return None, ""
    against = next((m.mark for m in strong if m.convention != strong[0].convention), "")
    return strong[0], against
