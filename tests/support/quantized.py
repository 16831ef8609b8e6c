# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Tiny checkpoints whose weights are truly quantized, and pairs of models loaded from them."""

from __future__ import annotations

import functools
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tensorrt_llm_ext.checkpoints.loader import load_draft, load_target
from tensorrt_llm_ext.checkpoints.writer import save_checkpoint
from tensorrt_llm_ext.ops.nvfp4.format import global_scale_of
from tensorrt_llm_ext.quantization.siblings import quantize_siblings, sibling_groups
from tensorrt_llm_ext.quantization.tensors import (
    QuantTensor,
    fp8_scale_of,
    quantize_fp8,
    quantize_nvfp4,
)
from tests.support.oracle_engine import Models
from tests.support.tiny_checkpoints import (
    draft_json,
    draft_shapes,
    random_tensors,
    target_json,
    target_shapes,
    wrapped,
)

Tensors = dict[str, torch.Tensor]
INPUT_AMAX = 6.0

# Patterns of canonical module names, and the format that they get. Every published layout.
EXPERTS = {r"\.experts\.": "nvfp4"}  # nvidia/Kimi-K2.5-NVFP4, Kimi-K2-Thinking, K2.6
TARGET_LAYOUTS: dict[str, dict[str, str]] = {
    "experts": EXPERTS,
    "mlp": {r"\.mlp\..*_proj$": "nvfp4"},  # DeepSeek-R1-NVFP4, Kimi-K2-Instruct
    "omlp": {r"\.mlp\..*_proj$|\.o_proj$": "nvfp4"},  # DeepSeek-V3.1, R1-NVFP4-v2
    "all_but_kv_b": {r"experts|mlp\..*_proj$|q_a|q_b|kv_a_proj|o_proj|lm_head": "nvfp4"},
    "all_but_experts": {r"shared_experts|q_a|q_b|kv_a_proj|o_proj|lm_head|s\.0\.mlp": "nvfp4"},
    "mixed": {r"\.experts\.\d+\.down": "fp8", r"\.experts\.": "nvfp4", r"q_b|o_proj": "fp8"},
    "fp8": {r"\.mlp\..*_proj$|q_a|q_b|kv_a_proj|o_proj|lm_head": "fp8"},
}
_LAYER = r"mlp\..*_proj$|q_a_proj|q_b|q_proj|kv_a_proj|o_proj"
DRAFT_TIERS: dict[str, dict[str, str]] = {
    "layer": {_LAYER: "nvfp4"},
    "layer_fc": {rf"{_LAYER}|^fc$": "nvfp4"},
    "layer_fc_head": {rf"{_LAYER}|^fc$|lm_head": "nvfp4"},
    "layer_fc_fp8_head": {"lm_head": "fp8", rf"{_LAYER}|^fc$": "nvfp4"},
    "fp8": {rf"{_LAYER}|^fc$|lm_head": "fp8"},
    # Only one of each pair of siblings.
    "half_fused": {r"kv_a_proj|up_proj": "nvfp4", "gate_proj": "fp8"},
}


def formats_of(modules: list[str], patterns: Mapping[str, str]) -> dict[str, str]:
    """The format of each module that a pattern matches; norms and routers match none."""
    found = {}
    for module in modules:
        if "norm" in module or module.endswith((".gate", "kv_b_proj", "embed_tokens")):
            continue
        for pattern, kind in patterns.items():
            if re.search(pattern, module):
                found[module] = kind
                break
    return found


def quantized(
    tensors: Mapping[str, torch.Tensor],
    patterns: Mapping[str, str],
    *,
    input_scale: bool = True,
    shares: bool = True,
) -> Tensors:
    """Replaces weights by what ModelOpt would store; float tensors stay.

    Args:
        tensors: A checkpoint in floating point.
        patterns: See `formats_of`.
        input_scale: Whether modules get one (W4A4, W8A8).
        shares: Whether fused siblings share their scales, as an exporter makes them.
    """
    modules = [name.removesuffix(".weight") for name in tensors if name.endswith(".weight")]
    formats = formats_of(modules, patterns)
    result = dict(tensors)
    done: dict[str, QuantTensor] = {}
    scales = {
        "nvfp4": global_scale_of(torch.tensor(INPUT_AMAX)) if input_scale else None,
        "fp8": torch.tensor(INPUT_AMAX / 448) if input_scale else None,
    }
    for group in sibling_groups(modules) if shares else ():
        if all(formats.get(module) == "nvfp4" for module in group):
            weights = {module: tensors[f"{module}.weight"] for module in group}
            done |= quantize_siblings(weights, input_scale=scales["nvfp4"])
        if all(formats.get(module) == "fp8" for module in group):
            weights = {module: tensors[f"{module}.weight"] for module in group}
            scale = fp8_scale_of(torch.cat(list(weights.values())).abs().amax())
            done |= {
                module: quantize_fp8(weight, scale=scale, input_scale=scales["fp8"])
                for module, weight in weights.items()
            }
    for module, kind in formats.items():
        quantize = quantize_nvfp4 if kind == "nvfp4" else quantize_fp8
        weight = done.get(module) or quantize(tensors[f"{module}.weight"], input_scale=scales[kind])
        result |= {name: t.clone() for name, t in weight.tensors(module).items()}
    return result


def quant_json(algo: str, exclude: list[str]) -> dict[str, Any]:
    """`quantization_config` of config.json as ModelOpt writes it."""
    return {
        "quant_method": "modelopt",
        "quant_algo": algo,
        "ignore": exclude,
        "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
    }


# Whose widths are all multiples of 16.
SIZES: dict[str, Any] = {"q_lora_rank": 32, "num_hidden_layers": 3}


def write_quantized_target(
    folder: Path,
    layout: str,
    *,
    seed: int = 0,
    wrapper: bool = True,
    excludes_are_wrapped: bool = True,
    config: Mapping[str, Any] | None = None,
    **options: Any,
) -> Tensors:
    """Writes a target in a layout of `TARGET_LAYOUTS`; returns its float tensors."""
    settings = {**target_json(), **SIZES, **(config or {})}
    tensors = random_tensors(target_shapes(settings), seed=seed)
    stored = quantized(tensors, TARGET_LAYOUTS[layout], **options)
    prefix = "language_model." if excludes_are_wrapped else ""
    exclude = [f"{prefix}lm_head", f"{prefix}model.layers.*.self_attn*", "vision_tower*"]
    document = wrapped(settings) if wrapper else settings
    document["quantization_config"] = quant_json("NVFP4", exclude)
    below = "language_model." if wrapper else ""
    save_checkpoint(folder, document, {f"{below}{name}": t for name, t in stored.items()})
    return tensors


def write_quantized_draft(
    folder: Path,
    tier: str,
    *,
    seed: int = 1,
    config: Mapping[str, Any] | None = None,
    shapes: Mapping[str, Any] | None = None,
    **options: Any,
) -> Tensors:
    """Writes a draft in a tier of `DRAFT_TIERS`; returns its float tensors."""
    draft = {
        **draft_json(),
        **SIZES,
        "num_hidden_layers": 1,
        "trtllm_ext_aux_boundaries": [1, 2, 3],
        **(config or {}),
    }
    draft["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}
    draft["quantization_config"] = quant_json("NVFP4", ["layers.0.self_attn.kv_b_proj"])
    tensors = random_tensors(draft_shapes(draft, **(shapes or {})), seed=seed)
    if "d2t" in tensors:  # the ids left out are those in the middle
        size, left_out = len(tensors["d2t"]), draft["vocab_size"] - len(tensors["d2t"])
        tensors["d2t"] = left_out * (torch.arange(size) >= size // 2)
    save_checkpoint(folder, draft, quantized(tensors, DRAFT_TIERS[tier], **options))
    return tensors


@functools.lru_cache(maxsize=32)
def quantized_models(
    mode: str, seed: int = 0, vocab_size: int = 5, layout: str = "experts", tier: str = "layer_fc"
) -> Models:
    """A quantized pair in float64; the same weights for every mode."""
    with tempfile.TemporaryDirectory() as folder:
        config = {"vocab_size": vocab_size}
        write_quantized_target(Path(folder, "t"), layout, seed=seed, config=config)
        config["draft_vocab_size"] = vocab_size - seed % 2
        write_quantized_draft(Path(folder, "d"), tier, seed=seed + 1, config=config)
        target = load_target(Path(folder, "t"), dtype=torch.float64, quant_mode=mode)
        return Models(target, load_draft(Path(folder, "d"), target, quant_mode=mode))
