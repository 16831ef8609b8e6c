# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Turns rules into checks: faults become error findings, unknown facts say what they wait for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tensorrt_llm_ext.checkpoints.checks.base import Check, CheckContext, Finding, Status
from tensorrt_llm_ext.checkpoints.checks.examination import Examination, examine

Rule = Callable[[CheckContext, Examination], Iterable[Finding]]


@dataclass(frozen=True, kw_only=True)
class ExaminedContext(CheckContext):
    """A context whose configs were read already, so that 31 checks read them once."""

    examination: Examination

    @classmethod
    def of(cls, ctx: CheckContext) -> ExaminedContext:
        """Examines a context."""
        values = {f.name: getattr(ctx, f.name) for f in dataclasses.fields(CheckContext)}
        return cls(examination=examine(ctx), **values)


def check(check_id: str, title: str, *, needs: Iterable[str] = ()) -> Callable[[Rule], Check]:
    """Makes a check of a rule.

    Faults that the loader's rules found under this id are its findings. Otherwise the decorated
    function runs, once the facts that it needs are known.

    Args:
        check_id: Stable id.
        title: A few words for tables.
        needs: Facts (`examination`) without which the check says "not checked".
    """
    wanted = tuple(needs)

    def decorate(rule: Rule) -> Check:
        def run(ctx: CheckContext) -> Iterable[Finding]:
            examined = ctx if isinstance(ctx, ExaminedContext) else ExaminedContext.of(ctx)
            known = examined.examination
            faults = known.faults_of(check_id)
            if faults:
                return tuple(error(check_id, fault.message) for fault in faults)
            missing = known.missing(wanted)
            if missing:
                return (not_checked(check_id, missing),)
            return tuple(rule(examined, known))

        return Check(check_id=check_id, title=title, run=run)

    return decorate


def passed(check_id: str, message: str, **data: Any) -> Finding:
    """The fact was established, and it is as it should be."""
    return Finding(check_id=check_id, status=Status.PASSED, message=message, data=data)


def info(check_id: str, message: str, **data: Any) -> Finding:
    """A fact to know, neither good nor bad."""
    return Finding(check_id=check_id, status=Status.INFO, message=message, data=data)


def warning(check_id: str, message: str, **data: Any) -> Finding:
    """Runs, but probably not as hoped."""
    return Finding(check_id=check_id, status=Status.WARNING, message=message, data=data)


def error(check_id: str, message: str, **data: Any) -> Finding:
    """Must not be served."""
    return Finding(check_id=check_id, status=Status.ERROR, message=message, data=data)


def not_checked(check_id: str, reason: str) -> Finding:
    """Could not be judged."""
    return Finding(check_id=check_id, status=Status.NOT_CHECKED, message=f"not checked: {reason}")


def not_applicable(check_id: str, reason: str) -> Finding:
    """Has no meaning for this draft."""
    return Finding(check_id=check_id, status=Status.NOT_APPLICABLE, message=reason)
