# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""What weights say without being run."""

from __future__ import annotations

import pytest
import torch

from tensorrt_llm_ext.diagnostics.canary import weights
from tensorrt_llm_ext.diagnostics.canary.weights import (
    embedding_check,
    examine_head,
    head_check,
    match_heads,
    plain_checks,
)
from tests.support.tiny_models import CPU, random_draft, random_target

VOCAB, WIDTH = 96, 48


@pytest.fixture
def target_head() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    head = torch.randn(VOCAB, WIDTH, generator=generator)
    head[80:] = head[80] + 0.05 * head[80:]  # tokens that never occur look alike
    return head


def trained(head: torch.Tensor, amount: float = 0.1) -> torch.Tensor:
    """A head after some training."""
    noise = torch.randn(head.shape, generator=torch.Generator().manual_seed(1))
    return head + amount * noise


def test_a_healthy_head_is_not_accused(target_head: torch.Tensor) -> None:
    head, ids = trained(target_head), torch.arange(VOCAB)
    found = examine_head(head, target_head, ids, CPU)
    assert found.check.is_ok is True
    assert (found.heads, found.maps) == ({}, {})


def test_a_permuted_head_is_put_in_order(target_head: torch.Tensor) -> None:
    head, ids = trained(target_head), torch.arange(VOCAB)
    order = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(2))
    found = examine_head(head[order], target_head, ids, CPU)
    assert found.check.is_ok is False
    assert "permuted" in found.check.message
    heads = found.heads
    mended = heads["head rows in the target's order"]
    assert torch.equal(mended[:80], head[:80])  # look-alikes may change places among themselves
    assert sorted(mended.sum(1).tolist()) == sorted(head.sum(1).tolist())
    assert torch.equal(heads["the target's own head rows"], target_head)


def test_a_lost_vocabulary_map_is_read_off_the_head(target_head: torch.Tensor) -> None:
    keep = torch.randperm(80, generator=torch.Generator().manual_seed(3))[:40].sort().values
    head = trained(target_head)[keep]
    wrong = torch.arange(40)
    found = examine_head(head, target_head, wrong, CPU)
    assert found.check.is_ok is False
    (table,) = found.maps.values()
    assert torch.equal(table + torch.arange(40), keep)
    assert examine_head(head, target_head, keep, CPU).check.is_ok is True


def test_rows_taken_twice_leave_only_the_targets_own(target_head: torch.Tensor) -> None:
    ids = torch.arange(0, 80, 2)
    head = trained(target_head)[ids - torch.arange(40)]  # offsets taken for row numbers
    heads = examine_head(head, target_head, ids, CPU).heads
    assert list(heads) == ["the target's own head rows"]
    assert torch.equal(heads["the target's own head rows"], target_head[ids])


def test_a_head_of_its_own_is_unknown_not_wrong(target_head: torch.Tensor) -> None:
    other = torch.randn(VOCAB, WIDTH, generator=torch.Generator().manual_seed(9))
    ids = torch.arange(VOCAB)
    found = examine_head(other, target_head, ids, CPU)
    assert found.check.is_ok is None
    assert "trained on its own" in found.check.message
    assert (found.heads, found.maps) == ({}, {})


def test_a_sample_finds_what_all_rows_show(monkeypatch, target_head: torch.Tensor) -> None:
    """A large head is sampled first; where all rows are too many, its order stays open."""
    ids = torch.arange(VOCAB)
    order = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(2))
    monkeypatch.setattr(weights, "_SAMPLE", 24)
    every = head_check(match_heads(trained(target_head)[order], target_head, ids))
    found = examine_head(trained(target_head)[order], target_head, ids, CPU)
    assert found.check == every
    monkeypatch.setattr(weights, "_MAX_PRODUCTS_CPU", 1)
    found = examine_head(trained(target_head)[order], target_head, ids, CPU)
    assert list(found.heads) == ["the target's own head rows"]
    assert "--device cuda" in found.check.message
    assert examine_head(trained(target_head), target_head, ids, CPU).check.is_ok is True


def test_nan_constants_and_idle_columns_are_found() -> None:
    config, target = random_target(0)
    draft_config, _ = random_draft(0, config, boundaries=(1, 2), fc_norm=False)
    width = config.hidden_size
    fc = torch.randn(width, 2 * width)
    fc[:, :width] *= 1e-3
    found = {
        check.name: check
        for check in plain_checks(
            draft_config,
            {
                "fc.weight": fc,
                "norm.weight": torch.tensor([1.0, float("nan")]),
                "layers.0.mlp.up_proj.weight": torch.full((3, 3), 0.5),
                "d2t": torch.zeros(3, dtype=torch.int64),
            },
        )
    }
    assert found["finite values"].is_ok is False
    assert "norm.weight" in found["finite values"].message
    assert "up_proj" in found["constant matrices"].message
    assert found["fc column blocks"].is_ok is False
    del target


def test_embeddings_are_compared() -> None:
    table = torch.randn(64, 16, generator=torch.Generator().manual_seed(0))
    assert embedding_check(table, table).is_ok is True
    assert embedding_check(table, table.roll(1, 0)).is_ok is None
    assert embedding_check(table, table[:, :8]).is_ok is None
