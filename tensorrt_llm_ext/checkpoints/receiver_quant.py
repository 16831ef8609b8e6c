# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Quantization metadata of a draft in a receiver's module names.

Exclude lists of exporters name modules of the training model, and match nothing, or everything,
elsewhere. The tensors say which modules are quantized, so the lists are written from them.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tensorrt_llm_ext.checkpoints.names import canonical_draft_name
from tensorrt_llm_ext.checkpoints.quantized import Stored, module_formats
from tensorrt_llm_ext.checkpoints.receivers import Receiver
from tensorrt_llm_ext.configs.quant import QuantConfig
from tensorrt_llm_ext.errors import ConfigError

_LAYER: Final = re.compile(r"^layers\.(\d+)\.(.*)$")
# Engines fuse q_a with kv_a and gate with up under names of their own; each pattern catches the
# fused name too.
_FUSED: Final[Mapping[str, str]] = {
    "self_attn.q_a_proj": "self_attn.*_a_proj*",
    "self_attn.kv_a_proj_with_mqa": "self_attn.*_a_proj*",
    "mlp.gate_proj": "mlp.gate*_proj",
    "mlp.up_proj": "mlp.*up_proj",
}
_FP8_KV: Final = {"dynamic": False, "num_bits": 8, "type": "float"}
_BITS: Final[Mapping[str, int]] = {"NVFP4": 4, "W4A16_NVFP4": 4, "FP8": 8}


@dataclass(frozen=True, kw_only=True, slots=True)
class QuantMetadata:
    """What a receiver's files say about quantization.

    Attributes:
        quantization_config: The section of config.json; None when there is none.
        hf_quant_config: Content of hf_quant_config.json; None when there is none.
        exclude: The patterns of modules left alone.
    """

    quantization_config: dict[str, Any] | None = None
    hf_quant_config: dict[str, Any] | None = None
    exclude: tuple[str, ...] = field(default=())


def linear_modules(tensors: Stored) -> dict[str, bool]:
    """Returns the modules that hold a matrix, embedding left out, and whether each is quantized.

    Args:
        tensors: Dtype and shape by canonical name.
    """
    return {
        module: form.kind != "float"
        for module, form in sorted(module_formats(tensors).items())
        if module != "embed_tokens" and (form.kind != "float" or len(form.shape) == 2)
    }


def module_name(receiver: Receiver, module: str, num_layers: int) -> str:
    """Returns the name that a module has in the receiver's files."""
    match = _LAYER.match(module)
    if match is None:
        return module
    index, rest = int(match[1]), match[2]
    if index and rest == "input_layernorm":
        rest = receiver.later_norm
    prefix = receiver.layer_prefix if num_layers == 1 else receiver.layers_prefix
    return prefix.format(index=index) + rest


def module_pattern(receiver: Receiver, module: str, num_layers: int) -> str:
    """Returns what the receiver matches against the module in exclude lists."""
    match = _LAYER.match(module)
    rest = match[2] if match is not None else module
    if receiver.module_root is None:
        # Layers are numbered after the target's, under prefixes that depend on the version.
        if match is None:
            return module if module == "lm_head" else f"*{module}"
        return f"*.{_FUSED.get(rest, rest)}"
    root = "" if module == "lm_head" else receiver.module_root
    name = module_name(receiver, module, num_layers)
    if receiver.fuses_gate_up and rest.startswith("mlp.") and rest in _FUSED:
        name = name[: -len(rest)] + _FUSED[rest]
    return root + name


def quant_metadata(
    receiver: Receiver,
    quant: QuantConfig,
    tensors: Stored,
    source: Mapping[str, Any],
    num_layers: int,
) -> QuantMetadata:
    """Returns a draft's quantization metadata in a receiver's names.

    Args:
        receiver: Who is to read it.
        quant: What the source declares.
        tensors: Dtype and shape by canonical name.
        source: What the draft's files say now: `quantization_config` of config.json, and
            `producer` of hf_quant_config.json.
        num_layers: Number of the draft's layers.

    Raises:
        ConfigError: If no list can keep apart what is quantized and what is not (V23).
    """
    if not quant.is_quantized and quant.kv_cache_algo is None:
        return QuantMetadata()
    modules = linear_modules(tensors)
    exclude = _exclude(receiver, modules, num_layers) if quant.is_quantized else ()
    section = source.get("quantization_config")
    section = copy.deepcopy(dict(section)) if isinstance(section, Mapping) else {}
    if quant.method not in ("modelopt", "none"):
        return QuantMetadata(
            quantization_config=_renamed_section(section, exclude), exclude=exclude
        )
    layers = _layers(receiver, quant, modules, num_layers)
    producer = source.get("producer") or section.get("producer") or {"name": "modelopt"}
    section["producer"] = producer
    return QuantMetadata(
        quantization_config=_modelopt_section(quant, tensors, section, exclude, layers)
        if quant.is_quantized
        else None,
        hf_quant_config={
            "producer": producer,
            "quantization": {
                "quant_algo": quant.algo,
                "kv_cache_quant_algo": quant.kv_cache_algo,
                **({"group_size": quant.group_size} if quant.group_size else {}),
                **({"quantized_layers": layers} if layers else {"exclude_modules": list(exclude)}),
            },
        },
        exclude=exclude,
    )


def _exclude(receiver: Receiver, modules: Mapping[str, bool], num_layers: int) -> tuple[str, ...]:
    """Patterns of the modules that are not quantized, each once."""
    patterns: dict[str, str] = {}
    for module, is_quantized in modules.items():
        if not is_quantized:
            patterns.setdefault(module_pattern(receiver, module, num_layers), module)
    for module, is_quantized in modules.items():
        pattern = module_pattern(receiver, module, num_layers)
        if is_quantized and pattern in patterns:
            raise ConfigError(
                f"{module} is quantized and {patterns[pattern]} is not, but {receiver.title} "
                f"handles both as one ({pattern}). Quantize both, or neither.",
                check="V23",
            )
    return tuple(sorted(patterns))


def _layers(
    receiver: Receiver, quant: QuantConfig, modules: Mapping[str, bool], num_layers: int
) -> dict[str, Any]:
    """`quantized_layers` of MIXED_PRECISION; empty for one algorithm."""
    layers: dict[str, Any] = {}
    for name, algo in quant.layers.items():
        module = canonical_draft_name(name)
        if module not in modules:
            continue
        root = "" if module == "lm_head" else receiver.module_root or ""
        entry: dict[str, Any] = {"quant_algo": algo}
        if "FP4" in algo:
            entry["group_size"] = quant.group_size or 16
        layers[root + module_name(receiver, module, num_layers)] = entry
    return dict(sorted(layers.items()))


def _modelopt_section(
    quant: QuantConfig,
    tensors: Stored,
    section: dict[str, Any],
    exclude: Sequence[str],
    layers: Mapping[str, Any],
) -> dict[str, Any]:
    """`quantization_config` in ModelOpt's present form, whatever form the source had."""
    groups = section.get("config_groups") or _groups(quant, tensors)
    result: dict[str, Any] = {"quant_method": "modelopt", "quant_algo": quant.algo}
    if groups:
        result["config_groups"] = groups
    if quant.group_size:
        result["group_size"] = quant.group_size
    if quant.kv_cache_algo is not None:
        fp8 = quant.kv_cache_algo == "FP8"
        result["kv_cache_scheme"] = dict(_FP8_KV) if fp8 else quant.kv_cache_algo
    if layers:
        result["quantized_layers"] = dict(layers)
    else:
        result["ignore"] = list(exclude)
    result["producer"] = section["producer"]
    return result


def _groups(quant: QuantConfig, tensors: Stored) -> dict[str, Any] | None:
    """`config_groups` of an algorithm whose form is known."""
    bits = _BITS.get(quant.algo or "")
    if bits is None:
        return None
    numbers: dict[str, Any] = {"dynamic": False, "num_bits": bits, "type": "float"}
    if bits == 4:
        numbers["group_size"] = quant.group_size or 16
    # Without scales of the inputs only weights are quantized, and engines need to know.
    has_inputs = any(name.endswith(".input_scale") for name in tensors)
    group = {
        "input_activations": dict(numbers) if has_inputs else None,
        "weights": dict(numbers),
        "targets": ["Linear"],
    }
    return {"group_0": group}


def _renamed_section(section: dict[str, Any], exclude: Sequence[str]) -> dict[str, Any]:
    """The section of another tool with its list of modules left alone in the receiver's names."""
    patterns = [_as_regex(p) if "*" in p else p for p in exclude]
    keys = [key for key in ("ignore", "modules_to_not_convert", "exclude") if key in section]
    for key in keys or ["ignore"]:
        section[key] = patterns
    return section


def _as_regex(pattern: str) -> str:
    return "re:" + ".*".join(re.escape(part) for part in pattern.split("*"))
