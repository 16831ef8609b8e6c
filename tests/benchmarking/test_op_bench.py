# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""`bench op` checks before it times: a wrong kernel gets no time, and a wrong rival neither."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from tensorrt_llm_ext.benchmarking import op_bench, op_rivals
from tensorrt_llm_ext.benchmarking.op_bench import bench_op, check_cases
from tensorrt_llm_ext.benchmarking.op_shapes import shapes
from tensorrt_llm_ext.errors import ConfigError
from tensorrt_llm_ext.ops import registry
from tensorrt_llm_ext.ops.norm import torch_kernels

CPU = torch.device("cpu")
OPS = sorted({shape.op for shape in shapes()})


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = op_bench.time_call
    monkeypatch.setattr(op_bench, "time_call", lambda run, device: slow(run, device, seconds=0.0))
    best = op_bench.Roofline(1e10, 1e11)
    monkeypatch.setattr(op_bench, "measure_roofline", lambda device, dtype: best)


@pytest.mark.parametrize("op", OPS)
def test_every_op_has_a_shape_for_a_cpu_that_is_right(op: str) -> None:
    report = bench_op(op, "small", device=CPU)
    assert report.is_right
    timed = [r for r in report.results if r.timing is not None and not r.is_rival]
    assert timed
    assert all(r.num_cases > 0 for r in timed)
    for result in timed:
        assert result.timing is not None
        assert result.timing.low <= result.timing.median <= result.timing.high
        assert result.gb_per_s is not None
        assert result.gb_per_s > 0
    json.dumps(report.to_dict(), allow_nan=False)


def test_every_op_has_model_shapes() -> None:
    for preset in ("kimi", "deepseek"):
        assert {s.op for s in shapes() if s.preset == preset} == set(OPS)
    thunder = [s for s in shapes() if s.preset == "thunder"]
    # 53,185 tokens of 1,152 bytes: 61.3 MB, and the queries.
    assert [s.op for s in thunder] == ["mla_decode"]
    assert thunder[0].num_bytes == pytest.approx(61.3e6, rel=0.01)


@pytest.mark.parametrize("planted", ["wrong_value", "nan"])
def test_a_wrong_kernel_gets_no_time(planted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def rms_norm_pair(*args: Any) -> tuple[torch.Tensor, torch.Tensor]:
        first, second = torch_kernels.latent_norm_pair_torch(*args)
        return first, second * (1.1 if planted == "wrong_value" else float("nan"))

    known = registry._kernels["latent_norm_pair"]
    monkeypatch.setitem(registry._kernels, "latent_norm_pair", dict(known))
    registry.register_kernel("latent_norm_pair", "planted", 1)(rms_norm_pair)
    report = bench_op("latent_norm_pair", "small", kernels=["planted"], device=CPU)
    (result,) = report.results
    assert result.timing is None
    assert result.is_wrong
    assert not report.is_right
    assert "differ" in str(result.reason)


def test_a_wrong_rival_gets_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(inputs: Any) -> op_rivals.Run:
        return lambda: op_rivals._dense_linear(inputs)() + 1

    def failing(inputs: Any) -> op_rivals.Run:
        raise RuntimeError("no such layout")

    rivals = (
        ("wrong", "torch", wrong),
        ("failing", "torch", failing),
        ("absent", "no_such", wrong),
    )
    monkeypatch.setitem(op_bench.RIVALS, "nvfp4_linear", rivals)  # type: ignore[attr-defined]
    report = bench_op("nvfp4_linear", "small", device=CPU)
    found = {r.kernel: r for r in report.results if r.is_rival}
    assert all(r.timing is None for r in found.values())
    assert found["wrong"].is_wrong
    assert found["failing"].reason == "RuntimeError: no such layout"
    assert found["absent"].reason == "no_such is not installed"
    assert report.is_right  # it is about our own kernels


def test_a_kernel_that_takes_no_case_is_not_called_right() -> None:
    count, why = check_cases("mla_decode", "reference", CPU)
    assert count > 0
    assert why is None
    assert op_bench.check_cases("no_such_op", "torch", CPU) == (
        0,
        "no case of the op could be compared with the reference",
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("mla_decod", "small"), "Did you mean mla_decode"),
        (("mla_decode", "huge"), "expected one of small, kimi, deepseek, thunder"),
        (("moe_route", "thunder"), "has no shapes 'thunder'; it has"),
    ],
)
def test_refuses_by_name(arguments: tuple[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        bench_op(*arguments, device=CPU)
    with pytest.raises(ConfigError, match="--kernel is 'fast'"):
        bench_op("mla_decode", "small", kernels=["fast"], device=CPU)


def test_time_call_takes_single_calls() -> None:
    calls = []
    timing = op_bench.time_call(lambda: calls.append(1), CPU)
    assert len(calls) >= 13
    assert timing.median >= 0


@pytest.mark.gpu
@pytest.mark.parametrize("op", OPS)
def test_every_op_on_a_gpu(op: str) -> None:
    assert bench_op(op, "small", device=torch.device("cuda")).is_right
