# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""What to compile to learn how a Triton kernel fares on GPUs that are not there.

A module of kernels lists its configurations as `COMPILE_CASES`; `benchmarking.compile_table` finds
and compiles them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

# Triton's capability numbers; it compiles for the architecture-specific targets by itself.
ARCHITECTURES: Final[Mapping[str, int]] = {"sm_90a": 90, "sm_100a": 100, "sm_103a": 103}


@dataclass(frozen=True, kw_only=True, slots=True)
class CompileCase:
    """One configuration of one kernel.

    Attributes:
        name: Unique over all kernels: "<op>/<what is particular>", for instance
            "mla_decode/rows64_bf16".
        kernel: The function under `triton.jit`.
        signature: Triton type of each runtime parameter, in order: "*bf16", "i32", "fp32" ...
        constexprs: Value of each constexpr parameter.
        unaligned: Runtime parameters of which nothing is known; all other pointers and integers
            are taken as divisible by 16, as launches of this package see them.
        num_warps: Warps per program.
        num_stages: Depth of the software pipeline.
        architectures: For which GPUs the kernel's `supports` admits it.
    """

    name: str
    kernel: Any
    signature: Mapping[str, str]
    constexprs: Mapping[str, Any] = field(default_factory=dict)
    unaligned: tuple[str, ...] = ()
    num_warps: int = 4
    num_stages: int = 2
    architectures: tuple[str, ...] = tuple(ARCHITECTURES)


__all__ = ["ARCHITECTURES", "CompileCase"]
