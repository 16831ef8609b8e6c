# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Which module may have which format."""

from __future__ import annotations

import pytest

from tensorrt_llm_ext.errors import CheckpointError, ConfigError
from tensorrt_llm_ext.quantization.policy import TIERS, check_format, rule_for, tier_formats

ATTENTION = ("q_a_proj", "kv_a_proj_with_mqa", "q_b_proj", "kv_b_proj", "o_proj")
MODULES = [
    "fc",
    *(f"layers.0.self_attn.{name}" for name in ATTENTION),
    *(f"layers.0.mlp.{name}" for name in ("gate_proj", "up_proj", "down_proj")),
    "lm_head",
    "embed_tokens",
]


@pytest.mark.parametrize("tier", sorted(TIERS))
def test_no_tier_quantizes_kv_b_proj_or_the_embedding(tier: str) -> None:
    formats = tier_formats(tier, MODULES)
    assert formats["layers.0.self_attn.kv_b_proj"] == formats["embed_tokens"] == "float"
    for module, kind in formats.items():
        check_format(module, kind)


def test_tiers_differ_as_named() -> None:
    full = tier_formats("layer_fc_fp8_head", MODULES)
    assert full["fc"] == full["layers.0.mlp.gate_proj"] == "nvfp4"
    assert full["lm_head"] == "fp8"
    layer = tier_formats("layer", MODULES)
    assert layer["fc"] == layer["lm_head"] == "float"
    assert layer["layers.0.self_attn.q_a_proj"] == "nvfp4"
    with pytest.raises(ConfigError, match="did you mean 'layer_fc'"):
        tier_formats("layer_fcc", MODULES)


@pytest.mark.parametrize(
    "module", ["layers.0.self_attn.kv_b_proj", "embed_tokens", "layers.3.mlp.gate", "norm"]
)
@pytest.mark.parametrize("kind", ["nvfp4", "fp8"])
def test_what_must_stay_float_is_refused(module: str, kind: str) -> None:
    with pytest.raises(CheckpointError, match=f"{module} is stored in {kind}") as error:
        check_format(module, kind)
    assert error.value.check == "V24"
    check_format(module, "float")


def test_a_gate_projection_is_no_router() -> None:
    assert rule_for("layers.0.mlp.gate_proj").part == "layer"
    assert rule_for("layers.0.mlp.experts.3.gate_proj").part == "layer"
    assert rule_for("layers.0.mlp.gate").part == "never"
