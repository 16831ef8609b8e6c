# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Every check: what it says of damaged and of healthy pairs, and that it accuses nobody else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tensorrt_llm_ext.checkpoints.checks import ALL_CHECKS, run_checks, worst
from tensorrt_llm_ext.checkpoints.checks.base import CheckContext, Finding, Status
from tensorrt_llm_ext.checkpoints.normalize import open_draft, open_target
from tests.checkpoints.checks.cases import CASES, Case, Pair, nvfp4

EXAMPLES = Path(__file__).parents[3] / "examples" / "tiny_kimi"
IDS = [f"V{number}" for number in range(1, 32)]
# Checks that describe and never find fault with a draft on their own.
DESCRIBING = {"V4", "V11", "V29"}
BAD = (Status.WARNING, Status.ERROR)


def of(findings: tuple[Finding, ...], check_id: str) -> list[Finding]:
    return [finding for finding in findings if finding.check_id == check_id]


def listing(findings: tuple[Finding, ...]) -> str:
    return "\n".join(f"{f.check_id} {f.status.value}: {f.message}" for f in findings)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_case(case: Case, tmp_path: Path) -> None:
    findings = run_checks(case.pair(tmp_path))
    said = [f for f in of(findings, case.check_id) if f.status is case.status]
    said = [f for f in said if all(part in f.message for part in case.says)]
    assert len(said) == 1, listing(findings)
    assert case.data.items() <= said[0].data.items(), said[0].data
    assert list(dict.fromkeys(f.check_id for f in findings)) == IDS
    accused = {f.check_id for f in findings if f.status is Status.ERROR}
    expected = {case.check_id} if case.status is Status.ERROR else set()
    assert accused == expected, listing(findings)
    json.dumps([f.data for f in findings], allow_nan=False)


def test_ids_and_fixtures_are_complete() -> None:
    assert [check.check_id for check in ALL_CHECKS] == IDS
    assert len({check.title for check in ALL_CHECKS}) == len(IDS)
    failing = {case.check_id for case in CASES if case.status in BAD}
    assert failing == set(IDS) - DESCRIBING
    reporting = {case.check_id for case in CASES if case.status is Status.INFO}
    assert reporting >= DESCRIBING


@pytest.mark.parametrize("pair", [Pair(), nvfp4()], ids=["float", "nvfp4"])
def test_healthy_tiny_pairs(pair: Pair, tmp_path: Path) -> None:
    findings = run_checks(pair(tmp_path))
    assert not [f for f in findings if f.status in BAD], listing(findings)


@pytest.mark.parametrize("deep", [False, True])
def test_the_tiny_kimi_is_healthy(deep: bool) -> None:
    findings = run_checks(
        CheckContext(
            draft=open_draft(EXAMPLES / "draft"), target=open_target(EXAMPLES / "target"), deep=deep
        )
    )
    assert not [f for f in findings if f.status in BAD], listing(findings)
    established = (
        ("V11", "captures after target layers [2, 4, 6] (0-based), i.e. boundaries [3, 5, 7]"),
        ("V12", "Set eagle3_layers_to_capture to [2, 4, 6]"),
        ("V14", "fc reads 768 columns = 3 captured layers x 256"),
        ("V16", "differs at 11 of 32 pairs (5-15)"),
        ("V19", "EAGLE-3.1: both are on"),
    )
    for check_id, part in established:
        assert part in of(findings, check_id)[0].message
    left = {f.check_id for f in findings if f.status is Status.NOT_CHECKED}
    assert left == ({"V1"} if deep else {"V1", "V30"})


def test_draft_alone(tmp_path: Path) -> None:
    findings = run_checks(
        Pair(draft={"trtllm_ext_aux_boundaries": [2, 4, 5]}, target=None)(tmp_path)
    )
    assert not [f for f in findings if f.status in BAD], listing(findings)
    left = {f.check_id for f in findings if f.status is Status.NOT_CHECKED}
    assert left == {"V1", "V8", "V13", "V17", "V25", "V27", "V30"}


def test_worst() -> None:
    def finding(status: Status) -> Finding:
        return Finding(check_id="V1", status=status, message="")

    assert worst(()) is Status.PASSED
    assert worst([finding(Status.WARNING), finding(Status.NOT_CHECKED)]) is Status.WARNING
    assert worst([finding(Status.INFO), finding(Status.ERROR)]) is Status.ERROR
