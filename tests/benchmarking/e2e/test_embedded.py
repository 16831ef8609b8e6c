# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""A real run on the example: same tokens, phases that add up, and a report for machines."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from tensorrt_llm_ext.cli.main import app
from tensorrt_llm_ext.speculative.phases import PHASES

EXAMPLE = Path(__file__).parents[3] / "examples" / "tiny_kimi"


def test_a_small_run() -> None:
    command = ["bench", "e2e", str(EXAMPLE / "target"), "--draft", str(EXAMPLE / "draft")]
    command += ["--num-requests", "4", "--max-tokens", "16", "--concurrency", "1,3"]
    done = CliRunner().invoke(app, [*command, "--rates", "50", "--json"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["text"] in ("identical", "near_tie")
    assert [row["concurrency"] for row in report["levels"]] == [1, 3]
    for row in report["levels"]:
        assert row["with_draft"]["tokens"] == row["without"]["tokens"] > 40
        assert row["acceptance_length"] > 1.5
        assert row["step_ratio"] > 1.0
        assert abs(row["verify_share"] + row["draft_share"] - 1.0) < 1e-6
        parts = report["phase_seconds_per_step"][str(row["concurrency"])]
        assert set(parts) == set(PHASES)
        assert all(seconds > 0 for seconds in parts.values())
        assert parts["verify"] > parts["accept"]
    (opened,) = report["open_loop"]
    assert opened["with_draft"]["requests"] == opened["without"]["requests"] == 4
    assert report["verdict"].startswith("Speculation")
