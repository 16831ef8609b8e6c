# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Tracked text names no folder of somebody's machine and no package host; headers are in place."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# A bracket or a backslash in each pattern keeps it from matching this file.
MACHINE_PATHS = r"(?<![\w.}])/(?:[h]ome/\w|[U]sers/\w|[w]ork/|[r]oot/|[o]pt/dev)"
PACKAGE_HOSTS = (
    r"pypi\.org|pythonhosted\.org|pypi\.nvidia\.com|download\.pytorch\.org|npmjs\.org|debian\.org"
    r"|anaconda\.org"
)
FORBIDDEN = re.compile(f"{MACHINE_PATHS}|{PACKAGE_HOSTS}")
# Folders inside a container are nobody's machine.
EXEMPT_FOLDERS = ("docker",)
HEADER = (
    "# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors\n"
    "# SPDX-License-Identifier: Apache-2.0\n"
)


def tracked_files() -> list[Path]:
    """Returns the files that git tracks or would track."""
    result = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode != 0:
        pytest.skip("needs git and a checkout to know which files belong to the project")
    paths = (ROOT / name for name in result.stdout.split("\0") if name)
    return sorted(path for path in paths if path.is_file())


def text_of(path: Path) -> str | None:
    """Returns the content of a text file, or None for a binary one."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None


def test_no_machine_path_and_no_package_host() -> None:
    found = []
    for path in tracked_files():
        relative = path.relative_to(ROOT)
        if relative.parts[0] in EXEMPT_FOLDERS:
            continue
        for number, line in enumerate((text_of(path) or "").splitlines(), start=1):
            match = FORBIDDEN.search(line)
            if match:
                found.append(f"{relative}:{number}: {match.group()}")
    assert not found, "\n".join(found)


def test_python_files_carry_the_licence_header() -> None:
    sources = [path for path in tracked_files() if path.suffix == ".py" and path.stat().st_size]
    missing = [
        str(path.relative_to(ROOT)) for path in sources if HEADER not in (text_of(path) or "")[:300]
    ]
    assert not missing
