# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The same ops as `torch.library` ops, for hosts, torch.compile and exported graphs.

Each calls the public op, so it obeys the registry. The fakes know shapes without running anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tensorrt_llm_ext.ops.nvfp4.format import BLOCK_SIZE

_NAMESPACE = "trtllm_ext"
_library = torch.library.Library(_NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]
_SCHEMAS = (
    "nvfp4_quantize(Tensor x, Tensor global_scale, bool activation=False) -> (Tensor, Tensor)",
    "nvfp4_dequantize(Tensor data, Tensor block_scale, Tensor global_scale, ScalarType dtype)"
    " -> Tensor",
    "nvfp4_fake_quantize(Tensor x, Tensor global_scale, bool activation=False) -> Tensor",
    "nvfp4_linear(Tensor x, Tensor data, Tensor block_scale, Tensor global_scale,"
    " Tensor? input_scale=None) -> Tensor",
)


def _fake_quantize(
    x: torch.Tensor, global_scale: torch.Tensor, activation: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    rows, columns = x.shape
    return (
        x.new_empty(rows, columns // 2, dtype=torch.uint8),
        x.new_empty(rows, columns // BLOCK_SIZE, dtype=torch.float8_e4m3fn),
    )


def _fake_dequantize(
    data: torch.Tensor, block_scale: torch.Tensor, global_scale: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    return data.new_empty(data.shape[0], 2 * data.shape[1], dtype=dtype)


def _fake_fake_quantize(
    x: torch.Tensor, global_scale: torch.Tensor, activation: bool = False
) -> torch.Tensor:
    return x.new_empty(x.shape)


def _fake_linear(
    x: torch.Tensor,
    data: torch.Tensor,
    block_scale: torch.Tensor,
    global_scale: torch.Tensor,
    input_scale: torch.Tensor | None = None,
) -> torch.Tensor:
    return x.new_empty(x.shape[0], data.shape[0])


def register(
    *,
    quantize: Callable[..., Any],
    dequantize: Callable[..., Any],
    fake_quantize: Callable[..., Any],
    linear: Callable[..., Any],
) -> None:
    """Defines the library ops over the public ones; called once, when the family is imported."""

    def quantize_op(
        x: torch.Tensor, global_scale: torch.Tensor, activation: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        result: tuple[torch.Tensor, torch.Tensor] = quantize(x, global_scale, activation=activation)
        return result

    def fake_quantize_op(
        x: torch.Tensor, global_scale: torch.Tensor, activation: bool = False
    ) -> torch.Tensor:
        result: torch.Tensor = fake_quantize(x, global_scale, activation=activation)
        return result

    rows: tuple[tuple[str, Callable[..., Any], Callable[..., Any]], ...] = (
        ("nvfp4_quantize", quantize_op, _fake_quantize),
        ("nvfp4_dequantize", dequantize, _fake_dequantize),
        ("nvfp4_fake_quantize", fake_quantize_op, _fake_fake_quantize),
        ("nvfp4_linear", linear, _fake_linear),
    )
    for schema, (name, run, fake) in zip(_SCHEMAS, rows, strict=True):
        _library.define(schema)  # type: ignore[no-untyped-call]
        _library.impl(name, run, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
        torch.library.register_fake(f"{_NAMESPACE}::{name}", fake, lib=_library)
