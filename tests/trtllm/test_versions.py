# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Every host symbol that the package asks for has a row, and nothing else touches the host."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tensorrt_llm_ext.trtllm.versions import PACKAGE, SYMBOLS, symbol_named

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tensorrt_llm_ext" / "trtllm"
ASKING = {"symbol", "optional", "find", "has_parameter"}
NAMES = {row.name for row in SYMBOLS}


def asked_for() -> set[str]:
    """The literal names in calls such as `host.symbol("MLA")`, and the targets of patches."""
    found: set[str] = set()
    for path in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            name = getattr(node.func, "attr", None)
            if name in ASKING and node.args and isinstance(node.args[0], ast.Constant):
                found.add(node.args[0].value)
            found |= {
                word.value.value
                for word in node.keywords
                if word.arg == "target" and isinstance(word.value, ast.Constant)
            }
    return found


def test_all_that_is_asked_for_has_a_row() -> None:
    names = asked_for()
    assert len(names) > 10
    assert names <= NAMES


def test_an_unknown_name_is_a_mistake_of_ours() -> None:
    with pytest.raises(KeyError, match=r"has no row in trtllm/versions\.py"):
        symbol_named("Nothing")


def test_the_host_is_imported_by_host_alone() -> None:
    """ruff's rule, on a file that imports the host, and the only import by name."""
    source = f"import {PACKAGE}\n"
    command = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--select",
        "TID251",
        "--output-format=concise",
    ]
    name = ["--stdin-filename", "tensorrt_llm_ext/trtllm/blocks.py", "-"]
    done = subprocess.run(
        [*command, *name], cwd=ROOT, input=source, capture_output=True, text=True, check=False
    )
    if "No module named ruff" in done.stderr:
        pytest.skip("needs ruff")
    assert done.returncode == 1, done.stdout
    assert "Only trtllm/host.py touches the host" in done.stdout


def test_no_other_module_imports_by_name() -> None:
    """`importlib` and `__import__` would go round the linters."""
    for path in (ROOT / "tensorrt_llm_ext").rglob("*.py"):
        if path == FOLDER / "host.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name not in ("import_module", "__import__", "find_spec"):
                continue
            first = ast.unparse(node.args[0])
            assert first.strip("'\"f").partition(".")[0] != PACKAGE, f"{path}: {first}"
            assert "PACKAGE" not in first, f"{path}: {first}"
