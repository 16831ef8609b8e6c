# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Other people's kernels for the same work, where they are installed.

A rival's result is compared with ours before its time counts. Rivals get their inputs in the form
that they want; making that form is not timed.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch.nn import functional

from tensorrt_llm_ext.ops.nvfp4 import nvfp4_dequantize

Run = Callable[[], torch.Tensor]


def _sdpa(inputs: Mapping[str, Any]) -> Run:
    """Torch's attention over the gathered latent, which is read for keys and for values."""
    metadata, rank = inputs["metadata"], inputs["kv_lora_rank"]
    cache, q = inputs["latent_cache"], inputs["q"]
    rows = cache.view(-1, cache.shape[-1])[metadata.key_slots]  # [batch, keys, latent]
    keys = rows.unsqueeze(1)
    mask = metadata.key_mask.repeat_interleave(q.shape[2], dim=1).unsqueeze(1)
    flat = q.flatten(1, 2).unsqueeze(1)  # [batch, 1, query_len * heads, latent]

    def run() -> torch.Tensor:
        out = functional.scaled_dot_product_attention(
            flat, keys, keys[..., :rank], attn_mask=mask, scale=inputs["softmax_scale"]
        )
        return out.view(*q.shape[:3], rank)

    return run


def _flash_mla(inputs: Mapping[str, Any]) -> Run:
    module: Any = importlib.import_module("flash_mla")
    metadata, q = inputs["metadata"], inputs["q"]
    lengths = metadata.lengths
    heads = q.shape[1] * q.shape[2]
    plan, splits = module.get_mla_metadata(lengths, heads, 1)
    cache = inputs["latent_cache"].unsqueeze(2)
    table = metadata.block_table.int()

    def run() -> torch.Tensor:
        out: torch.Tensor = module.flash_mla_with_kvcache(
            q,
            cache,
            table,
            lengths,
            inputs["kv_lora_rank"],
            plan,
            splits,
            softmax_scale=inputs["softmax_scale"],
            causal=True,
        )[0]
        return out

    return run


def _flashinfer(inputs: Mapping[str, Any]) -> Run:
    module: Any = importlib.import_module("flashinfer.mla")
    metadata, q, rank = inputs["metadata"], inputs["q"], inputs["kv_lora_rank"]
    batch, query_len, heads, width = q.shape
    size, lengths = metadata.block_size, metadata.lengths
    blocks = (lengths + size - 1) // size
    ends = functional.pad(blocks.cumsum(0), (1, 0)).int()
    columns = torch.arange(metadata.block_table.shape[1], device=q.device)
    indices = metadata.block_table[columns < blocks.unsqueeze(1)].int()
    workspace = torch.empty(128 << 20, dtype=torch.uint8, device=q.device)
    wrapper = module.BatchMLAPagedAttentionWrapper(workspace)
    rows = torch.arange(batch + 1, device=q.device, dtype=torch.int32) * query_len
    cache = inputs["latent_cache"]
    scale = inputs["softmax_scale"]
    sizes = (heads, rank, width - rank, size)
    wrapper.plan(rows, ends, indices, lengths, *sizes, True, scale, q.dtype, cache.dtype)
    flat = q.flatten(0, 1)
    parts = (flat[..., :rank], flat[..., rank:], cache[..., :rank], cache[..., rank:])

    def run() -> torch.Tensor:
        out: torch.Tensor = wrapper.run(*parts)
        return out.view(batch, query_len, heads, rank)

    return run


def _dense_linear(inputs: Mapping[str, Any]) -> Run:
    """The same weight, unpacked beforehand: what dequantizing at load gives."""
    x = inputs["x"]
    scales = inputs["block_scale"], inputs["global_scale"]
    weight = nvfp4_dequantize(inputs["data"], *scales, x.dtype)
    return lambda: functional.linear(x, weight)


def _dense_head(inputs: Mapping[str, Any]) -> Run:
    hidden, weight = inputs["hidden"], inputs["weight"]
    if weight.dtype == torch.uint8:
        scales = inputs["block_scale"], inputs["global_scale"]
        weight = nvfp4_dequantize(weight, *scales, hidden.dtype)
    return lambda: functional.linear(hidden, weight).argmax(dim=-1)


# By op: name of the rival, the package it needs, and how to make its call.
RIVALS: Final[Mapping[str, tuple[tuple[str, str, Callable[[Mapping[str, Any]], Run]], ...]]] = {
    "mla_decode": (
        ("torch SDPA", "torch", _sdpa),
        ("FlashMLA", "flash_mla", _flash_mla),
        ("FlashInfer", "flashinfer", _flashinfer),
    ),
    "nvfp4_linear": (("dense matmul", "torch", _dense_linear),),
    "lm_head_argmax": (("dense matmul and argmax", "torch", _dense_head),),
}


def installed(package: str) -> bool:
    """Whether a rival's package can be imported."""
    return importlib.util.find_spec(package) is not None


__all__ = ["RIVALS", "Run", "installed"]
