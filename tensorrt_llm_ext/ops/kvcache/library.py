# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""`mla_rope_append` as a `torch.library` op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

_NAMESPACE: Final = "trtllm_ext"
_library = torch.library.Library(_NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]
_SCHEMA: Final = (
    "mla_rope_append(Tensor q_pe, Tensor k_pe, Tensor latent, Tensor rope_rows,"
    " Tensor slot_mapping, Tensor(a!) latent_cache, *, bool has_padding,"
    " Tensor? latent_scale=None) -> Tensor"
)


def _fake(q_pe: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return q_pe.new_empty(q_pe.shape)


def register(append: Callable[..., Any]) -> None:
    """Defines the library op over the public one; called once, when the family is imported."""

    def run(*args: Any, **kwargs: Any) -> torch.Tensor:
        # A library op may not return a view of a wider tensor with other strides than its fake.
        rotated: torch.Tensor = append(*args, **kwargs)
        return rotated.contiguous()

    _library.define(_SCHEMA)  # type: ignore[no-untyped-call]
    _library.impl("mla_rope_append", run, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"{_NAMESPACE}::mla_rope_append", _fake, lib=_library)
