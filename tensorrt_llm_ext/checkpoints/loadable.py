# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Which quantized weights are loaded: NVFP4 and per-tensor FP8. All others are refused by name.

The tensors decide, not the metadata: exclude patterns in anybody's spelling change nothing here.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from tensorrt_llm_ext.checkpoints.module_formats import ModuleFormat, Stored, module_formats
from tensorrt_llm_ext.configs.quant import QuantConfig
from tensorrt_llm_ext.errors import CheckpointError, UnsupportedError
from tensorrt_llm_ext.ops.nvfp4.format import BLOCK_SIZE
from tensorrt_llm_ext.quantization.policy import check_format

_logger = logging.getLogger(__name__)

# Scales of a quantized KV cache; the cache of this engine is in the dtype of its activations.
_CACHE_SCALES: Final = ("k_scale", "v_scale", "q_scale")
_SUPPORTED: Final = "Supported are NVFP4 (ModelOpt) and FP8 with one scale per tensor."
_ADVICE: Final[Mapping[str, str]] = {
    "int4": (
        "These are integers that share a scale per group: use the bf16 or the NVFP4 release of the "
        "model, or decompress it with the tool that wrote it (the compressed-tensors package for "
        "`weight_packed`)."
    ),
    "fp8_block": "Dequantize its 128 x 128 blocks first, or use the bf16 or the NVFP4 release.",
    "fp8": "Export it with one scale per tensor (ModelOpt's FP8), or use the bf16 checkpoint.",
    "nvfp4": "Quantize the bf16 checkpoint with ModelOpt's NVFP4 (see modelopt_recipes).",
}


def loadable_formats(stored: Stored, quant: QuantConfig, *, label: str) -> dict[str, str]:
    """Returns the format of every module that is not in floating point.

    Args:
        stored: dtype name and shape of each tensor, by canonical name.
        quant: What the checkpoint declares; where it contradicts the tensors, that is logged.
        label: What messages call the checkpoint.

    Returns:
        "nvfp4" or "fp8" by module name.

    Raises:
        UnsupportedError: If a module is in a format that is not loaded; the message names it.
        CheckpointError: If the tensors of a module contradict each other (check "V23"), or a
            module is quantized that must not be (check "V24").
    """
    found: dict[str, str] = {}
    for module, form in module_formats(stored).items():
        reason = _unsupported(module, form, stored)
        if reason:
            declared = f", declared as {quant.describe()}" if quant.is_quantized else ""
            advice = _ADVICE.get(form.kind, "Use the bf16 release of the model.")
            raise UnsupportedError(
                f"{label} is quantized in a way that is not loaded: {module} {reason}{declared}. "
                f"{_SUPPORTED} {advice}"
            )
        if form.problems:
            raise CheckpointError(
                f"{label}: {module} {form.problems[0]}. The export is incomplete or damaged: "
                "export or download it again.",
                check="V23",
            )
        if form.kind != "float":
            check_format(module, form.kind)
            found[module] = form.kind
    _compare(found, quant, label)
    return found


def cache_scales(stored: Stored) -> tuple[str, ...]:
    """Returns the names of the scales of a quantized KV cache, which are not used here."""
    return tuple(name for name in stored if name.rpartition(".")[2] in _CACHE_SCALES)


def _unsupported(module: str, form: ModuleFormat, stored: Stored) -> str:
    """Says in which format a module is when it is none that is loaded; empty when it is."""
    scales = form.scales
    if form.kind == "int4":
        return f"holds packed integers ({form.dtype}: INT4 of compressed-tensors, GPTQ or AWQ)"
    if form.kind == "fp8_block":
        return "is FP8 with a scale per block of 128 x 128 (DeepSeek's)"
    if "pre_quant_scale" in scales:
        return f"is {form.kind} with pre_quant_scale (AWQ: activations are scaled first)"
    if form.kind == "nvfp4" and "weight_packed" in scales:
        return "is NVFP4 in the layout of compressed-tensors (weight_packed)"
    if form.kind == "nvfp4" and form.group_size != BLOCK_SIZE and not form.problems:
        return f"is FP4 in blocks of {form.group_size} (W4A8), not of {BLOCK_SIZE}"
    if form.kind == "fp8":
        return _unsupported_fp8(module, form, stored)
    if form.kind == "unknown":
        return f"is in a format that is not known ({form.problems[0] if form.problems else ''})"
    return ""


def _unsupported_fp8(module: str, form: ModuleFormat, stored: Stored) -> str:
    if form.dtype != "F8_E4M3":
        return f"is FP8 as {form.dtype}, expected F8_E4M3"
    if "weight_scale_inv" in form.scales:
        return "is FP8 with weight_scale_inv (DeepSeek's)"
    shape = stored[f"{module}.weight_scale"][1] if "weight_scale" in form.scales else ()
    return "" if shape in ((), (1,)) else f"is FP8 with {shape[0]} scales, one per output row"


def _compare(found: Mapping[str, str], quant: QuantConfig, label: str) -> None:
    """Logs what is declared and is not so; `doctor` says more about it (V23)."""
    if quant.is_quantized and not found:
        _logger.warning(
            "%s: %s declares %s, but every tensor is in floating point and is loaded as such.",
            label,
            quant.source,
            quant.describe(),
        )
    if found and not quant.is_quantized:
        _logger.warning(
            "%s: %d modules are quantized (%s is %s), which no file declares; engines that read "
            "the declaration first will misread them.",
            label,
            len(found),
            *next(iter(found.items())),
        )


__all__ = ["cache_scales", "loadable_formats"]
