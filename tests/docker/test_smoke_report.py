# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The smoke test's verdicts and its report, on canned results."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import smoke_report as report

GOOD = report.PairResult(
    name="bf16",
    target="target (KimiK25ForConditionalGeneration)",
    draft="draft",
    backends={"MoE": "CUTLASS", "attention": "TRTLLM"},
    exactness=report.Sameness(num_prompts=64),
    stepwise=report.Sameness(num_prompts=64),
    reference=report.Sameness(num_prompts=64, near_ties=2, different=1, worst=0.5),
    host=report.Acceptance(steps=100, drafted=300, accepted=240, per_position=(0.9, 0.8, 0.7)),
    embedded=report.Acceptance(steps=100, drafted=300, accepted=243, per_position=(0.9, 0.8, 0.73)),
    scores=(0.8, 0.8),
    per_iteration=3.4,
)
NVFP4 = replace(GOOD, name="nvfp4", target="target-nvfp4", draft="draft-nvfp4")
FACTS = {"TensorRT-LLM": "1.2.1", "GPU": "B200, SM 100"}
NEAR = report.Sameness(num_prompts=64, near_ties=3, worst=0.1)
DIFFERENT = report.Sameness(num_prompts=64, near_ties=3, different=1, worst=2.0)


def test_acceptance_has_the_definitions_of_the_engine() -> None:
    assert GOOD.host is not None
    assert GOOD.host.length == pytest.approx(3.4)
    assert GOOD.host.rate == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("change", "status", "says"),
    [
        ({}, "PASS", None),
        ({"exactness": NEAR}, "PASS", None),
        ({"exactness": DIFFERENT}, "FAIL", "changed the text"),
        ({"exactness": None}, "FAIL", "changed the text"),
        ({"stepwise": DIFFERENT}, "FAIL", "changed the text"),
        ({"host": None}, "FAIL", "not registered"),
        ({"host": report.Acceptance(steps=0, drafted=0, accepted=0)}, "FAIL", "not registered"),
        ({"host": report.Acceptance(steps=100, drafted=300, accepted=230)}, "FAIL", "0.767"),
        ({"error": "it died"}, "FAIL", "it died"),
        ({"skipped": "no FP4", "exactness": None}, "SKIPPED", None),
    ],
)
def test_what_fails_a_pair(change: dict[str, object], status: str, says: str | None) -> None:
    result = replace(GOOD, **change)
    assert result.status() == status
    assert (says is None) == (not result.failures())
    assert says is None or says in result.failures()[0]


def test_the_comparison_with_the_embedded_target_decides_nothing() -> None:
    assert GOOD.reference is not None
    assert GOOD.reference.verdict == "different"
    assert GOOD.status() == "PASS"


@pytest.mark.parametrize(
    ("results", "code", "says"),
    [
        ([GOOD, NVFP4], 0, "**PASS**"),
        ([GOOD, replace(NVFP4, error="it died")], 3, "**bf16 passes, NVFP4 FAILS**"),
        ([replace(GOOD, error="it died"), NVFP4], 1, "**FAIL**"),
        ([replace(NVFP4, error="it died")], 1, "**FAIL**"),
        ([replace(GOOD, skipped="no")], 1, "**FAIL**"),
        ([], 1, "**FAIL**"),
    ],
)
def test_exit_code_and_last_line(results: list[report.PairResult], code: int, says: str) -> None:
    assert report.exit_code(results) == code
    assert report.render(FACTS, results).rstrip().endswith(says)


def test_report_names_what_ran() -> None:
    text = report.render(FACTS, [replace(GOOD, exactness=NEAR), NVFP4])
    for part in (
        "| TensorRT-LLM | 1.2.1 |",
        "### bf16: PASS",
        "### nvfp4: PASS",
        "MoE CUTLASS, attention TRTLLM",
        "near_tie: 61 of 64 equal, 3 near-ties, 0 different (widest margin 0.1)",
        "acceptance, host: length 3.400, rate 0.800, positions 0.900 / 0.800 / 0.700",
        "difference of the rates 0.0100, at most 0.02",
    ):
        assert part in text


def test_a_log_stays_inside_its_list_item() -> None:
    text = report.render(FACTS, [replace(GOOD, error="it ended\nTraceback\n  line")])
    assert "* **failed**: it ended\n      Traceback\n        line\n" in text


def test_data_can_be_written_and_has_the_rates() -> None:
    data = json.loads(json.dumps(report.to_dict(FACTS, [GOOD])))
    assert data["exit_code"] == 0
    assert data["pairs"][0]["host"]["rate"] == pytest.approx(0.8)
    assert data["pairs"][0]["status"] == "PASS"
