# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Files and functions stay short enough to be read in one go; kernels are exempt."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "tensorrt_llm_ext"
MAX_MODULE_LINES = 450
MAX_FUNCTION_LINES = 60
KERNEL_FILES = ("torch_kernels.py", "triton_*.py")

MODULES = [
    str(path.relative_to(PACKAGE))
    for path in sorted(PACKAGE.rglob("*.py"))
    if not any(path.match(pattern) for pattern in KERNEL_FILES)
]


def functions(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yields the name and the number of lines of each function, its docstring not counted."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = node.end_lineno - node.lineno + 1
            if ast.get_docstring(node) is not None:
                docstring = node.body[0]
                lines -= docstring.end_lineno - docstring.lineno + 1
            yield node.name, lines


@pytest.mark.parametrize("module", MODULES)
def test_module_is_short(module: str) -> None:
    text = (PACKAGE / module).read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MAX_MODULE_LINES
    too_long = {name: n for name, n in functions(ast.parse(text)) if n > MAX_FUNCTION_LINES}
    assert not too_long, f"{module}: functions over {MAX_FUNCTION_LINES} lines: {too_long}"
