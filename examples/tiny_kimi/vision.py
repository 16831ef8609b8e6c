# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The vision part of Kimi-K2.5's layout, as small as it gets and untrained.

Hosts read its config, its tensors and the preprocessor's config before any text; the model was
never shown an image.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_WIDTH, _NUM_HEADS, _PATCH_SIZE, _GRID = 64, 2, 14, 4
_MERGE = (2, 2)
_EPS = 1e-5


def vision_config(text_hidden_size: int) -> dict[str, Any]:
    """Returns a tower of one layer, under the keys of Kimi's own code and of transformers 5."""
    tower = {
        "hidden_size": _WIDTH,
        "intermediate_size": _WIDTH,
        "num_attention_heads": _NUM_HEADS,
        "num_hidden_layers": 1,
    }
    grid = {"pos_emb_height": _GRID, "pos_emb_width": _GRID, "pos_emb_time": _GRID}
    return {
        "model_type": "kimi_k25_vision",
        "patch_size": _PATCH_SIZE,
        "merge_kernel_size": list(_MERGE),
        "merge_type": "sd2_tpool",
        "video_attn_type": "spatial_temporal",
        "pos_emb_type": "divided_fixed",
        **{f"init_{key}": value for key, value in grid.items()},
        **grid,
        **{f"vt_{key}": value for key, value in tower.items()},
        **tower,
        "hidden_act": "gelu_pytorch_tanh",
        "mm_projector_type": "patchmerger",
        "mm_hidden_size": _WIDTH,
        "projector_hidden_act": "gelu",
        "projector_ln_eps": _EPS,
        "text_hidden_size": text_hidden_size,
    }


def wrapper_config() -> dict[str, Any]:
    """Returns what stands beside vision_config in the wrapper's config."""
    return {"projection_hidden_size": _WIDTH, "projection_layer_norm_eps": _EPS}


def vision_tensors(text_hidden_size: int) -> dict[str, Tensor]:
    """Returns all tensors of tower and projector: norms are one, the rest is zero."""
    merged = _WIDTH * _MERGE[0] * _MERGE[1]
    block = "vision_tower.encoder.blocks.0"
    linears = {
        f"{block}.wqkv": (3 * _WIDTH, _WIDTH),
        f"{block}.wo": (_WIDTH, _WIDTH),
        f"{block}.mlp.fc0": (_WIDTH, _WIDTH),
        f"{block}.mlp.fc1": (_WIDTH, _WIDTH),
        "vision_tower.patch_embed.proj": (_WIDTH, 3, _PATCH_SIZE, _PATCH_SIZE),
        "mm_projector.proj.0": (merged, merged),
        "mm_projector.proj.2": (text_hidden_size, merged),
    }
    norms = (f"{block}.norm0", f"{block}.norm1", "vision_tower.encoder.final_layernorm")
    tensors = {"vision_tower.patch_embed.pos_emb.weight": torch.zeros(_GRID, _GRID, _WIDTH)}
    for name, shape in linears.items():
        tensors[f"{name}.weight"] = torch.zeros(shape)
        tensors[f"{name}.bias"] = torch.zeros(shape[0])
    for name in (*norms, "mm_projector.pre_norm"):
        tensors[f"{name}.weight"] = torch.ones(_WIDTH)
        tensors[f"{name}.bias"] = torch.zeros(_WIDTH)
    return tensors


def preprocessor_config() -> dict[str, Any]:
    """Returns preprocessor_config.json, which image readers of Kimi-K2.5 ask for."""
    return {
        "image_processor_type": "KimiK25VisionProcessor",
        "media_proc_cfg": {
            "in_patch_limit": _GRID**2,
            "patch_size": _PATCH_SIZE,
            "merge_kernel_size": _MERGE[0],
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5],
            "fixed_output_tokens": None,
        },
    }
