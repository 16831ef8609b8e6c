# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Marks by folder, skips that say why, and settings that make runs repeatable."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

TESTS = Path(__file__).parent
# Tests on host doubles run everywhere; those in this folder need the real host.
FOLDER_MARKS = {("trtllm", "installed"): "trtllm"}

torch.set_num_threads(1)
if not torch.cuda.is_available():
    # Kernels are then interpreted. It must be set before anything imports Triton.
    os.environ.setdefault("TRITON_INTERPRET", "1")

_COMMON = {
    "deadline": None,
    "print_blob": True,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
}
settings.register_profile("ci", derandomize=True, max_examples=25, **_COMMON)
settings.register_profile("thorough", max_examples=300, **_COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def why_not(mark: str) -> str | None:
    """Returns why tests with this mark cannot run here, or None when they can."""
    if mark == "gpu" and not torch.cuda.is_available():
        return "needs a CUDA device, and torch sees none"
    if mark == "trtllm" and importlib.util.find_spec("tensorrt_llm") is None:
        return "needs an installed TensorRT-LLM"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        folders = item.path.parent.relative_to(TESTS).parts
        for prefix, mark in FOLDER_MARKS.items():
            if folders[: len(prefix)] == prefix:
                item.add_marker(mark)
        for mark in ("gpu", "trtllm"):
            reason = why_not(mark) if item.get_closest_marker(mark) else None
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    """Runs a test once per kind of device."""
    return torch.device(request.param)
