# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The Triton kernels of attention, interpreted: half precision, trees as chains, long sequences."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tensorrt_llm_ext import _triton
from tensorrt_llm_ext.ops.attention import mla_decode
from tensorrt_llm_ext.ops.attention.cases import DECODE_CASES, PREFILL_CASES, ancestors
from tensorrt_llm_ext.ops.attention.metadata import DecodeMetadata
from tensorrt_llm_ext.ops.testing import OpCase
from tests.ops.kernel_params import check_kernel

pytestmark = pytest.mark.skipif(
    not _triton.AVAILABLE or not (_triton.INTERPRETING or torch.cuda.is_available()),
    reason="needs Triton, and a GPU or its interpreter",
)
HALVES = [pytest.param(torch.bfloat16, id="bfloat16"), pytest.param(torch.float16, id="float16")]
CPU = torch.device("cpu")
KERNELS = ["reference", "torch", "triton"]


def place() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def ids(case: OpCase) -> str:
    return case.name


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("case", DECODE_CASES, ids=ids)
def test_decode_in_half_precision(case: OpCase, dtype: torch.dtype) -> None:
    check_kernel(case, "triton", dtype, place())


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("case", PREFILL_CASES[:7], ids=ids)
def test_prefill_in_half_precision(case: OpCase, dtype: torch.dtype) -> None:
    check_kernel(case, "triton", dtype, place())


def numbers(seed: int, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator)


def tree_inputs(parents: list[int], start: int) -> dict[str, Any]:
    nodes, heads, rank, rope, block = len(parents), 3, 32, 16, 16
    columns = -(-(start + nodes) // block)
    return {
        "q": numbers(1, 1, nodes, heads, rank + rope),
        "latent_cache": numbers(2, columns + 1, block, rank + rope),
        "block_table": torch.randperm(columns, generator=torch.Generator().manual_seed(3))[None]
        + 1,
        "start": start,
        "block": block,
        "rank": rank,
    }


def path_to(node: int, parents: list[int]) -> list[int]:
    path = [node]
    while parents[path[0]] >= 0:
        path.insert(0, parents[path[0]])
    return path


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("start", [0, 1, 37])
def test_a_tree_is_its_paths(kernel: str, start: int) -> None:
    parents = [-1, 0, 0, 1, 1, 2, 5, 3, 3, -1, 9, 10]
    given = tree_inputs(parents, start)
    q, cache, table = given["q"], given["latent_cache"], given["block_table"]
    options = {"kv_lora_rank": given["rank"], "softmax_scale": 0.2, "return_lse": True}
    depth = torch.tensor([[start + len(path_to(n, parents)) - 1 for n in range(len(parents))]])
    metadata = DecodeMetadata(
        table,
        depth,
        given["block"],
        starts=torch.tensor([start]),
        ancestors=torch.tensor([ancestors(parents)]),
    )
    got, got_lse = mla_decode(q, cache, metadata, **options, kernel=kernel)
    flat = cache[table[0]].flatten(0, 1)  # rows by position
    leaves = set(range(len(parents))) - set(parents)
    for leaf in leaves:
        path = path_to(leaf, parents)
        rows = torch.cat([flat[:start], flat[[start + node for node in path]]])
        pages = -(-rows.shape[0] // given["block"])
        chain = torch.full((pages + 1, given["block"], rows.shape[1]), float("nan"))
        chain[1:].view(-1, rows.shape[1])[: rows.shape[0]] = rows
        want, want_lse = mla_decode(
            q[:, path],
            chain,
            DecodeMetadata(
                torch.arange(1, pages + 1)[None],
                torch.arange(start, start + len(path))[None],
                given["block"],
            ),
            **options,
            kernel="reference",
        )
        torch.testing.assert_close(got[:, path], want, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(got_lse[:, path], want_lse, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("batch", [1, 17])
def test_long_sequences_among_short_ones(batch: int) -> None:
    """4,096 keys are cut into units; the others are one unit each."""
    heads, rank, rope, block = 2, 16, 16, 64
    lengths = torch.tensor([4096] + [1 + 40 * i for i in range(batch - 1)])
    columns = 64
    table = torch.full((batch, columns), 2_000_000_000)
    used = 1
    for row, length in enumerate(lengths.tolist()):
        count = -(-length // block)
        table[row, :count] = torch.arange(used, used + count)
        used += count
    cache = torch.full((used, block, rank + rope), float("nan"))
    for row, length in enumerate(lengths.tolist()):
        pages = table[row, : -(-length // block)]
        flat = torch.full((pages.numel() * block, rank + rope), float("nan"))
        flat[:length] = numbers(row, length, rank + rope)
        cache[pages] = flat.view(pages.numel(), block, -1)
    q = numbers(99, batch, 1, heads, rank + rope)
    metadata = DecodeMetadata(table, lengths[:, None] - 1, block)
    options = {"kv_lora_rank": rank, "softmax_scale": 0.2, "return_lse": True}
    want, want_lse = mla_decode(q, cache.nan_to_num(), metadata, **options, kernel="torch")
    got, got_lse = mla_decode(q, cache, metadata, **options, kernel="triton")
    torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-5)
    torch.testing.assert_close(got_lse, want_lse, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("heads", [1, 128])
@pytest.mark.parametrize("block", [16, 128])
def test_numbers_of_heads_and_page_sizes(heads: int, block: int) -> None:
    given = numbers(5, 3, block, 32)
    q = numbers(6, 1, 2, heads, 32)
    metadata = DecodeMetadata(torch.tensor([[2, 1]]), torch.tensor([[block, block + 1]]), block)
    options = {"kv_lora_rank": 16, "softmax_scale": 0.3}
    want = mla_decode(q, given, metadata, **options, kernel="reference")
    got = mla_decode(q, given, metadata, **options, kernel="triton")
    torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_merge_by_their_denominators(kernel: str, dtype: torch.dtype) -> None:
    """Which needs the denominators in float32: rounded to bf16 they are off by percents."""
    heads, rank, rope, block = 4, 32, 16, 16
    cache = numbers(1, 9, block, rank + rope).to(dtype)
    q = numbers(2, 1, 1, heads, rank + rope).to(dtype)
    options = {"kv_lora_rank": rank, "softmax_scale": 0.3, "return_lse": True, "kernel": kernel}

    def attend(pages: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        last = torch.tensor([[len(pages) * block - 1]])
        out, lse = mla_decode(
            q, cache, DecodeMetadata(torch.tensor([pages]), last, block), **options
        )
        assert (out.dtype, lse.dtype) == (dtype, torch.float32)
        return out.float(), lse

    whole, whole_lse = attend([1, 2, 3, 4, 5, 6, 7, 8])
    (left, left_lse), (right, right_lse) = attend([1, 2, 3]), attend([4, 5, 6, 7, 8])
    lse = torch.logaddexp(left_lse, right_lse)
    torch.testing.assert_close(lse, whole_lse, rtol=0, atol=1e-5)
    merged = left * (left_lse - lse).exp()[..., None] + right * (right_lse - lse).exp()[..., None]
    torch.testing.assert_close(merged, whole, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("kernel", KERNELS)
def test_metadata_of_any_strides(kernel: str) -> None:
    """One tree for all requests, a slice of positions, a table by columns."""
    batch, nodes, heads, rank, rope, block = 3, 4, 2, 16, 16, 8
    cache = numbers(1, 16, block, rank + rope)
    q = numbers(2, batch, nodes, heads, rank + rope)
    table = torch.randperm(15, generator=torch.Generator().manual_seed(0)).view(5, 3).T + 1
    depth = torch.tensor([9, 10, 10, 11]).repeat(batch, 3)[:, :nodes]
    bits = torch.tensor([ancestors([-1, 0, 0, 1])]).expand(batch, -1)
    starts = torch.tensor([9, 0, 9, 0, 9, 0])[::2]
    strided = (table, depth, block, starts, bits)
    assert not any(t.is_contiguous() for t in (table, depth, bits, starts))
    plain = [t.contiguous() if isinstance(t, torch.Tensor) else t for t in strided]
    options = {"kv_lora_rank": rank, "softmax_scale": 0.2}
    got = mla_decode(q, cache, DecodeMetadata(*strided), **options, kernel=kernel)
    want = mla_decode(q, cache, DecodeMetadata(*plain), **options, kernel="reference")
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
