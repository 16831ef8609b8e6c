# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The device probe."""

from __future__ import annotations

import pytest
import torch

from tensorrt_llm_ext import devices
from tensorrt_llm_ext.errors import ConfigError


def test_probe_cpu() -> None:
    info = devices.probe("cpu")
    assert info.type == "cpu"
    assert info.sm is None
    assert not info.is_cuda
    assert info.name == str(info)
    assert info.total_memory > 0


@pytest.mark.gpu
def test_probe_cuda() -> None:
    info = devices.probe("cuda")
    assert info.is_cuda
    assert (
        info.sm
        == 10 * torch.cuda.get_device_capability()[0] + (torch.cuda.get_device_capability()[1])
    )
    assert str(info).endswith(f"(sm_{info.sm})")


def test_default_device_exists() -> None:
    assert devices.probe() == devices.probe(devices.default_device())


def test_default_dtypes() -> None:
    assert devices.default_dtype("cpu") is torch.float32
    assert devices.default_dtype(torch.device("cuda")) is torch.bfloat16


@pytest.mark.parametrize("name", ["gpu", "cpu:x", "meta"])
def test_malformed_and_unsupported_devices_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="expected"):
        devices.probe(name)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_absent_cuda_is_refused_with_the_remedy() -> None:
    with pytest.raises(ConfigError, match="--device cpu"):
        devices.probe("cuda")


@pytest.mark.parametrize(
    ("hidden_size", "variable", "expected"), [(256, None, 1), (7168, None, 2), (256, "2", 2)]
)
def test_small_models_get_one_thread_unless_the_user_chose(
    hidden_size: int, variable: str | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = torch.get_num_threads()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if variable is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", variable)
    torch.set_num_threads(2)
    try:
        assert devices.limit_cpu_threads(hidden_size) == expected
    finally:
        torch.set_num_threads(before)
