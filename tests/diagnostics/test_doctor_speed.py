# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""A checkpoint of half a terabyte is judged in seconds, from its headers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.catalogue import build

MAX_SECONDS = 10.0
MAX_BYTES = 1 << 30
# Processor time of the whole process, imports included: what somebody waits for on an idle machine,
# and the same on a busy one. Memory is the peak of this program alone: ru_maxrss also remembers the
# process that started it.
SCRIPT = """
import io, json, re, sys, time
from pathlib import Path
from tensorrt_llm_ext.cli import main as cli
sys.argv = ["trtllm-ext", "doctor", *sys.argv[1:], "--json"]
output, sys.stdout = sys.stdout, io.StringIO()
try:
    cli.main()
except SystemExit as stop:
    code = int(stop.code or 0)
report, sys.stdout = json.loads(sys.stdout.getvalue()), output
print(json.dumps({
    "seconds": time.process_time(),
    "bytes": 1024 * int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1]),
    "code": code,
    "boundaries": report["captured"]["boundaries"],
    "checks": len({finding["id"] for finding in report["findings"]}),
}))
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("pair")
    target = build("nvidia/Kimi-K2.5-NVFP4", root / "target")
    return target, build("lightseekorg/kimi-k2.5-eagle3-mla", root / "draft")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_pair_is_judged_in_seconds_and_little_memory(folders: tuple[Path, Path]) -> None:
    target, draft = folders
    assert sum(path.stat().st_size for path in target.iterdir()) > 500 << 30
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(target), str(draft)],
        env={**os.environ, "OMP_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout)
    assert result["checks"] == 31
    assert result["code"] == 0
    assert result["boundaries"] == [2, 30, 58]
    assert result["seconds"] <= MAX_SECONDS
    assert result["bytes"] <= MAX_BYTES
