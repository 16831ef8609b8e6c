# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The examples for TensorRT-LLM: the script on a double, the shell lines on a recorder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.trtllm.host import environment
from tests.trtllm.serving import EXAMPLE

SCRIPTS = EXAMPLE.parent / "trtllm"
RECORDER = """#!{python}
import json, os, sys
options = sys.argv[1:]
file = next(w for n, w in zip(options, options[1:]) if n in ("--config", "--extra_llm_api_options"))
line = {{"words": options, "yaml": open(file).read()}}
with open(os.environ["RECORD"], "a") as stream:
    stream.write(json.dumps(line) + "\\n")
"""


def test_the_script_runs_on_a_double(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, SCRIPTS / "llm_api.py", EXAMPLE / "target", EXAMPLE / "draft"],
        env=environment("e2", TLLM_WORKER_USE_SINGLE_PROCESS="1"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    steps = [line for line in done.stdout.splitlines() if line.startswith("[tokens per step")]
    assert len(steps) == 2
    assert all(float(line.strip("[]").rpartition(" ")[2]) > 1.5 for line in steps)


def shell(script: str, tmp_path: Path, version: str, *arguments: str) -> list[dict]:
    """Runs a script with commands that write down how they were called."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("trtllm-serve", "trtllm-bench"):
        (folder / name).write_text(RECORDER.format(python=sys.executable), encoding="utf-8")
        (folder / name).chmod(0o755)
    metadata = tmp_path / "site" / f"tensorrt_llm-{version}.dist-info"
    metadata.mkdir(parents=True)
    text = f"Metadata-Version: 2.1\nName: tensorrt_llm\nVersion: {version}\n"
    (metadata / "METADATA").write_text(text, encoding="utf-8")
    base = environment("e2")
    variables = {
        "PATH": f"{folder}{os.pathsep}{base['PATH']}",
        "PYTHON": sys.executable,
        "PYTHONPATH": f"{tmp_path / 'site'}{os.pathsep}{EXAMPLE.parents[1]}",
        "RECORD": str(tmp_path / "record"),
        "STATS_DIR": str(tmp_path / "stats"),
        "TMPDIR": str(tmp_path),
    }
    done = subprocess.run(
        ["bash", SCRIPTS / script, *arguments],
        env={**base, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in (tmp_path / "record").read_text().splitlines()]


@pytest.mark.parametrize(
    ("version", "option"), [("1.2.1", "--extra_llm_api_options"), ("1.3.0rc20", "--config")]
)
def test_serving(version: str, option: str, tmp_path: Path, unwrapped: Path) -> None:
    target = unwrapped if version.startswith("1.2") else EXAMPLE / "target"
    pair = (str(target), str(EXAMPLE / "draft"))
    (line,) = shell("serve.sh", tmp_path, version, *pair, "1", "--port", "8001")
    words = line["words"]
    assert words[0] == str(target)
    assert words[-2:] == ["--port", "8001"]
    assert option in words
    folder = Path(words[words.index("--custom_module_dirs") + 1])
    assert (folder / "__init__.py").is_file()
    settings = yaml.safe_load(line["yaml"])
    assert settings["speculative_config"]["eagle3_layers_to_capture"] == [2, 4, 6]
    variables = settings["env_overrides"]
    assert variables == {"TRTLLM_EXT_ACCEPT_STATS_DIR": str(tmp_path / "stats")}


def test_benchmarking(tmp_path: Path) -> None:
    pair = (str(EXAMPLE / "target"), str(EXAMPLE / "draft"))
    plain, draft = shell("bench.sh", tmp_path, "1.3.0rc20", "name", *pair, "data.jsonl")
    assert "throughput" in plain["words"]
    without, settings = yaml.safe_load(plain["yaml"]), yaml.safe_load(draft["yaml"])
    assert settings.pop("speculative_config")["max_draft_len"] == 3
    assert without == settings
