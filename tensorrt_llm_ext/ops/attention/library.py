# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The attention ops as `torch.library` ops: metadata as plain tensors, shapes known to fakes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tensorrt_llm_ext.ops.attention.metadata import DecodeMetadata, PrefillMetadata

_NAMESPACE = "trtllm_ext"
_library = torch.library.Library(_NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]
_DECODE = (
    "mla_decode(Tensor q, Tensor latent_cache, Tensor block_table, Tensor positions,"
    " int block_size, int kv_lora_rank, float softmax_scale, Tensor? starts=None,"
    " Tensor? ancestors=None, Tensor? latent_scale=None) -> (Tensor, Tensor)"
)
_PREFILL = (
    "mla_prefill(Tensor q_nope, Tensor q_pe, Tensor latent_cache, Tensor block_table, int start,"
    " int block_size, Tensor w_kc, Tensor w_vc, float softmax_scale, Tensor? latent_scale=None)"
    " -> Tensor"
)


_public: dict[str, Callable[..., Any]] = {}


def _decode(
    q: torch.Tensor,
    latent_cache: torch.Tensor,
    block_table: torch.Tensor,
    positions: torch.Tensor,
    block_size: int,
    kv_lora_rank: int,
    softmax_scale: float,
    starts: torch.Tensor | None = None,
    ancestors: torch.Tensor | None = None,
    latent_scale: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    result: tuple[torch.Tensor, torch.Tensor] = _public["mla_decode"](
        q,
        latent_cache,
        DecodeMetadata(block_table, positions, block_size, starts, ancestors),
        kv_lora_rank=kv_lora_rank,
        softmax_scale=softmax_scale,
        return_lse=True,
        latent_scale=latent_scale,
    )
    return result


def _fake_decode(
    q: torch.Tensor,
    latent_cache: torch.Tensor,
    block_table: torch.Tensor,
    positions: torch.Tensor,
    block_size: int,
    kv_lora_rank: int,
    *_: Any,
    **__: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    wide = torch.promote_types(q.dtype, torch.float32)
    return q.new_empty(*q.shape[:3], kv_lora_rank), q.new_empty(q.shape[:3], dtype=wide)


def _prefill(
    q_nope: torch.Tensor,
    q_pe: torch.Tensor,
    latent_cache: torch.Tensor,
    block_table: torch.Tensor,
    start: int,
    block_size: int,
    w_kc: torch.Tensor,
    w_vc: torch.Tensor,
    softmax_scale: float,
    latent_scale: torch.Tensor | None = None,
) -> torch.Tensor:
    result: torch.Tensor = _public["mla_prefill"](
        q_nope,
        q_pe,
        latent_cache,
        PrefillMetadata(block_table, start, q_nope.shape[0], block_size),
        w_kc=w_kc,
        w_vc=w_vc,
        softmax_scale=softmax_scale,
        latent_scale=latent_scale,
    )
    return result


def _fake_prefill(q_nope: torch.Tensor, *rest: Any, **_: Any) -> torch.Tensor:
    w_vc = rest[6]
    return q_nope.new_empty(*q_nope.shape[:2], w_vc.shape[2])


def register(*, decode: Callable[..., Any], prefill: Callable[..., Any]) -> None:
    """Defines the library ops over the public ones; called once, when the family is imported."""
    _public.update(mla_decode=decode, mla_prefill=prefill)
    rows: tuple[tuple[str, Callable[..., Any], Callable[..., Any]], ...] = (
        (_DECODE, _decode, _fake_decode),
        (_PREFILL, _prefill, _fake_prefill),
    )
    for schema, run, fake in rows:
        name = schema.partition("(")[0]
        _library.define(schema)  # type: ignore[no-untyped-call]
        _library.impl(name, run, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
        torch.library.register_fake(f"{_NAMESPACE}::{name}", fake, lib=_library)
