# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Importing the package, its errors, variables and configs costs next to nothing."""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys

import pytest

import tensorrt_llm_ext
import tensorrt_llm_ext.configs

HEAVY = {
    "fastapi",
    "jinja2",
    "matplotlib",
    "modelopt",
    "numpy",
    "pydantic",
    "rich",
    "safetensors",
    "tensorrt_llm",
    "tokenizers",
    "torch",
    "transformers",
    "triton",
    "typer",
}
LIGHT_MODULES = [
    "tensorrt_llm_ext",
    "tensorrt_llm_ext.devices",
    "tensorrt_llm_ext.envs",
    "tensorrt_llm_ext.errors",
    *(
        f"tensorrt_llm_ext.configs.{module.name}"
        for module in pkgutil.iter_modules(tensorrt_llm_ext.configs.__path__)
    ),
]


def loaded_by(statement: str) -> set[str]:
    """Returns the top-level modules that a fresh interpreter has after `statement`."""
    code = f"{statement}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return {name.partition(".")[0] for name in json.loads(result.stdout)}


def test_light_modules_load_nothing_heavy() -> None:
    loaded = loaded_by("\n".join(f"import {name}" for name in LIGHT_MODULES))
    assert not loaded & HEAVY


def test_public_names_are_listed_before_they_are_imported() -> None:
    assert set(tensorrt_llm_ext.__all__) <= set(dir(tensorrt_llm_ext))
    assert set(tensorrt_llm_ext.__all__) == {*tensorrt_llm_ext._HOMES, "__version__"}


@pytest.mark.parametrize("name", sorted(tensorrt_llm_ext._HOMES))
def test_public_name_resolves(name: str) -> None:
    assert getattr(tensorrt_llm_ext, name).__name__ == name


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'LLMs'"):
        _ = tensorrt_llm_ext.LLMs
