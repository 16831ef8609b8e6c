# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from pathlib import Path

import pytest

from tensorrt_llm_ext.checkpoints.serving import read_serve_pair
from tensorrt_llm_ext.errors import ConfigError
from tests.support.catalogue import build
from tests.support.header_only import write_header_only
from tests.support.tiny_checkpoints import model_config

EMBEDDING = {"model.embed_tokens.weight": ("BF16", (163840, 7168))}


def test_a_pair_is_read_with_its_traits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = model_config("moonshotai/Kimi-K2.5")
    quant = {"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}}
    del config["text_config"]["quantization_config"]
    write_header_only(
        tmp_path / "target", config, EMBEDDING, extra_json={"hf_quant_config.json": quant}
    )
    build("modelopt/nvfp4-draft", tmp_path / "draft")
    monkeypatch.chdir(tmp_path)
    pair = read_serve_pair("target", "draft")
    assert pair.target.num_layers == 61
    assert pair.draft.boundaries == (2, 30, 58)
    assert (pair.target_ref, pair.draft_ref) == (str(tmp_path / "target"), str(tmp_path / "draft"))
    assert pair.target_quant.kv_cache_algo == "FP8"
    assert pair.draft_quant.algo == "NVFP4"
    traits = pair.traits
    assert traits.uses_layers_names
    assert traits.model_type == "kimi_k2"
    assert traits.has_max_position_embeddings
    assert not traits.has_experts
    assert "layers.0.self_attn.o_proj" in traits.quantized_modules
    assert not traits.quantized_modules & {"fc", "lm_head", "layers.0.self_attn.kv_b_proj", "norm"}
    with pytest.raises(ConfigError, match="contradict"):
        read_serve_pair("target", "draft", boundaries=(4, 30, 58))
