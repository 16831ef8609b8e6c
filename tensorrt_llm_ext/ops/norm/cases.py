# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Hostile inputs for the norms: zero rows, large and tiny rows, strided views."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tensorrt_llm_ext.ops.norm import (
    add_rms_norm,
    draft_input_norm,
    draft_input_norm_nvfp4,
    fc_input_norm,
    latent_norm_pair,
    rms_norm,
)
from tensorrt_llm_ext.ops.testing import OpCase, randn, strided

_EPS = 1e-5
_Numbers = Callable[..., torch.Tensor]


def _case(
    fn: Callable[..., Any],
    name: str,
    arguments: Callable[[torch.Generator, _Numbers], dict[str, Any]],
) -> OpCase:
    def build(
        generator: torch.Generator, dtype: torch.dtype, device: torch.device
    ) -> dict[str, Any]:
        def numbers(*sizes: int) -> torch.Tensor:
            return randn(generator, *sizes, dtype=dtype, device=device)

        return arguments(generator, numbers) | {"eps": _EPS}

    return OpCase(fn=fn, name=name, build=build)


def _rms(name: str, num_tokens: int, hidden_size: int, scale: float = 1.0) -> OpCase:
    return _case(
        rms_norm,
        name,
        lambda _, numbers: {
            "x": numbers(num_tokens, hidden_size) * scale,
            "weight": numbers(hidden_size),
        },
    )


def _add_rms(name: str, num_tokens: int, hidden_size: int) -> OpCase:
    return _case(
        add_rms_norm,
        name,
        lambda _, numbers: {
            "x": numbers(num_tokens, hidden_size),
            "residual": strided(numbers(num_tokens, hidden_size)),
            "weight": numbers(hidden_size),
        },
    )


def _draft_input(name: str, num_tokens: int, hidden_size: int) -> OpCase:
    vocab_size = 11

    def arguments(generator: torch.Generator, numbers: _Numbers) -> dict[str, Any]:
        hidden = numbers(num_tokens, hidden_size)
        ids = torch.randint(0, vocab_size, (num_tokens,), generator=generator)
        return {
            "token_ids": ids.to(hidden.device),
            "embedding": numbers(vocab_size, hidden_size),
            "embed_weight": numbers(hidden_size),
            "hidden": strided(hidden),
            "hidden_weight": numbers(hidden_size),
        }

    return _case(draft_input_norm, name, arguments)


def _draft_input_nvfp4(name: str, num_tokens: int, hidden_size: int) -> OpCase:
    """Rows of +-1 and weights whose products lie far from where codes and scales change over."""

    def arguments(generator: torch.Generator, numbers: _Numbers) -> dict[str, Any]:
        def picked(values: tuple[float, ...], *shape: int) -> torch.Tensor:
            like = numbers(*shape)
            which = torch.randint(0, len(values), shape, generator=generator)
            return torch.tensor(values)[which].to(like)

        hidden = picked((-1.0, 1.0), num_tokens, hidden_size)
        return {
            "token_ids": torch.randint(0, 5, (num_tokens,), generator=generator).to(hidden.device),
            "embedding": picked((-1.0, 1.0), 5, hidden_size),
            "embed_weight": picked((0.5, 1.0, 2.0, 3.0), hidden_size),
            "hidden": strided(hidden),
            "hidden_weight": picked((0.5, 1.0, 2.0, 3.0), hidden_size),
            "input_scale": torch.tensor(0.004, device=hidden.device),
        }

    return _case(draft_input_norm_nvfp4, name, arguments)


def _fc_input(name: str, num_tokens: int, num_captured: int, size: int) -> OpCase:
    return _case(
        fc_input_norm,
        name,
        lambda _, numbers: {
            "captured": numbers(num_tokens, num_captured * size),
            "weights": numbers(num_captured, size),
        },
    )


def _pair(name: str, num_tokens: int, first: int, second: int) -> OpCase:
    """Two slices of one projection's result, with rotary columns behind them."""

    def inputs(_: Any, numbers: Any) -> dict[str, Any]:
        projected = numbers(num_tokens, first + second + 6)
        return {
            "first": projected[:, :first],
            "second": projected[:, first : first + second],
            "first_weight": numbers(first),
            "second_weight": numbers(second),
        }

    return _case(latent_norm_pair, name, inputs)


RMS_CASES = (
    _rms("one_row", 1, 256),
    _rms("many_rows_odd_width", 63, 17),
    _rms("zero_rows_are_zero", 2, 8, scale=0.0),
    _rms("large_values", 3, 32, scale=1e4),
    _rms("tiny_values", 3, 32, scale=1e-4),
    _rms("no_rows", 0, 16),
    _case(
        rms_norm,
        "strided_rows",
        lambda _, numbers: {"x": strided(numbers(4, 24)), "weight": numbers(24)},
    ),
)
ADD_RMS_CASES = (
    _add_rms("one_row", 1, 256),
    _add_rms("many_rows_odd_width", 31, 17),
    _add_rms("no_rows", 0, 16),
)
DRAFT_INPUT_CASES = (
    _draft_input("one_row", 1, 64),
    _draft_input("many_rows_odd_width", 19, 13),
    _draft_input("no_rows", 0, 8),
)
FC_INPUT_CASES = (
    _fc_input("three_states", 5, 3, 32),
    _fc_input("one_state", 1, 1, 16),
    _fc_input("five_states_odd_width", 2, 5, 7),
    _fc_input("no_rows", 0, 3, 8),
)
PAIR_CASES = (
    _pair("slices_of_one_row", 1, 24, 8),
    _pair("slices_of_many_rows", 17, 12, 31),
    _pair("no_rows", 0, 8, 4),
)
DRAFT_INPUT_NVFP4_CASES = (
    _draft_input_nvfp4("one_row", 1, 64),
    _draft_input_nvfp4("many_rows", 9, 48),
    _draft_input_nvfp4("no_rows", 0, 16),
)
CASES = (
    RMS_CASES
    + ADD_RMS_CASES
    + DRAFT_INPUT_CASES
    + DRAFT_INPUT_NVFP4_CASES
    + FC_INPUT_CASES
    + PAIR_CASES
)
