# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tensorrt_llm_ext.errors import ConfigError
from tensorrt_llm_ext.planning.budget import (
    WEIGHT_BITS,
    draft_modules,
    kv_bytes_per_token,
    step_budget,
)
from tests.planning.kimi_pairs import draft, mla, target

NVFP4 = WEIGHT_BITS["nvfp4"]
GB = 1e9


def body_modules(*but: str) -> dict[str, float]:
    """NVFP4 for every matrix of the layer, except those that end as named."""
    names = draft_modules(draft())
    layer = [n for n in names if n.startswith("layers.") and "norm" not in n]
    return {n: NVFP4 for n in layer if not n.endswith(but)}


# Published arithmetic for Kimi-K2 sizes: layer, head, both, in GB (rounded to 1e-3).
@pytest.mark.parametrize(
    ("is_layer_nvfp4", "head_bits", "vocabulary", "layer", "head", "total"),
    [
        (False, 16, 163840, 1.025, 2.349, 3.374),
        (True, 16, 163840, 0.300, 2.349, 2.649),
        (True, NVFP4, 163840, 0.300, 0.661, 0.961),
        (False, 16, 32000, 1.025, 0.459, 1.484),
        (True, 16, 32000, 0.300, 0.459, 0.759),
        (True, NVFP4, 32000, 0.300, 0.129, 0.429),
    ],
)
def test_bytes_of_a_step_are_the_published_ones(
    is_layer_nvfp4: bool,
    head_bits: float,
    vocabulary: int,
    layer: float,
    head: float,
    total: float,
) -> None:
    bits = {"lm_head": head_bits}
    if is_layer_nvfp4:
        bits |= body_modules("kv_b_proj")
    budget = step_budget(draft(draft_vocab_size=vocabulary, has_d2t=vocabulary < 163840), bits)
    assert budget.body / GB == pytest.approx(layer, abs=6e-4)
    assert budget.head / GB == pytest.approx(head, abs=6e-4)
    assert budget.total_recurrent / GB == pytest.approx(total, abs=1.1e-3)


def test_fc_is_read_once_per_round() -> None:
    bf16, nvfp4 = step_budget(draft()), step_budget(draft(), {"fc": NVFP4})
    assert bf16.fc / GB == pytest.approx(0.308, abs=5e-4)
    assert nvfp4.fc / GB == pytest.approx(0.087, abs=5e-4)
    assert nvfp4.total_recurrent == bf16.total_recurrent
    assert bf16.round_total(3) == bf16.fc + 3 * bf16.total_recurrent
    assert bf16.embedding_row == 7168 * 2
    assert bf16.head_share == pytest.approx(0.70, abs=0.005)


def test_module_sizes_add_up_to_the_published_checkpoint() -> None:
    modules = draft_modules(draft())
    layer = {n: size for n, size in modules.items() if n.startswith("layers.0.")}
    assert layer["layers.0.self_attn.q_a_proj"] == 1536 * 14336
    assert layer["layers.0.self_attn.kv_a_proj_with_mqa"] == 576 * 14336
    assert layer["layers.0.self_attn.kv_b_proj"] == 16384 * 512
    assert sum(layer.values()) / 1e6 == pytest.approx(512.6, abs=0.1)
    # EAGLE-3.1 with its own embedding: 3,015,625,728 parameters in the public checkpoint.
    modules = draft_modules(draft(fc_norm=True, norm_output=True))
    assert sum(modules.values()) - 7168 + 163840 * 7168 == 3_015_625_728


def test_other_shapes_of_drafts() -> None:
    full_rank = draft_modules(draft(mla=mla(q_lora_rank=None)))
    assert full_rank["layers.0.self_attn.q_proj"] == 64 * 192 * 14336
    assert not any("q_a_proj" in name for name in full_rank)
    two = draft_modules(draft(num_layers=2))
    assert two["layers.1.self_attn.q_a_proj"] == 1536 * 7168
    assert "layers.1.hidden_norm" not in two
    assert draft_modules(draft(norm_before_fc=True))["input_norm"] == 3 * 7168
    narrow = draft_modules(draft(hidden_size=21504, has_fc=False))
    assert "fc" not in narrow
    budget = step_budget(draft(norm_before_fc=True))
    assert budget.fc == 2 * 3 * 7168 * (7168 + 1)


def test_bits_of_unknown_modules_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'layers\.0\.self_attn\.o_proj'"):
        step_budget(draft(), {"layers.0.self_attn.o_prj": 4.5})
    with pytest.raises(ConfigError, match="must be positive"):
        step_budget(draft(), {"fc": 0})


def test_as_plain_data() -> None:
    budget = step_budget(draft(), {"fc": NVFP4})
    plain = json.loads(json.dumps(budget.to_dict()))
    assert plain["total_recurrent"] == budget.total_recurrent
    assert plain["fc_per_round"] == plain["modules"]["fc"]
    assert sum(plain["modules"].values()) == pytest.approx(
        budget.body + budget.head + budget.fc + budget.embedding_row
    )


def test_kv_bytes_per_token() -> None:
    assert kv_bytes_per_token(target(), None, kv_dtype_bytes=2) == 61 * 1152
    assert kv_bytes_per_token(target(), draft(), kv_dtype_bytes=2) == 62 * 1152
    assert kv_bytes_per_token(target(), draft(), kv_dtype_bytes=1) == 62 * 576
    reserved = kv_bytes_per_token(target(), draft(), kv_dtype_bytes=1, reserved_draft_layers=3)
    assert reserved == 64 * 576
    narrow = draft(mla=replace(mla(), kv_lora_rank=256))
    assert kv_bytes_per_token(target(), narrow, kv_dtype_bytes=1) == 61 * 576 + 320
