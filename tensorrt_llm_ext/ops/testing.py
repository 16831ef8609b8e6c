# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Named inputs, tolerances and a comparison: what tests and benchmarks of ops share."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

Outputs = dict[str, torch.Tensor]

# (op, dtype) -> (rtol, atol); the op "" is the default. A reference computes in float64 and rounds
# once, so this is a kernel's own error. A change needs its reason in the commit message.
TOLERANCES: Mapping[tuple[str, torch.dtype], tuple[float, float]] = {
    ("", torch.float64): (1e-10, 1e-10),
    ("", torch.float32): (2e-5, 2e-5),
    ("", torch.float16): (4e-3, 4e-3),
    ("", torch.bfloat16): (2e-2, 2e-2),
    # One step of e4m3: a sum in another order may round to the neighbour.
    ("", torch.float8_e4m3fn): (0.125, 2**-9),
    # Sums of up to a thousand products of unit normals.
    ("moe_experts", torch.float32): (1e-4, 1e-4),
    ("moe_experts", torch.bfloat16): (4e-2, 4e-2),
    ("moe_experts_nvfp4", torch.float32): (1e-4, 1e-4),
    # The reference rounds the scaled weights, too; kernels need not.
    ("moe_experts_nvfp4", torch.bfloat16): (4e-2, 6e-2),
    # A softmax over hundreds of keys whose scores were rounded first.
    ("mla_prefill", torch.float32): (5e-5, 5e-5),
}


@dataclass(frozen=True, kw_only=True)
class OpCase:
    """One named set of inputs of one public op.

    Attributes:
        fn: The public op.
        name: Unique within the op; says what is hostile about the inputs.
        build: Makes the keyword arguments of `fn` from a generator, a dtype and a device. The same
            generator state gives the same inputs.
        mutated: Arguments that the op changes; they are compared like results.
        canonical: Maps results to a form in which equal meanings are equal tensors.
    """

    fn: Callable[..., Any]
    name: str
    build: Callable[[torch.Generator, torch.dtype, torch.device], dict[str, Any]]
    mutated: tuple[str, ...] = ()
    canonical: Callable[[Outputs], Outputs] | None = None

    @property
    def op(self) -> str:
        """Name of the public op."""
        return self.fn.__name__

    def inputs(self, dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
        """Returns fresh inputs, the same ones on every call and on every device."""
        generator = torch.Generator().manual_seed(zlib.crc32(f"{self.op}/{self.name}".encode()))
        return self.build(generator, dtype, device)

    def run(self, dtype: torch.dtype, device: torch.device, kernel: str | None = None) -> Outputs:
        """Runs the op on fresh inputs and returns all that it returned or changed, by name."""
        inputs = self.inputs(dtype, device)
        result = self.fn(**inputs, kernel=kernel)
        results = result if isinstance(result, tuple) else (result,)
        outputs = {f"result {index}": value for index, value in enumerate(results)}
        outputs |= {name: inputs[name] for name in self.mutated}
        return outputs if self.canonical is None else self.canonical(outputs)


def randn(
    generator: torch.Generator, *shape: int, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Returns normal numbers: the same on every device, and in every dtype but for rounding."""
    numbers = torch.randn(*shape, generator=generator, dtype=torch.float64)
    return numbers.to(device=device, dtype=dtype)


def strided(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the same values as the inner columns of a wider tensor whose margins are NaN."""
    *rows, columns = tensor.shape
    wide = torch.full((*rows, columns + 7), float("nan"), dtype=tensor.dtype, device=tensor.device)
    wide[..., 3 : 3 + columns] = tensor
    return wide[..., 3 : 3 + columns]


def tolerance(op: str, dtype: torch.dtype) -> tuple[float, float]:
    """Returns (rtol, atol) of an op's results in a dtype; (0, 0) for integers."""
    if not dtype.is_floating_point:
        return 0.0, 0.0
    return TOLERANCES.get((op, dtype)) or TOLERANCES["", dtype]


def assert_close(name: str, expected: torch.Tensor, got: torch.Tensor, *, op: str = "") -> None:
    """Raises AssertionError with errors and positions unless `got` is as good as `expected`.

    Equal infinities are equal; a NaN is always an error, because no result may contain one.

    Args:
        name: What is compared, for the report.
        expected: Any shape: the reference's result.
        got: The result under test.
        op: Row of the tolerance table.
    """
    if expected.shape != got.shape or expected.dtype != got.dtype:
        raise AssertionError(
            f"{name}: got {got.dtype} {list(got.shape)}, expected {expected.dtype} "
            f"{list(expected.shape)}."
        )
    if expected.numel() == 0:
        return
    rtol, atol = tolerance(op, expected.dtype)
    want, have = expected.double(), got.to(expected.device).double()
    is_equal = want == have  # covers infinities, whose difference is NaN
    error = torch.where(is_equal, 0.0, (want - have).abs())
    is_bad = ~is_equal & ~(error <= atol + rtol * want.abs().nan_to_num(posinf=0.0))
    if not bool(is_bad.any()):
        return
    raise AssertionError(_report(name, want, have, error, is_bad, (rtol, atol)))


def _report(
    name: str,
    want: torch.Tensor,
    have: torch.Tensor,
    error: torch.Tensor,
    is_bad: torch.Tensor,
    limits: tuple[float, float],
) -> str:
    ranked = torch.where(error.isnan(), float("inf"), error).flatten()
    rms = (want - have).square().nanmean().sqrt().item()
    lines = [
        f"{name}: {int(is_bad.sum())} of {is_bad.numel()} elements differ by more than "
        f"rtol {limits[0]:g}, atol {limits[1]:g}.",
        f"  shape {list(want.shape)}, RMS error {rms:.3g}, RMS expected "
        f"{want.square().nanmean().sqrt().item():.3g}, NaN in result {int(have.isnan().sum())}",
    ]
    for flat in ranked.topk(min(3, ranked.numel())).indices.tolist():
        position = [int(i) for i in torch.unravel_index(torch.tensor(flat), want.shape)]
        lines.append(
            f"  at {position}: got {have.flatten()[flat].item():.9g}, "
            f"expected {want.flatten()[flat].item():.9g}"
        )
    return "\n".join(lines)
