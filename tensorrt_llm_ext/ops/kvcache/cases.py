# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Hostile inputs for the cache writes: NaN in padding rows, strided views, odd offsets."""

from __future__ import annotations

from typing import Any

import torch

from tensorrt_llm_ext.ops.kvcache import gather_latent, mla_rope_append
from tensorrt_llm_ext.ops.testing import OpCase, randn

_SENTINEL = -12345.0


def _append(
    name: str,
    *,
    num_tokens: int,
    num_heads: int = 2,
    kv_lora_rank: int = 24,
    rope: int = 8,
    nope: int = 16,
    block_size: int = 8,
    padding: tuple[int, ...] = (),
    has_padding: bool | None = None,
    scale: float | None = None,
) -> OpCase:
    def build(
        generator: torch.Generator, dtype: torch.dtype, device: torch.device
    ) -> dict[str, Any]:
        def numbers(*sizes: int) -> torch.Tensor:
            return randn(generator, *sizes, dtype=dtype, device=device)

        num_blocks = 2 + -(-num_tokens // block_size)
        slots = torch.randperm((num_blocks - 1) * block_size, generator=generator)[:num_tokens]
        slots += block_size  # block 0 is nobody's
        cache = torch.full(
            (num_blocks, block_size, kv_lora_rank + rope), _SENTINEL, dtype=dtype, device=device
        )
        cache[0] = 0.0
        # q_pe and k_pe are inner columns of wider projections, as in a model.
        q = numbers(num_tokens, num_heads, nope + rope)
        kv = numbers(num_tokens, kv_lora_rank + rope)
        latent = numbers(num_tokens, kv_lora_rank)
        angles = numbers(num_tokens, rope // 2).double() * 10
        rope_rows = torch.stack([angles.cos(), angles.sin()], dim=-1).to(dtype) * 1.25
        for row in padding:
            slots[row] = -1
            latent[row] = float("nan")
            kv[row] = float("inf")
        return {
            "q_pe": q[..., nope:],
            "k_pe": kv[:, kv_lora_rank:],
            "latent": latent,
            "rope_rows": rope_rows,
            "slot_mapping": slots.to(device),
            "latent_cache": cache,
            "has_padding": bool(padding) if has_padding is None else has_padding,
        } | ({} if scale is None else _in_fp8(cache, scale))

    return OpCase(fn=mla_rope_append, name=name, build=build, mutated=("latent_cache",))


def _in_fp8(cache: torch.Tensor, scale: float) -> dict[str, Any]:
    return {
        "latent_cache": cache.clamp(-448.0, 448.0).to(torch.float8_e4m3fn),
        "latent_scale": torch.tensor(scale, device=cache.device),
    }


def _gather(name: str, num_rows: int) -> OpCase:
    def build(
        generator: torch.Generator, dtype: torch.dtype, device: torch.device
    ) -> dict[str, Any]:
        cache = randn(generator, 5, 4, 7, dtype=dtype, device=device)
        slots = torch.randint(0, 20, (num_rows,), generator=generator)
        return {"latent_cache": cache, "slots": slots.to(device)}

    return OpCase(fn=gather_latent, name=name, build=build)


APPEND_CASES = (
    _append("one_row", num_tokens=1),
    _append("many_rows_heads8", num_tokens=63, num_heads=8, block_size=4),
    _append("kimi_sizes", num_tokens=5, num_heads=4, kv_lora_rank=512, rope=64, nope=128),
    _append("two_dims_odd_offsets", num_tokens=3, rope=2, nope=5, kv_lora_rank=7),
    _append("nan_padding", num_tokens=6, padding=(0, 3, 5)),
    _append("only_padding", num_tokens=2, padding=(0, 1)),
    _append("padding_possible_but_absent", num_tokens=4, has_padding=True),
    _append("no_rows", num_tokens=0),
    _append("fp8", num_tokens=9, scale=0.03125),
    _append("fp8_saturates", num_tokens=4, scale=0.001953125, padding=(1,)),
)
GATHER_CASES = (_gather("repeated_slots", 9), _gather("no_rows", 0))
CASES = APPEND_CASES + GATHER_CASES
