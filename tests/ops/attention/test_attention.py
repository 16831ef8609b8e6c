# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Every attention kernel equals its reference, and the reference equals plain attention."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from tensorrt_llm_ext.errors import KernelNotFoundError, ShapeError
from tensorrt_llm_ext.ops.attention import mla_decode, mla_prefill, torch_kernels
from tensorrt_llm_ext.ops.attention.cases import CASES, DECODE_CASES, PREFILL_CASES
from tensorrt_llm_ext.ops.attention.metadata import DecodeMetadata, PrefillMetadata
from tensorrt_llm_ext.ops.testing import OpCase
from tests.ops.kernel_params import DTYPES, check_kernel, check_reads_nothing, kernel_params


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("case", "kernel"), kernel_params(DECODE_CASES))
def test_mla_decode(case: OpCase, kernel: str, dtype: torch.dtype, device: torch.device) -> None:
    check_kernel(case, kernel, dtype, device)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("case", "kernel"), kernel_params(PREFILL_CASES))
def test_mla_prefill(case: OpCase, kernel: str, dtype: torch.dtype, device: torch.device) -> None:
    check_kernel(case, kernel, dtype, device)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.op}-{case.name}")
def test_reads_nothing_on_the_host(case: OpCase) -> None:
    check_reads_nothing(case, torch.float32)


HEADS, NOPE, ROPE, RANK, V = 3, 10, 4, 14, 6
LENGTH, BLOCK = 23, 4
SCALE = 0.21


def plain_mla(rank_rows: torch.Tensor, w_kc: torch.Tensor, w_vc: torch.Tensor, q: torch.Tensor):
    """Unabsorbed multi-head attention of the last rows of one sequence, by SDPA."""
    compressed, k_pe = rank_rows[:, :RANK], rank_rows[:, RANK:]
    keys = torch.cat(
        [
            torch.einsum("tr,hnr->htn", compressed, w_kc),
            k_pe.unsqueeze(0).expand(HEADS, -1, -1),
        ],
        dim=-1,
    )
    values = torch.einsum("tr,hrv->htv", compressed, w_vc)
    rows, length = q.shape[0], rank_rows.shape[0]
    mask = torch.ones(rows, length, dtype=torch.bool).tril(length - rows)
    out = functional.scaled_dot_product_attention(
        q.transpose(0, 1), keys, values, attn_mask=mask, scale=SCALE
    )
    return out.transpose(0, 1)


@pytest.fixture
def sequence() -> dict[str, torch.Tensor]:
    """One sequence in a paged cache whose blocks stand in reverse order."""
    generator = torch.Generator().manual_seed(7)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    num_blocks = -(-LENGTH // BLOCK)
    rows = numbers(LENGTH, RANK + ROPE)
    cache = torch.full((num_blocks + 1, BLOCK, RANK + ROPE), float("nan"), dtype=torch.float64)
    table = torch.arange(num_blocks, 0, -1)
    cache[0] = 0
    for position in range(LENGTH):
        cache[table[position // BLOCK], position % BLOCK] = rows[position]
    return {
        "rows": rows,
        "cache": cache,
        "table": table,
        "q": numbers(LENGTH, HEADS, NOPE + ROPE),
        "w_kc": numbers(HEADS, NOPE, RANK),
        "w_vc": numbers(HEADS, RANK, V),
    }


@pytest.mark.parametrize("kernel", ["reference", "torch", "torch_cpu"])
@pytest.mark.parametrize("num_tokens", [1, 5, LENGTH])
def test_prefill_is_plain_attention(sequence, kernel: str, num_tokens: int) -> None:
    q = sequence["q"][-num_tokens:]
    metadata = PrefillMetadata(sequence["table"], LENGTH - num_tokens, num_tokens, BLOCK)
    got = mla_prefill(
        q[..., :NOPE],
        q[..., NOPE:],
        sequence["cache"],
        metadata,
        w_kc=sequence["w_kc"],
        w_vc=sequence["w_vc"],
        softmax_scale=SCALE,
        kernel=kernel,
    )
    want = plain_mla(sequence["rows"], sequence["w_kc"], sequence["w_vc"], q)
    torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("kernel", ["reference", "torch"])
@pytest.mark.parametrize("query_len", [1, 4])
def test_absorbed_decode_is_plain_attention(sequence, kernel: str, query_len: int) -> None:
    q = sequence["q"][-query_len:]
    absorbed = torch.einsum("thn,hnr->thr", q[..., :NOPE], sequence["w_kc"])
    positions = torch.arange(LENGTH - query_len, LENGTH).unsqueeze(0)
    latent, lse = mla_decode(
        torch.cat([absorbed, q[..., NOPE:]], dim=-1).unsqueeze(0),
        sequence["cache"],
        DecodeMetadata(sequence["table"].unsqueeze(0), positions, BLOCK),
        kv_lora_rank=RANK,
        softmax_scale=SCALE,
        return_lse=True,
        kernel=kernel,
    )
    got = torch.einsum("thr,hrv->thv", latent[0], sequence["w_vc"])
    want = plain_mla(sequence["rows"], sequence["w_kc"], sequence["w_vc"], q)
    torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-11)
    scores = torch.einsum("hl,tl->ht", latent_query(sequence, q[-1]), sequence["rows"]) * SCALE
    torch.testing.assert_close(lse[0, -1], scores.exp().sum(-1).log(), rtol=1e-11, atol=1e-11)


def latent_query(sequence, q: torch.Tensor) -> torch.Tensor:
    absorbed = torch.einsum("hn,hnr->hr", q[..., :NOPE], sequence["w_kc"])
    return torch.cat([absorbed, q[..., NOPE:]], dim=-1)


def test_decode_by_hand() -> None:
    # Two keys with scores 0 and ln 3: weights 1/4 and 3/4.
    cache = torch.zeros(2, 2, 3, dtype=torch.float64)
    cache[1] = torch.tensor([[4.0, 0.0, 0.0], [8.0, 1.0, 0.0]])
    q = torch.tensor([0.0, float(torch.tensor(3.0).double().log()), 5.0]).double()
    metadata = DecodeMetadata(torch.tensor([[1]]), torch.tensor([[1]]), 2)
    for kernel in ("reference", "torch"):
        out, lse = mla_decode(
            q.view(1, 1, 1, 3),
            cache,
            metadata,
            kv_lora_rank=2,
            softmax_scale=1.0,
            return_lse=True,
            kernel=kernel,
        )
        torch.testing.assert_close(out.flatten(), torch.tensor([7.0, 0.75]).double())
        torch.testing.assert_close(lse.flatten().exp(), torch.tensor([4.0]).double())


@pytest.mark.parametrize("name", ["sliced_rows", "sliced_rows_absorbed"])
def test_both_prefill_forms_work_in_slices(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(case for case in PREFILL_CASES if case.name == name)
    inputs = case.inputs(torch.float64, torch.device("cpu"))
    whole = mla_prefill(**inputs, kernel="torch")
    monkeypatch.setattr(torch_kernels, "_MAX_SCORES", 1)
    assert len(torch_kernels._row_slices(inputs["metadata"], 1, 1)) > 8
    torch.testing.assert_close(mla_prefill(**inputs, kernel="torch"), whole)


def test_both_prefill_forms_are_tested() -> None:
    chosen = {
        case.name: torch_kernels._absorbed_is_cheaper(
            inputs["metadata"], inputs["q_pe"], inputs["w_kc"], inputs["w_vc"]
        )
        for case in PREFILL_CASES
        for inputs in [case.inputs(torch.float32, torch.device("cpu"))]
    }
    assert chosen["absorbed_two_rows"]
    assert chosen["sliced_rows_absorbed"]
    assert not chosen["no_prefix_63"]
    assert not chosen["sliced_rows"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": torch.zeros(1, 1, 2, 6)}, r"latent_cache has shape \[3, 4, 5\], expected"),
        (
            {"q": torch.zeros(2, 1, 2, 5)},
            r"q has shape \[2, 1, 2, 5\], expected \[1, 1, any, any\]",
        ),
        ({"q": torch.zeros(1, 1, 2, 5).double()}, "latent_cache has dtype torch.float32"),
        ({"kv_lora_rank": 5}, "kv_lora_rank is 5, expected 1..4"),
        ({"block_size": 8}, "latent_cache has shape"),
        ({"table": torch.zeros(2, 1, dtype=torch.int64)}, "metadata.block_table has shape"),
        ({"table": torch.zeros(1, 1, dtype=torch.int32)}, "expected int64"),
    ],
)
def test_decode_refuses(change: dict, message: str) -> None:
    arguments = {
        "q": torch.zeros(1, 1, 2, 5),
        "kv_lora_rank": 3,
        "block_size": 4,
        "table": torch.zeros(1, 1, dtype=torch.int64),
    } | change
    metadata = DecodeMetadata(
        arguments["table"], torch.zeros(1, 1, dtype=torch.int64), arguments["block_size"]
    )
    with pytest.raises(ShapeError, match=message):
        mla_decode(
            arguments["q"],
            torch.zeros(3, 4, 5),
            metadata,
            kv_lora_rank=arguments["kv_lora_rank"],
            softmax_scale=1.0,
        )


def test_prefill_refuses_wrong_weights() -> None:
    metadata = PrefillMetadata(torch.zeros(1, dtype=torch.int64), 0, 2, 4)
    with pytest.raises(ShapeError, match=r"w_vc has shape \[2, 4, 3\], expected \[2, 3, any\]"):
        mla_prefill(
            torch.zeros(2, 2, 7),
            torch.zeros(2, 2, 2),
            torch.zeros(3, 4, 5),
            metadata,
            w_kc=torch.zeros(2, 7, 3),
            w_vc=torch.zeros(2, 4, 3),
            softmax_scale=1.0,
        )


def test_chunk_must_fit_its_blocks() -> None:
    table = torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ShapeError, match=r"3 rows from position 6 on, expected .* 0\.\.7"):
        PrefillMetadata(table, 6, 3, 4)


def test_torch_kernel_declines_a_cache_it_cannot_view() -> None:
    cache = torch.zeros(3, 2, 4, 5)[:, 0]
    metadata = DecodeMetadata(torch.ones(1, 1).long(), torch.zeros(1, 1).long(), 4)
    q = torch.zeros(1, 1, 2, 5)
    settings = {"kv_lora_rank": 3, "softmax_scale": 1.0}
    with pytest.raises(KernelNotFoundError, match="latent_cache must be contiguous"):
        mla_decode(q, cache, metadata, **settings, kernel="torch")
    assert mla_decode(q, cache, metadata, **settings).shape == (1, 1, 2, 3)  # the reference can


def test_values_derived_from_metadata_are_not_fields() -> None:
    # Static buffers are refreshed field by field; what was derived must be droppable.
    metadata = DecodeMetadata(torch.ones(1, 1).long(), torch.tensor([[2]]), 4)
    metadata.key_bias(torch.float32, 2)
    assert metadata.key_slots.tolist() == [[4, 5, 6, 0]]
    fields = {"block_table", "positions", "block_size"}
    for name in [name for name in vars(metadata) if name not in fields]:
        delattr(metadata, name)
    metadata.positions.fill_(0)
    assert metadata.key_bias(torch.float32, 2).flatten().tolist() == [0, *[float("-inf")] * 3]
    assert metadata.key_slots.tolist() == [[4, 0, 0, 0]]
