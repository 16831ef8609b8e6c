# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Uniforms, sampling and acceptance as `torch.library` ops."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Final

import torch

from tensorrt_llm_ext.ops.sampling.rows import SamplingRows

_NAMESPACE: Final = "trtllm_ext"
_library = torch.library.Library(_NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]
_FIELDS: Final = tuple(field.name for field in fields(SamplingRows))
_SETTINGS: Final = "".join(f", Tensor? {name}=None" for name in _FIELDS)
_ARGUMENTS: Final[Mapping[str, str]] = {
    "uniform": "(Tensor seeds, Tensor positions) -> Tensor",
    "process_logits": f"(Tensor logits{_SETTINGS}) -> Tensor",
    "sample": f"(Tensor logits, Tensor? uniforms{_SETTINGS}) -> Tensor",
    "verify_greedy": "(Tensor sampled, Tensor drafts, Tensor num_drafts) -> Tensor",
    "verify_rejection": (
        "(Tensor target_probs, Tensor draft_probs, Tensor drafts, Tensor num_drafts,"
        " Tensor accept_uniforms, Tensor sample_uniforms) -> (Tensor, Tensor)"
    ),
    "lm_head_argmax": (
        "(Tensor hidden, Tensor weight, Tensor? d2t, Tensor? block_scale=None,"
        " Tensor? global_scale=None) -> (Tensor, Tensor)"
    ),
    "lm_head_max": (
        "(Tensor hidden, Tensor weight, Tensor? block_scale=None, Tensor? global_scale=None)"
        " -> (Tensor, Tensor)"
    ),
}


def _rows(values: tuple[Any, ...], named: Mapping[str, Any]) -> SamplingRows:
    return SamplingRows(**dict(zip(_FIELDS, values, strict=False)), **named)


def _fake_uniform(seeds: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    return seeds.new_empty(seeds.shape, dtype=torch.float64)


def _fake_processed(logits: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
    return logits.new_empty(logits.shape, dtype=wide)


def _fake_ids(values: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return values.new_empty(values.shape[0], dtype=torch.int64)


def _fake_rejection(
    target_probs: torch.Tensor, draft_probs: torch.Tensor, drafts: torch.Tensor, *_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    batch_size, k = drafts.shape
    return drafts.new_empty(batch_size, k + 1), drafts.new_empty(batch_size)


def _fake_argmax(hidden: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return _fake_ids(hidden), _fake_ids(hidden)


def _fake_max(hidden: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor]:
    wide = torch.promote_types(hidden.dtype, torch.float32)
    return hidden.new_empty(hidden.shape[0], dtype=wide), _fake_ids(hidden)


_FAKES: Final[Mapping[str, Callable[..., Any]]] = {
    "uniform": _fake_uniform,
    "process_logits": _fake_processed,
    "sample": _fake_ids,
    "verify_greedy": _fake_ids,
    "verify_rejection": _fake_rejection,
    "lm_head_argmax": _fake_argmax,
    "lm_head_max": _fake_max,
}


def register(public: Mapping[str, Callable[..., Any]]) -> None:
    """Defines the library ops over the public ones; called once, when the family is imported.

    Args:
        public: Function by name of the op: those of `_ARGUMENTS`.
    """

    def process(logits: torch.Tensor, *values: Any, **named: Any) -> torch.Tensor:
        result: torch.Tensor = public["process_logits"](logits, _rows(values, named))
        return result

    def draw(
        logits: torch.Tensor, uniforms: torch.Tensor | None, *values: Any, **named: Any
    ) -> torch.Tensor:
        result: torch.Tensor = public["sample"](logits, _rows(values, named), uniforms)
        return result

    def argmax(*values: Any, **named: Any) -> tuple[torch.Tensor, torch.Tensor]:
        # Two results may not be one tensor, as they are without d2t.
        draft_ids, target_ids = public["lm_head_argmax"](*values, **named)
        return draft_ids, target_ids.clone() if target_ids is draft_ids else target_ids

    runs = {**public, "process_logits": process, "sample": draw, "lm_head_argmax": argmax}
    for name, arguments in _ARGUMENTS.items():
        _library.define(name + arguments)  # type: ignore[no-untyped-call]
        _library.impl(name, runs[name], "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
        torch.library.register_fake(f"{_NAMESPACE}::{name}", _FAKES[name], lib=_library)
