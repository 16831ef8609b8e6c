# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Times single ops, after their results were checked.

A kernel is compared with its reference over the op's hostile cases, then with the portable path at
the timed shape. Times are medians of single calls between CUDA events with the L2 cache flushed
before each. What a device can do at best is measured in the same run.
"""

from __future__ import annotations

import functools
import importlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import torch

from tensorrt_llm_ext import _triton, devices
from tensorrt_llm_ext.benchmarking.op_rivals import RIVALS, installed
from tensorrt_llm_ext.benchmarking.op_shapes import PRESETS, OpShape, shapes
from tensorrt_llm_ext.errors import ConfigError, nearest
from tensorrt_llm_ext.ops.registry import explain_selection, registered_kernels
from tensorrt_llm_ext.ops.testing import OpCase, assert_close

_FAMILIES: Final = ("attention", "kvcache", "moe", "norm", "nvfp4", "sampling")
_PORTABLE: Final[Mapping[str, str]] = {"moe_experts": "torch_dense"}
_FLUSH_BYTES: Final = 256 << 20
_COPY_BYTES: Final[Mapping[bool, int]] = {True: 4 << 30, False: 64 << 20}
_MATMUL_SIZE: Final[Mapping[bool, int]] = {True: 8192, False: 768}
_DTYPES: Final = (torch.float32, torch.bfloat16, torch.float16)
_WIDE_ONLY: Final = ("moe_route",)  # router logits are float32


@dataclass(frozen=True)
class Roofline:
    """What the device did at best, in this run.

    Attributes:
        bytes_per_s: Of a large copy, reads and writes counted.
        flops_per_s: Of a square matrix product in the timed dtype.
    """

    bytes_per_s: float
    flops_per_s: float


@dataclass(frozen=True)
class Timing:
    """Seconds of one call.

    Attributes:
        median: Of all calls.
        low: First decile.
        high: Last decile.
    """

    median: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class OpResult:
    """One kernel at one shape.

    Attributes:
        op, preset, shape, kernel: What was run; a rival's name as kernel.
        is_rival: Whether it is somebody else's.
        num_cases: Hostile cases in which it equalled the reference.
        timing: None where the check failed, or it cannot run.
        reason: Why there is no time.
        gb_per_s, tflop_per_s: By the least bytes and arithmetic that the shape needs.
        roofline: Least time of the shape on this device over the median.
    """

    op: str
    preset: str
    shape: str
    kernel: str
    is_rival: bool = False
    num_cases: int = 0
    timing: Timing | None = None
    reason: str | None = None
    is_wrong: bool = False
    gb_per_s: float | None = None
    tflop_per_s: float | None = None
    roofline: float | None = None


@dataclass(frozen=True, kw_only=True)
class OpReport:
    """All results of a run."""

    device: str
    dtype: str
    is_gpu: bool
    roofline: Roofline
    results: tuple[OpResult, ...] = field(default=())

    @property
    def is_right(self) -> bool:
        """Whether no check of ours failed."""
        return not any(result.is_wrong and not result.is_rival for result in self.results)

    def to_dict(self) -> dict[str, Any]:
        """Returns everything as plain data."""
        return asdict(self)


def bench_op(
    op: str,
    preset: str | None = None,
    *,
    kernels: Sequence[str] = (),
    device: torch.device | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> OpReport:
    """Checks and times the kernels of one op.

    Args:
        op: Public op, or "verify" for `sample` and `verify_greedy`.
        preset: One of `PRESETS`; the model's shapes on a GPU and the small ones elsewhere if None.
        kernels: Only these; all that can run when empty.
        device: Where; the default device when None.
        progress: Told what is being done.

    Raises:
        ConfigError: If there is no such op, preset or kernel.
    """
    for family in _FAMILIES:  # their kernels register when they are imported
        importlib.import_module(f"tensorrt_llm_ext.ops.{family}.cases")
    device = device or devices.default_device()
    info = devices.probe(device)
    preset = preset or ("kimi" if info.is_cuda else "small")
    wanted = _wanted(op, preset)
    _check_kernels({shape.op for shape in wanted}, kernels)
    dtype = torch.bfloat16 if info.is_cuda else torch.float32
    progress("roofline")
    roofline = measure_roofline(device, dtype)
    results = [
        result
        for shape in wanted
        for result in _bench_shape(shape, kernels, device, dtype, roofline, progress)
    ]
    return OpReport(
        device=str(info),
        dtype=str(dtype).removeprefix("torch."),
        is_gpu=info.is_cuda,
        roofline=roofline,
        results=tuple(results),
    )


def _wanted(op: str, preset: str) -> tuple[OpShape, ...]:
    if preset not in PRESETS:
        raise ConfigError(f"--shapes is {preset!r}, expected one of {', '.join(PRESETS)}.")
    names = {"sample", "verify_greedy"} if op == "verify" else {op}
    every = shapes()
    known = sorted({shape.op for shape in every} | {"verify"})
    if op not in known:
        hint = nearest(op, known)
        meant = f" Did you mean {hint}?" if hint else ""
        raise ConfigError(f"There is no op {op!r} to time.{meant} Known: {', '.join(known)}.")
    found = tuple(s for s in every if s.op in names and s.preset == preset)
    if not found:
        has = sorted({s.preset for s in every if s.op in names})
        raise ConfigError(f"{op} has no shapes {preset!r}; it has {', '.join(has)}.")
    return found


def _check_kernels(ops: set[str], kernels: Sequence[str]) -> None:
    known = {kernel.name for op in ops for kernel in registered_kernels(op)}
    for name in kernels:
        if name not in known:
            raise ConfigError(f"--kernel is {name!r}, expected one of {', '.join(sorted(known))}.")


def _bench_shape(
    shape: OpShape,
    kernels: Sequence[str],
    device: torch.device,
    dtype: torch.dtype,
    roofline: Roofline,
    progress: Callable[[str], None],
) -> Iterator[OpResult]:
    run = _public(shape.op)
    inputs = shape.build(device, dtype)
    reasons = {row.name: row.reason for row in explain_selection(shape.op, **inputs)}
    common: dict[str, Any] = {
        "op": shape.op,
        "preset": shape.preset,
        "shape": shape.name,
    }
    portable = _PORTABLE.get(shape.op, "torch")
    want = run(**shape.build(device, dtype), kernel=portable)
    for kernel in _candidates(shape.op, kernels, device):
        progress(f"{shape.op} {shape.name} {kernel}")
        if reasons[kernel] is not None:
            yield OpResult(**common, kernel=kernel, reason=f"declines: {reasons[kernel]}")
            continue
        count, wrong = check_cases(shape.op, kernel, device)
        wrong = wrong or _difference(shape, want, run(**inputs, kernel=kernel))
        if wrong is not None:
            yield OpResult(**common, kernel=kernel, reason=wrong, num_cases=count, is_wrong=True)
            continue
        timing = time_call(functools.partial(run, **inputs, kernel=kernel), device)
        yield OpResult(
            **common,
            kernel=kernel,
            num_cases=count,
            timing=timing,
            **_rates(shape, timing, roofline),
        )
    first = want[0] if isinstance(want, tuple) else want
    for name, package, make in () if kernels else RIVALS.get(shape.op, ()):
        progress(f"{shape.op} {shape.name} {name}")
        yield _rival(shape, (name, package, make), inputs, first, device, roofline)


def _candidates(op: str, kernels: Sequence[str], device: torch.device) -> list[str]:
    names = [k.name for k in registered_kernels(op) if k.name != "reference"]
    if kernels:
        return [name for name in names if name in kernels]
    # The interpreter's time says nothing.
    skipped = {"triton"} if _triton.INTERPRETING or not devices.probe(device).is_cuda else set()
    return [name for name in names if name not in skipped]


def _public(op: str) -> Callable[..., Any]:
    for family in _FAMILIES:
        module = importlib.import_module(f"tensorrt_llm_ext.ops.{family}")
        if hasattr(module, op):
            run: Callable[..., Any] = getattr(module, op)
            return run
    raise ConfigError(f"There is no public op {op!r}.")


def _cases(op: str) -> Iterator[OpCase]:
    for family in _FAMILIES:
        module = importlib.import_module(f"tensorrt_llm_ext.ops.{family}.cases")
        yield from (case for case in module.CASES if case.op == op)


def check_cases(op: str, kernel: str, device: torch.device) -> tuple[int, str | None]:
    """Compares a kernel with its reference over the op's hostile cases.

    Returns:
        How many were compared, and the first difference, or why none could be compared.
    """
    count = 0
    for case in _cases(op):
        for dtype in _DTYPES[:1] if op in _WIDE_ONLY else _DTYPES:
            reasons = {
                r.name: r.reason for r in explain_selection(op, **case.inputs(dtype, device))
            }
            if reasons[kernel] is not None:
                continue
            want = case.run(dtype, device, kernel="reference")
            got = case.run(dtype, device, kernel=kernel)
            try:
                for name, expected in want.items():
                    assert_close(f"{op}/{case.name}: {name}", expected, got[name], op=op)
            except AssertionError as error:
                return count, str(error)
            count += 1
    return count, None if count else "no case of the op could be compared with the reference"


def _difference(shape: OpShape, want: Any, got: Any) -> str | None:
    """How a result at the timed shape differs from the portable path's, or None."""
    if shape.op == "moe_route":  # the order of a token's experts is free
        want, got = (
            (ids.sort(dim=1).values, weights.sort(dim=1).values) for weights, ids in (want, got)
        )
    pairs = zip(*((x if isinstance(x, tuple) else (x,)) for x in (want, got)), strict=True)
    for index, (expected, found) in enumerate(pairs):
        if expected.dtype == torch.int64 and shape.op == "lm_head_argmax":
            # Logits are rounded differently; few rows may fall on the other side of a tie.
            if float((expected != found).float().mean()) > _TIES:
                return f"result {index}: more than {_TIES:.0%} of the tokens differ"
            continue
        try:
            assert_close(f"{shape.op}/{shape.name}: result {index}", expected, found, op=shape.op)
        except AssertionError as error:
            return str(error)
    return None


_TIES: Final = 0.25


def _rival(
    shape: OpShape,
    rival: tuple[str, str, Callable[[Mapping[str, Any]], Callable[[], torch.Tensor]]],
    inputs: Mapping[str, Any],
    want: torch.Tensor,
    device: torch.device,
    roofline: Roofline,
) -> OpResult:
    name, package, make = rival
    common: dict[str, Any] = {"op": shape.op, "preset": shape.preset, "shape": shape.name}
    common |= {"kernel": name, "is_rival": True}
    if not installed(package):
        return OpResult(**common, reason=f"{package} is not installed")
    try:
        run = make(inputs)
        wrong = _difference(shape, want, run())
    except Exception as error:  # noqa: BLE001 - another library's failure is its result
        return OpResult(**common, reason=f"{type(error).__name__}: {str(error)[:200]}")
    if wrong is not None:
        return OpResult(**common, reason=wrong, is_wrong=True)
    timing = time_call(run, device)
    return OpResult(**common, timing=timing, **_rates(shape, timing, roofline))


def _rates(shape: OpShape, timing: Timing, roofline: Roofline) -> dict[str, Any]:
    least = max(shape.num_bytes / roofline.bytes_per_s, shape.flops / roofline.flops_per_s)
    return {
        "gb_per_s": shape.num_bytes / timing.median / 1e9,
        "tflop_per_s": shape.flops / timing.median / 1e12,
        "roofline": least / timing.median,
    }


def time_call(run: Callable[[], Any], device: torch.device, *, seconds: float = 0.3) -> Timing:
    """Times single calls for a while, at least ten of them.

    Args:
        run: The call.
        device: Where it runs.
        seconds: Roughly how long to measure.
    """
    for _ in range(3):
        run()
    taken: list[float] = []
    measure = _cuda_timer(device) if devices.probe(device).is_cuda else _cpu_seconds
    deadline = time.perf_counter() + seconds
    while len(taken) < 10 or (time.perf_counter() < deadline and len(taken) < 1000):
        taken.append(measure(run))
    deciles = statistics.quantiles(taken, n=10)
    return Timing(median=statistics.median(taken), low=deciles[0], high=deciles[-1])


def _cpu_seconds(run: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def _cuda_timer(device: torch.device) -> Callable[[Callable[[], Any]], float]:
    flush = torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device=device)

    def measure(run: Callable[[], Any]) -> float:
        event: Any = torch.cuda.Event
        begin, end = event(enable_timing=True), event(enable_timing=True)
        flush.zero_()
        begin.record()
        run()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    return measure


def measure_roofline(device: torch.device, dtype: torch.dtype) -> Roofline:
    """Measures a large copy and a large matrix product."""
    is_cuda = devices.probe(device).is_cuda
    source = torch.empty(_COPY_BYTES[is_cuda] // 2, dtype=torch.uint8, device=device)
    to = torch.empty_like(source)
    copy = time_call(lambda: to.copy_(source), device)
    size = _MATMUL_SIZE[is_cuda]
    a = torch.ones(size, size, dtype=dtype, device=device)
    product = time_call(lambda: a @ a, device)
    return Roofline(2 * source.numel() / copy.low, 2 * size**3 / product.low)


__all__ = ["OpReport", "OpResult", "bench_op", "check_cases", "measure_roofline", "time_call"]
