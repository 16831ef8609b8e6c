# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The validator: checks V1 to V31 of a draft beside its target (DESIGN section 6).

A check calls the rule that the loader uses and reports what it found; no check loads weights unless
asked to, and none fails: a fault is a finding.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tensorrt_llm_ext.checkpoints.checks import (
    host,
    kind,
    layers,
    loaded,
    norms,
    quantization,
    rope,
    tensors,
    vocabulary,
)
from tensorrt_llm_ext.checkpoints.checks.base import Check, CheckContext, Finding, Status
from tensorrt_llm_ext.checkpoints.checks.examination import Fault
from tensorrt_llm_ext.checkpoints.checks.rules import ExaminedContext, error, not_checked
from tensorrt_llm_ext.errors import ExtError

_MODULES: Final = (host, kind, tensors, layers, norms, rope, vocabulary, quantization, loaded)
_ORDER: Final = tuple(Status)


def _number(check_id: str) -> int:
    return int(check_id.removeprefix("V"))


ALL_CHECKS: Final[tuple[Check, ...]] = tuple(
    sorted(
        (
            value
            for module in _MODULES
            for value in vars(module).values()
            if isinstance(value, Check)
        ),
        key=lambda check: _number(check.check_id),
    )
)


def run_checks(ctx: CheckContext) -> tuple[Finding, ...]:
    """Runs every check.

    Args:
        ctx: The pair and the user's options.

    Returns:
        Findings by id; each id appears at least once, and whatever makes the loader refuse the
        draft is among them as an error.
    """
    examined = ExaminedContext.of(ctx)
    faults = list(examined.examination.faults)
    findings: list[Finding] = []
    for check in ALL_CHECKS:
        try:
            findings.extend(check.run(examined))
        except ExtError as raised:
            owner = raised.check or check.check_id
            if owner == check.check_id:
                findings.append(error(owner, str(raised)))
            else:
                faults.append(Fault(check_id=owner, message=str(raised)))
                findings.append(not_checked(check.check_id, f"depends on {owner}"))
    for fault in faults:
        findings = _surfaced(findings, fault)
    return tuple(sorted(findings, key=lambda finding: _number(finding.check_id)))


def _surfaced(findings: list[Finding], fault: Fault) -> list[Finding]:
    """Adds a fault that no check has reported; what its check said otherwise is withdrawn."""
    accused = [finding for finding in findings if finding.status is Status.ERROR]
    if any(f.check_id == fault.check_id or f.message == fault.message for f in accused):
        return findings
    kept = [finding for finding in findings if finding.check_id != fault.check_id]
    return [*kept, error(fault.check_id, fault.message)]


def worst(findings: Iterable[Finding]) -> Status:
    """The worst outcome; PASSED when there are no findings."""
    return max((f.status for f in findings), key=_ORDER.index, default=Status.PASSED)
