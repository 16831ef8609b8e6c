# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The rotary table: published numbers, and the oracle's."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from tensorrt_llm_ext.configs.mla import MLAConfig, RopeConfig, YarnConfig
from tensorrt_llm_ext.models.rotary import rotary_frequencies, rotary_table

KIMI_TARGET = RopeConfig(
    theta=50000.0,
    max_position_embeddings=64,
    yarn=YarnConfig(
        factor=64.0,
        original_max_position_embeddings=4096,
        beta_fast=32.0,
        mscale=1.0,
        mscale_all_dim=1.0,
    ),
)
assert KIMI_TARGET.yarn is not None
KIMI_DRAFT = replace(KIMI_TARGET, yarn=replace(KIMI_TARGET.yarn, beta_fast=1.0))

# Pair: (draft, target) frequency of the public Kimi-K2.5 configurations.
GOLDEN = {
    9: (4.7689e-2, 4.3777e-2),
    11: (2.4251e-2, 1.8283e-2),
    13: (1.2332e-2, 7.2741e-3),
    15: (6.2713e-3, 2.6702e-3),
    17: (3.1891e-3, 8.3466e-4),
    19: (1.6218e-3, 1.5837e-4),
}


def kimi_mla(rope: RopeConfig) -> MLAConfig:
    return MLAConfig(
        num_heads=64,
        q_lora_rank=1536,
        kv_lora_rank=512,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
        rms_norm_eps=1e-5,
        rope=rope,
    )


def test_frequencies_of_the_public_kimi_configurations() -> None:
    draft, target = rotary_frequencies(KIMI_DRAFT, 64), rotary_frequencies(KIMI_TARGET, 64)
    for pair, expected in GOLDEN.items():
        got = (draft[pair].item(), target[pair].item())
        assert got == pytest.approx(expected, rel=1e-4)
    same = [*range(9), *range(20, 32)]
    torch.testing.assert_close(draft[same], target[same], rtol=1e-12, atol=0)
    plain = 50000.0 ** (-torch.arange(32, dtype=torch.float64) / 32)
    torch.testing.assert_close(draft[:9], plain[:9], rtol=1e-12, atol=0)
    torch.testing.assert_close(draft[20:], plain[20:] / 64, rtol=1e-12, atol=0)


def test_softmax_scale_of_the_public_kimi_configurations() -> None:
    assert kimi_mla(KIMI_DRAFT).softmax_scale == pytest.approx(0.14468, abs=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_table_holds_cos_and_sin_of_every_position(dtype: torch.dtype) -> None:
    table = rotary_table(kimi_mla(KIMI_DRAFT), dtype=dtype)
    assert table.shape == (64, 32, 2)
    assert table.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    angles = torch.arange(64, dtype=torch.float64)[:, None] * rotary_frequencies(KIMI_DRAFT, 64)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-7
    for index, function in enumerate((torch.cos, torch.sin)):
        error = (table[..., index].double() - function(angles)).abs().max().item()
        assert error < tolerance


@pytest.mark.parametrize(
    ("mscale", "mscale_all_dim", "magnitude"),
    [
        (1.0, 1.0, 1.0),
        (None, None, 0.1 * math.log(64.0) + 1.0),
        (0.5, None, 0.05 * math.log(64.0) + 1.0),
        (None, 0.5, (0.1 * math.log(64.0) + 1.0) / (0.05 * math.log(64.0) + 1.0)),
        (0.707, 1.3, (0.0707 * math.log(64.0) + 1.0) / (0.13 * math.log(64.0) + 1.0)),
    ],
)
def test_magnitude_is_folded_into_the_table(
    mscale: float | None, mscale_all_dim: float | None, magnitude: float
) -> None:
    assert KIMI_TARGET.yarn is not None
    yarn = replace(KIMI_TARGET.yarn, mscale=mscale, mscale_all_dim=mscale_all_dim)
    table = rotary_table(kimi_mla(replace(KIMI_TARGET, yarn=yarn)), dtype=torch.float64)
    assert table.norm(dim=-1).flatten().tolist() == pytest.approx([magnitude] * 64 * 32)


def test_plain_rope_has_no_magnitude() -> None:
    table = rotary_table(kimi_mla(replace(KIMI_TARGET, yarn=None)), dtype=torch.float64)
    assert table.norm(dim=-1).flatten().tolist() == pytest.approx([1.0] * 64 * 32)
    assert table[1, :, 0].acos().tolist() == pytest.approx(
        [50000.0 ** (-i / 32) for i in range(32)], rel=1e-6
    )


def test_blend_range_of_no_width_is_a_step() -> None:
    """Both corrections round to pair 0: it is kept, and all others are divided by the factor."""
    yarn = YarnConfig(factor=4.0, original_max_position_embeddings=6, beta_fast=1.0, beta_slow=1.0)
    rope = RopeConfig(theta=100.0, max_position_embeddings=8, yarn=yarn)
    plain = rotary_frequencies(replace(rope, yarn=None), 8)
    expected = plain / torch.tensor([1.0, 4.0, 4.0, 4.0])
    torch.testing.assert_close(rotary_frequencies(rope, 8), expected, rtol=1e-12, atol=0)
