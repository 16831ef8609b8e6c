# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The trained example models, for the tests that need them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def has_tiny_kimi() -> bool:
    folder = EXAMPLES / "tiny_kimi"
    return all((folder / name / "config.json").is_file() for name in ("target", "draft"))


@pytest.fixture(scope="session")
def tiny_kimi() -> Path:
    if not has_tiny_kimi():
        pytest.skip("examples/tiny_kimi has no weights in this checkout")
    return EXAMPLES / "tiny_kimi"


def load_script(name: str) -> ModuleType:
    """Imports a script of `benchmarks/`, which is no package."""
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
