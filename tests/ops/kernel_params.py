# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Registered kernels times named cases: a new kernel is tested without a new test."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tensorrt_llm_ext.ops.registry import explain_selection, registered_kernels
from tensorrt_llm_ext.ops.testing import OpCase, assert_close

DTYPES = [pytest.param(torch.float32, id="float32"), pytest.param(torch.float64, id="float64")]


def kernel_params(cases: Iterable[OpCase]) -> list[Any]:
    """(case, kernel) for every kernel of the cases' ops but the reference."""
    return [
        pytest.param(case, kernel.name, id=f"{kernel.name}-{case.name}")
        for case in cases
        for kernel in registered_kernels(case.op)
        if kernel.name != "reference"
    ]


def check_kernel(case: OpCase, kernel: str, dtype: torch.dtype, device: torch.device) -> None:
    """Asserts that the kernel equals the reference, or skips with the reason it declines."""
    inputs = case.inputs(dtype, device)
    reasons = {row.name: row.reason for row in explain_selection(case.op, **inputs)}
    if reasons[kernel] is not None:
        pytest.skip(f"{kernel} declines: {reasons[kernel]}")
    expected = case.run(dtype, device, kernel="reference")
    got = case.run(dtype, device, kernel=kernel)
    assert expected.keys() == got.keys()
    for name, want in expected.items():
        assert_close(f"{case.op}/{case.name}: {name}", want, got[name], op=case.op)


def check_reads_nothing(case: OpCase, dtype: torch.dtype) -> None:
    """Asserts that the op runs on tensors without data, and knows its results' shapes."""
    expected = case.run(dtype, torch.device("cpu"))
    inputs = case.inputs(dtype, torch.device("cpu"))
    with FakeTensorMode() as mode:
        result = case.fn(**{name: _fake(value, mode) for name, value in inputs.items()})
    results = result if isinstance(result, tuple) else (result,)
    if case.canonical is not None:
        return
    for index, value in enumerate(results):
        want = expected[f"result {index}"]
        assert (value.shape, value.dtype) == (want.shape, want.dtype)


def _fake(value: Any, mode: FakeTensorMode) -> Any:
    if isinstance(value, torch.Tensor):
        return mode.from_tensor(value)
    if dataclasses.is_dataclass(value):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        return type(value)(**{name: _fake(field, mode) for name, field in fields.items()})
    return value
