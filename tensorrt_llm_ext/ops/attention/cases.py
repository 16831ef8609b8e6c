# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Hostile inputs for the attention ops.

In every case the cache holds NaN wherever no sequence wrote, unused block-table entries are out of
range, and the blocks of the sequences are interleaved at random.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tensorrt_llm_ext.ops.attention import mla_decode, mla_prefill
from tensorrt_llm_ext.ops.attention.metadata import DecodeMetadata, PrefillMetadata
from tensorrt_llm_ext.ops.testing import OpCase, randn, strided

_OUT_OF_RANGE = (2_147_480_000, -7)


@dataclass(frozen=True, kw_only=True)
class _Shape:
    """Sizes of one case; `lengths` are cached keys before the query rows."""

    lengths: tuple[int, ...] = (0, 1, 63, 130)
    query_len: int = 1
    query_lens: tuple[int, ...] | None = None  # per sequence, when some rows are padding
    num_heads: int = 2
    kv_lora_rank: int = 32
    rope: int = 8
    nope: int = 16
    v_head_dim: int = 12
    block_size: int = 16
    spare_columns: int = 2
    is_strided: bool = False
    return_lse: bool = False
    parents: tuple[int, ...] = ()  # of each node, when the query rows are a tree; -1 is the root
    is_fp8: bool = False

    @property
    def latent_size(self) -> int:
        return self.kv_lora_rank + self.rope


def _paged_cache(
    shape: _Shape,
    seq_lens: list[int],
    generator: torch.Generator,
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns a latent cache with these sequences in it, and their block table."""
    size = shape.block_size
    counts = [-(-length // size) for length in seq_lens]
    num_blocks = sum(counts) + 3
    ids = (torch.randperm(num_blocks - 1, generator=generator) + 1).tolist()
    cache = torch.full((num_blocks, size, shape.latent_size), float("nan"), dtype=torch.float64)
    cache[0] = 0.0
    table = torch.tensor(_OUT_OF_RANGE).repeat(
        len(seq_lens), (max(counts) + shape.spare_columns + 1) // 2
    )
    for row, length in enumerate(seq_lens):
        for column in range(counts[row]):
            block = ids.pop()
            table[row, column] = block
            used = min(size, length - column * size)
            cache[block, :used] = torch.randn(
                used, shape.latent_size, generator=generator, dtype=torch.float64
            )
    return cache.to(device=device, dtype=dtype), table.to(device)


def _decode(shape: _Shape, name: str) -> OpCase:
    def build(
        generator: torch.Generator, dtype: torch.dtype, device: torch.device
    ) -> dict[str, Any]:
        query_lens = shape.query_lens or (shape.query_len,) * len(shape.lengths)
        seq_lens = [length + rows for length, rows in zip(shape.lengths, query_lens, strict=True)]
        cache, table = _paged_cache(shape, seq_lens, generator, dtype, device)
        rows = torch.arange(shape.query_len)
        last = torch.tensor(seq_lens).unsqueeze(1) - 1
        positions = torch.minimum(torch.tensor(shape.lengths).unsqueeze(1) + rows, last)
        q = randn(
            generator,
            *(len(shape.lengths), shape.query_len, shape.num_heads, shape.latent_size),
            dtype=dtype,
            device=device,
        )
        metadata = DecodeMetadata(table, positions.to(device), shape.block_size)
        if shape.parents:
            metadata.starts = torch.tensor(shape.lengths, device=device)
            bits = torch.tensor(ancestors(shape.parents), device=device)
            metadata.ancestors = bits.expand(len(shape.lengths), -1).contiguous()
        inputs = {
            "q": strided(q) if shape.is_strided else q,
            "latent_cache": cache,
            "metadata": metadata,
            "kv_lora_rank": shape.kv_lora_rank,
            "softmax_scale": (shape.nope + shape.rope) ** -0.5,
            "return_lse": shape.return_lse,
        }
        return _as_fp8(inputs) if shape.is_fp8 else inputs

    return OpCase(fn=mla_decode, name=name, build=build)


def ancestors(parents: Sequence[int]) -> list[int]:
    """Returns for each node the bits of itself and its ancestors; parents come before children."""
    bits: list[int] = []
    for node, parent in enumerate(parents):
        word = 1 << node | (bits[parent] if parent >= 0 else 0)
        bits.append(word - (1 << 64) if word >> 63 else word)  # as int64 holds it
    return bits


def _as_fp8(inputs: dict[str, Any]) -> dict[str, Any]:
    """Stores the cache in e4m3 with a scale, as an fp8 KV cache does."""
    scale = torch.tensor(0.125, dtype=torch.float32, device=inputs["latent_cache"].device)
    inputs["latent_cache"] = (inputs["latent_cache"] / scale).to(torch.float8_e4m3fn)
    return inputs | {"latent_scale": scale}


def _prefill(shape: _Shape, name: str) -> OpCase:
    """A chunk of `query_len` rows after `lengths[0]` cached positions."""

    def build(
        generator: torch.Generator, dtype: torch.dtype, device: torch.device
    ) -> dict[str, Any]:
        start, num_tokens = shape.lengths[0], shape.query_len
        cache, table = _paged_cache(shape, [start + num_tokens], generator, dtype, device)

        def numbers(*sizes: int) -> torch.Tensor:
            return randn(generator, *sizes, dtype=dtype, device=device)

        heads, rank = shape.num_heads, shape.kv_lora_rank
        q = numbers(num_tokens, heads, shape.nope + shape.rope)
        q_nope, q_pe = q[..., : shape.nope], q[..., shape.nope :]  # views, as a model makes them
        inputs = {
            "q_nope": q_nope,
            "q_pe": q_pe,
            "latent_cache": cache,
            "metadata": PrefillMetadata(table[0], start, num_tokens, shape.block_size),
            "w_kc": numbers(heads, shape.nope, rank) * rank**-0.5,
            "w_vc": numbers(heads, rank, shape.v_head_dim) * rank**-0.5,
            "softmax_scale": (shape.nope + shape.rope) ** -0.5,
        }
        return _as_fp8(inputs) if shape.is_fp8 else inputs

    return OpCase(fn=mla_prefill, name=name, build=build)


DECODE_CASES = (
    _decode(_Shape(), "mixed_lengths_block16"),
    _decode(_Shape(lengths=(0,), num_heads=1), "first_token_one_head"),
    _decode(_Shape(lengths=(63,), block_size=64, num_heads=4), "one_sequence_full_block64"),
    _decode(_Shape(lengths=(64,), block_size=64, num_heads=4), "one_sequence_new_block64"),
    _decode(_Shape(query_len=4, block_size=4, return_lse=True), "verify4_block4_lse"),
    _decode(_Shape(lengths=(37,), query_len=9, num_heads=8), "one_sequence_verify9_heads8"),
    _decode(
        _Shape(query_len=5, query_lens=(1, 5, 2, 3), block_size=8, return_lse=True),
        "padded_rows_lse",
    ),
    _decode(_Shape(is_strided=True, query_len=2, num_heads=3), "strided_query"),
    _decode(_Shape(kv_lora_rank=20, rope=6, num_heads=5, block_size=24), "odd_sizes_block24"),
    _decode(
        _Shape(kv_lora_rank=512, rope=64, nope=128, num_heads=4, lengths=(199, 30), query_len=3),
        "kimi_latent",
    ),
    _decode(_Shape(lengths=(1000,), block_size=32, spare_columns=0), "long_no_spare_columns"),
    _decode(
        _Shape(query_len=7, parents=(-1, 0, 0, 1, 1, 2, 5), num_heads=3, return_lse=True), "tree7"
    ),
    _decode(_Shape(lengths=(0, 17), query_len=64, parents=tuple(range(-1, 63))), "tree_path64"),
    _decode(_Shape(lengths=(65,), query_len=5, parents=(-1, -1, 0, 1, 1), num_heads=16), "forest"),
    _decode(_Shape(query_len=2, is_fp8=True, return_lse=True), "fp8_cache_lse"),
    _decode(_Shape(lengths=(1, 64) * 9, num_heads=4, return_lse=True), "two_kernels_batch18"),
    _decode(_Shape(lengths=(70,), query_len=16, num_heads=8, block_size=128), "rows128_block128"),
)

PREFILL_CASES = (
    _prefill(_Shape(lengths=(0,), query_len=1), "first_token"),
    _prefill(_Shape(lengths=(0,), query_len=63, block_size=8), "no_prefix_63"),
    _prefill(_Shape(lengths=(1,), query_len=31, num_heads=1), "prefix1_one_head"),
    _prefill(_Shape(lengths=(63,), query_len=7, num_heads=8, block_size=4), "prefix63_heads8"),
    _prefill(_Shape(lengths=(300,), query_len=2, kv_lora_rank=8), "absorbed_two_rows"),
    _prefill(_Shape(lengths=(257,), query_len=1, kv_lora_rank=8), "absorbed_one_row"),
    _prefill(
        _Shape(lengths=(40,), query_len=24, kv_lora_rank=512, rope=64, nope=128, v_head_dim=128),
        "kimi_sizes",
    ),
    _prefill(_Shape(lengths=(700,), query_len=300, num_heads=1, kv_lora_rank=16), "sliced_rows"),
    _prefill(
        _Shape(lengths=(900,), query_len=270, num_heads=1, kv_lora_rank=4, rope=2),
        "sliced_rows_absorbed",
    ),
    _prefill(_Shape(lengths=(20,), query_len=9, is_fp8=True), "fp8_cache"),
)

CASES = DECODE_CASES + PREFILL_CASES
