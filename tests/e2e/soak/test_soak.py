# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""One minute of the soak: nothing lost, doubled, leaked or left without an answer."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="needs tensorrt-llm-ext[serve]")
SCRIPT = Path(__file__).parents[3] / "benchmarks" / "soak.py"


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="reads memory from /proc")
def test_one_minute_with_64_clients() -> None:
    spec = importlib.util.spec_from_file_location("soak", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["soak"] = module
    spec.loader.exec_module(module)
    report = module.soak(60.0, 64, kept=300)
    assert report["faults"] == []
    assert set(report["requests"]) == {"streamed", "whole", "left", "malformed", "too long"}
    assert report["replayed"].get("identical", 0) + report["replayed"].get("near_tie", 0) == 300
