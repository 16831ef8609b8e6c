# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Tiny drafts in the form of a ModelOpt NVFP4 export; right dtypes and shapes, made-up values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

Tensors = dict[str, torch.Tensor]

# Modules whose width is a multiple of a block in `tiny_checkpoints.draft_json()`; q_b_proj is not.
QUANTIZED = (
    "fc",
    "layers.0.self_attn.q_a_proj",
    "layers.0.self_attn.kv_a_proj_with_mqa",
    "layers.0.self_attn.o_proj",
    "layers.0.mlp.gate_proj",
    "layers.0.mlp.up_proj",
    "layers.0.mlp.down_proj",
)
EXPORTED_EXCLUDES = [
    "eagle_module.layers.0.self_attn.kv_b_proj",
    "eagle_module.layers.0.self_attn.q_b_proj",
    "lm_head",
    "model*",
]
BLOCK = 16


def nvfp4_tensors(
    tensors: Mapping[str, torch.Tensor], modules: tuple[str, ...] = QUANTIZED, *, seed: int = 5
) -> Tensors:
    """Replaces the weights of some modules by packed codes, block scales and two scalars.

    q_a with kv_a, and gate with up, share their scalars, as exporters make them.
    """
    generator = torch.Generator().manual_seed(seed)
    result = dict(tensors)
    for module in modules:
        rows, columns = result.pop(f"{module}.weight").shape
        codes = torch.randint(0, 256, (rows, columns // 2), generator=generator)
        scales = 0.5 + torch.rand((rows, columns // BLOCK), generator=generator)
        result |= {
            f"{module}.weight": codes.to(torch.uint8),
            f"{module}.weight_scale": scales.to(torch.float8_e4m3fn),
            f"{module}.weight_scale_2": torch.tensor(1.5e-4),
            f"{module}.input_scale": torch.tensor(2.5e-3),
        }
    return result


def hf_quant_config(exclude: list[str] | None = None, **overrides: Any) -> dict[str, Any]:
    """hf_quant_config.json as ModelOpt's draft exporter writes it, leftovers included."""
    quantization = {
        "quant_algo": "NVFP4",
        "kv_cache_quant_algo": None,
        "group_size": 16,
        "exclude_modules": EXPORTED_EXCLUDES if exclude is None else exclude,
    }
    return {
        "producer": {"name": "modelopt", "version": "0.47.0"},
        "quantization": {**quantization, **overrides},
    }
