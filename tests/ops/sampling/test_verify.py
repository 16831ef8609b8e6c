# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Acceptance: kernels equal references, and emitted tokens follow the target's distribution."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tensorrt_llm_ext.errors import ShapeError
from tensorrt_llm_ext.ops.sampling import verify_greedy, verify_rejection
from tensorrt_llm_ext.ops.sampling.cases import VERIFY_GREEDY_CASES, VERIFY_REJECTION_CASES
from tensorrt_llm_ext.ops.testing import OpCase
from tests.ops.chi_square import p_value
from tests.ops.kernel_params import DTYPES, check_kernel, kernel_params


@pytest.mark.parametrize(("case", "kernel"), kernel_params(VERIFY_GREEDY_CASES))
def test_verify_greedy(case: OpCase, kernel: str, device: torch.device) -> None:
    check_kernel(case, kernel, torch.float32, device)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("case", "kernel"), kernel_params(VERIFY_REJECTION_CASES))
def test_verify_rejection(
    case: OpCase, kernel: str, dtype: torch.dtype, device: torch.device
) -> None:
    check_kernel(case, kernel, dtype, device)


@pytest.mark.parametrize("kernel", ["reference", "torch"])
def test_verify_greedy_by_hand(kernel: str) -> None:
    sampled = torch.tensor([[5, 6, 7, 8]]).repeat(5, 1)
    drafts = torch.tensor([[5, 6, 7], [5, 0, 7], [0, 6, 7], [5, 6, 7], [5, 6, 7]])
    num_drafts = torch.tensor([3, 3, 3, 2, 0])
    got = verify_greedy(sampled, drafts, num_drafts, kernel=kernel)
    assert got.tolist() == [3, 1, 0, 2, 0]


@st.composite
def greedy_rows(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    batch_size, query_len = draw(st.integers(1, 5)), draw(st.integers(1, 9))
    ids = st.integers(0, 1)

    def table(columns: int) -> torch.Tensor:
        row = st.lists(ids, min_size=columns, max_size=columns)
        rows = draw(st.lists(row, min_size=batch_size, max_size=batch_size))
        return torch.tensor(rows, dtype=torch.int64).view(batch_size, columns)

    limits = st.lists(st.integers(0, query_len - 1), min_size=batch_size, max_size=batch_size)
    return table(query_len), table(query_len - 1), torch.tensor(draw(limits))


@given(greedy_rows())
def test_verify_greedy_accepts_the_longest_common_prefix(rows) -> None:
    sampled, drafts, num_drafts = rows
    got = verify_greedy(sampled, drafts, num_drafts).tolist()
    assert got == verify_greedy(sampled, drafts, num_drafts, kernel="reference").tolist()
    for row, count in enumerate(got):
        limit = int(num_drafts[row])
        assert 0 <= count <= limit
        assert torch.equal(sampled[row, :count], drafts[row, :count])
        assert count == limit or sampled[row, count] != drafts[row, count]


@st.composite
def rejection_rows(draw: st.DrawFn) -> dict[str, torch.Tensor]:
    batch_size, k, vocab_size = draw(st.integers(1, 4)), draw(st.integers(0, 4)), 4
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    sparsity = draw(st.sampled_from([0.0, 0.4, 0.8]))

    def distributions(rows: int) -> torch.Tensor:
        weights = torch.rand(batch_size, rows, vocab_size, generator=generator).double()
        weights *= torch.rand(batch_size, rows, vocab_size, generator=generator) >= sparsity
        weights[..., 0] += 0.01
        return weights / weights.sum(-1, keepdim=True)

    return {
        "target_probs": distributions(k + 1),
        "draft_probs": distributions(k),
        "drafts": torch.randint(0, vocab_size, (batch_size, k), generator=generator),
        "num_drafts": torch.randint(0, k + 1, (batch_size,), generator=generator),
        "accept_uniforms": torch.rand(batch_size, k, generator=generator).double(),
        "sample_uniforms": torch.rand(batch_size, generator=generator).double(),
    }


@given(rejection_rows())
def test_verify_rejection_properties(rows: dict[str, torch.Tensor]) -> None:
    tokens, num_accepted = verify_rejection(**rows)
    want_tokens, want_accepted = verify_rejection(**rows, kernel="reference")
    assert torch.equal(tokens, want_tokens)
    assert torch.equal(num_accepted, want_accepted)
    for b, count in enumerate(num_accepted.tolist()):
        assert count <= rows["num_drafts"][b]
        assert torch.equal(tokens[b, :count], rows["drafts"][b, :count])
        assert (tokens[b, count + 1 :] == -1).all()
        last = int(tokens[b, count])
        assert rows["target_probs"][b, count, last] > 0
        if count < rows["num_drafts"][b]:
            refused = rows["drafts"][b, count]
            p, q = (rows[name][b, count, refused] for name in ("target_probs", "draft_probs"))
            assert p < q or p == q == 0
            assert last != refused


P = torch.tensor([[0.5, 0.1, 0.15, 0.25], [0.05, 0.6, 0.3, 0.05], [0.25, 0.25, 0.1, 0.4]]).double()
Q = torch.tensor([[0.2, 0.4, 0.3, 0.1], [0.1, 0.5, 0.0, 0.4]]).double()


@pytest.mark.parametrize("seed", range(5))
def test_verify_rejection_emits_the_target_distribution(seed: int) -> None:
    draws, generator = 20_000, torch.Generator().manual_seed(seed)
    drafts = torch.stack(
        [torch.multinomial(q, draws, replacement=True, generator=generator) for q in Q], dim=1
    )
    tokens, num_accepted = verify_rejection(
        P.expand(draws, -1, -1),
        Q.expand(draws, -1, -1),
        drafts,
        torch.full((draws,), 2),
        torch.rand(draws, 2, generator=generator, dtype=torch.float64),
        torch.rand(draws, generator=generator, dtype=torch.float64),
    )
    for row in range(3):  # whatever is emitted at a row follows that row's target
        emitted = tokens[num_accepted >= row, row]
        assert p_value(torch.bincount(emitted, minlength=4), P[row]) > 1e-4
    share = torch.minimum(P[0], Q[0]).sum()  # the acceptance probability of the first draft
    accepted = (num_accepted > 0).sum()
    counts = torch.stack([accepted, draws - accepted])
    assert p_value(counts, torch.stack([share, 1 - share])) > 1e-4
    # The proposal itself is another distribution, and the test can tell.
    assert p_value(torch.bincount(drafts[:, 0], minlength=4), P[0]) < 1e-4


def test_verify_rejection_falls_back_to_the_target() -> None:
    # Rounding can leave no residual although a draft was refused (u = 1 - 2^-53, p just below q).
    p = torch.tensor([[[0.25, 0.75], [1.0, 0.0]]]).double()
    q = torch.tensor([[[0.25, 0.75]]]).double()
    for kernel in ("reference", "torch"):
        tokens, num_accepted = verify_rejection(
            p,
            q,
            torch.tensor([[0]]),
            torch.tensor([1]),
            torch.tensor([[1.0]]).double(),  # never drawn; it refuses at equality
            torch.tensor([0.5]).double(),
            kernel=kernel,
        )
        assert (tokens.tolist(), num_accepted.tolist()) == ([[1, -1]], [0])


def test_verification_refuses() -> None:
    ids = torch.zeros(2, 3).long()
    with pytest.raises(ShapeError, match=r"drafts has shape \[2, 3\], expected \[2, 2\]"):
        verify_greedy(ids, ids, torch.zeros(2).long())
    with pytest.raises(ShapeError, match="num_drafts has dtype"):
        verify_greedy(ids, ids[:, :2], torch.zeros(2))
    probs, zeros = torch.zeros(2, 3, 5), torch.zeros(2)
    with pytest.raises(ShapeError, match="draft_probs has shape"):
        verify_rejection(probs, probs, ids, zeros.long(), torch.zeros(2, 2), zeros)
    with pytest.raises(ShapeError, match=r"accept_uniforms has shape \[2, 3\]"):
        verify_rejection(probs, probs[:, :2], ids[:, :2], zeros.long(), torch.zeros(2, 3), zeros)
