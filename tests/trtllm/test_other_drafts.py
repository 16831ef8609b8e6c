# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Drafts that are not MLA stay upstream's: its class, its options, its own words when it fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.faults import write_draft
from tests.trtllm.serving import Served, serve, target_for

HIDDEN, HEADS, KV_HEADS, WIDTH, VOCABULARY = 256, 4, 2, 512, 896
CONFIG = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": WIDTH,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "vocab_size": VOCABULARY,
    "draft_vocab_size": VOCABULARY,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama-style draft with weights drawn by chance."""
    head = HIDDEN // HEADS
    shapes = {
        "fc": (HIDDEN, 3 * HIDDEN),
        "midlayer.self_attn.q_proj": (HEADS * head, 2 * HIDDEN),
        "midlayer.self_attn.k_proj": (KV_HEADS * head, 2 * HIDDEN),
        "midlayer.self_attn.v_proj": (KV_HEADS * head, 2 * HIDDEN),
        "midlayer.self_attn.o_proj": (HIDDEN, HEADS * head),
        "midlayer.mlp.gate_proj": (WIDTH, HIDDEN),
        "midlayer.mlp.up_proj": (WIDTH, HIDDEN),
        "midlayer.mlp.down_proj": (HIDDEN, WIDTH),
        "midlayer.hidden_norm": (HIDDEN,),
        "midlayer.input_layernorm": (HIDDEN,),
        "midlayer.post_attention_layernorm": (HIDDEN,),
        "norm": (HIDDEN,),
        "lm_head": (VOCABULARY, HIDDEN),
    }
    generator = torch.Generator().manual_seed(0)
    tensors = {
        f"{name}.weight": torch.randn(shape, generator=generator).bfloat16()
        for name, shape in shapes.items()
    }
    return write_draft(tmp_path_factory.mktemp("drafts") / "grouped", CONFIG, tensors)


def build(era: str, unwrapped: Path, draft: Path, **options: Any) -> Served:
    """Builds and loads; the double has no kernel to run grouped-query attention."""
    return serve(era, target_for(era, unwrapped), draft, [], **options)


@pytest.mark.parametrize("layers", [None, {0, 3, 6}])
@pytest.mark.parametrize("era", ["e2", "e3"])
def test_grouped_query_drafts_are_upstreams(
    era: str, layers: set[int] | None, grouped: Path, unwrapped: Path
) -> None:
    ours = build(era, unwrapped, grouped, layers=layers).info[0]
    stock = build(era, unwrapped, grouped, layers=layers, ours=False).info[0]
    place = "tensorrt_llm._torch.models.modeling_speculative.Eagle3ForCausalLM"
    assert (ours["draft_class"], stock["draft_class"]) == (place, place)
    assert ours["layers_to_capture"] == stock["layers_to_capture"]
    assert ours["layers_to_capture"] == (sorted(layers) if layers else [1, 3, 4])
    assert ours["target_class"].startswith("tensorrt_llm_ext.")


@pytest.mark.parametrize("is_ours", [True, False])
def test_e1_has_no_grouped_query_drafts_on_mla_targets(
    is_ours: bool, grouped: Path, unwrapped: Path
) -> None:
    """Upstream's own assertion: such a target has no place for layers of another attention."""
    with pytest.raises(AssertionError) as caught:
        build("e1", unwrapped, grouped, ours=is_ours)
    assert caught.traceback[-1].name == "_build_draft"
    assert "trtllm_double" in str(caught.traceback[-1].path)
