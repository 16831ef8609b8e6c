# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The norms as `torch.library` ops."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

_NAMESPACE: Final = "trtllm_ext"
_library = torch.library.Library(_NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]
_ARGUMENTS: Final[Mapping[str, str]] = {
    "rms_norm": "(Tensor x, Tensor weight, float eps) -> Tensor",
    "add_rms_norm": "(Tensor x, Tensor residual, Tensor weight, float eps) -> (Tensor, Tensor)",
    "draft_input_norm": (
        "(Tensor token_ids, Tensor embedding, Tensor embed_weight, Tensor hidden,"
        " Tensor hidden_weight, float eps) -> Tensor"
    ),
    "draft_input_norm_nvfp4": (
        "(Tensor token_ids, Tensor embedding, Tensor embed_weight, Tensor hidden,"
        " Tensor hidden_weight, float eps, Tensor input_scale) -> (Tensor, Tensor)"
    ),
    "fc_input_norm": "(Tensor captured, Tensor weights, float eps) -> Tensor",
    "latent_norm_pair": (
        "(Tensor first, Tensor second, Tensor first_weight, Tensor second_weight, float eps)"
        " -> (Tensor, Tensor)"
    ),
}


def _like(x: torch.Tensor, *_: Any) -> torch.Tensor:
    return x.new_empty(x.shape)


def _two_like(x: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape)


def _draft_input(token_ids: torch.Tensor, embedding: torch.Tensor, *_: Any) -> torch.Tensor:
    return embedding.new_empty(token_ids.shape[0], 2 * embedding.shape[1])


def _draft_input_nvfp4(
    token_ids: torch.Tensor, embedding: torch.Tensor, *_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    rows, size = token_ids.shape[0], embedding.shape[1]
    data = embedding.new_empty(rows, size, dtype=torch.uint8)
    return data, embedding.new_empty(rows, size // 8, dtype=torch.float8_e4m3fn)


def _pair(first: torch.Tensor, second: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return first.new_empty(first.shape), second.new_empty(second.shape)


_FAKES: Final[Mapping[str, Callable[..., Any]]] = {
    "rms_norm": _like,
    "add_rms_norm": _two_like,
    "draft_input_norm": _draft_input,
    "draft_input_norm_nvfp4": _draft_input_nvfp4,
    "fc_input_norm": _like,
    "latent_norm_pair": _pair,
}


def register(public: Mapping[str, Callable[..., Any]]) -> None:
    """Defines the library ops over the public ones; called once, when the family is imported."""
    for name, run in public.items():
        _library.define(name + _ARGUMENTS[name])  # type: ignore[no-untyped-call]
        _library.impl(name, run, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
        torch.library.register_fake(f"{_NAMESPACE}::{name}", _FAKES[name], lib=_library)
