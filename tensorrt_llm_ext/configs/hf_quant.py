# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Reads what a checkpoint declares about its quantization, whichever tool wrote it.

ModelOpt says it in hf_quant_config.json and again in config.json, there in one of two spellings:
the nested document of the file, without `quant_method`, or a flat one. compressed-tensors, FP8
block scales, Quark, AWQ and GPTQ write `quantization_config` only, wrappers a second time inside
`text_config`. An unknown method is described, never refused: whoever needs the weights decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from tensorrt_llm_ext.configs.quant import QuantConfig
from tensorrt_llm_ext.errors import ConfigError

INLINE_KEY: Final = "quantization_config"
FILE_NAME: Final = "hf_quant_config.json"
MIXED: Final = "MIXED_PRECISION"

_EXCLUDE_KEYS: Final = (
    "exclude_modules",
    "ignore",
    "exclude",
    "modules_to_not_convert",
    "ignored_layers",
    "modules_to_not_quantize",
)
# A ModelOpt document has at least one of these; a null quant_algo means float weights.
_MODELOPT_KEYS: Final = ("quant_algo", "kv_cache_quant_algo", "kv_cache_scheme", "quantized_layers")
# compressed-tensors: what a `format` holds when its groups do not say.
_CT_FORMATS: Final[Mapping[str, str]] = {
    "nvfp4-pack-quantized": "NVFP4",
    "mxfp4-pack-quantized": "MXFP4",
    "float-quantized": "FP8",
    "naive-quantized": "FP8",
    "int-quantized": "INT8",
    "pack-quantized": "INT4",
}
# Names of rotations of the hidden states; a rotation of the KV cache alone is none.
_ROTATION_KEY: Final = re.compile(r"quarot|spinquant|rotat|hadamard|transform_config", re.I)
_ROTATION_VALUE: Final = re.compile(r"quarot|spinquant", re.I)
_KV_KEY: Final = re.compile(r"kv|k_cache|v_cache", re.I)
_MAX_DEPTH: Final = 6


def quant_config_from_hf(
    config: Mapping[str, Any], hf_quant_config: Mapping[str, Any] | None = None
) -> QuantConfig:
    """Reads the quantization metadata of a checkpoint.

    Args:
        config: The parsed config.json; a wrapper's `text_config` is searched too.
        hf_quant_config: The parsed hf_quant_config.json, or None.

    Returns:
        What is declared. Methods that this package does not know are described by their own name.

    Raises:
        ConfigError: If two places declare different things (V23).
    """
    found = list(_sources(config, hf_quant_config))
    rotation = next((name for _, section in found if (name := _rotation(section))), "")
    if not rotation:
        rotation = _rotation({k: v for k, v in config.items() if _ROTATION_KEY.search(str(k))})
    read = [_read(section, source) for source, section in found]
    for other in read[1:]:
        _check_same(read[0], other)
    if not read:
        return QuantConfig(rotation=rotation, source="config.json" if rotation else "")
    chosen = read[0]
    return QuantConfig(
        method=chosen.method,
        algo=chosen.algo,
        group_size=chosen.group_size or _first(r.group_size for r in read),
        kv_cache_algo=chosen.kv_cache_algo or _first(r.kv_cache_algo for r in read),
        exclude=chosen.exclude or _first(r.exclude for r in read) or (),
        layers=chosen.layers or _first(r.layers for r in read) or {},
        source=chosen.source,
        rotation=rotation,
    )


def _sources(
    config: Mapping[str, Any], hf_quant_config: Mapping[str, Any] | None
) -> Iterable[tuple[str, Mapping[str, Any]]]:
    if isinstance(hf_quant_config, Mapping):
        yield FILE_NAME, hf_quant_config
    inline = config.get(INLINE_KEY)
    if isinstance(inline, Mapping) and inline:
        yield f"{INLINE_KEY} in config.json", inline
    text = config.get("text_config")
    inner = text.get(INLINE_KEY) if isinstance(text, Mapping) else None
    if isinstance(inner, Mapping) and inner:
        yield f"text_config.{INLINE_KEY} in config.json", inner


def _read(section: Mapping[str, Any], source: str) -> QuantConfig:
    nested = section.get("quantization")
    body = nested if isinstance(nested, Mapping) else section
    method = _method(section, body, source)
    reader = _READERS.get(method, _read_unknown)
    algo, group_size = reader(body)
    layers = _layers(body)
    if layers and algo is None:
        algo = MIXED
    return QuantConfig(
        method=method if algo is not None or method != "modelopt" else "none",
        algo=algo,
        group_size=group_size,
        kv_cache_algo=_kv_cache(body),
        exclude=_excludes(body),
        layers=layers,
        source=source,
    )


def _method(section: Mapping[str, Any], body: Mapping[str, Any], source: str) -> str:
    name = section.get("quant_method") or body.get("quant_method")
    if not isinstance(name, str):
        known = {*_MODELOPT_KEYS, "producer", "quantization"}
        is_modelopt = source == FILE_NAME or bool(known & (set(section) | set(body)))
        return "modelopt" if is_modelopt else "unknown"
    name = name.lower()
    return "modelopt" if name.startswith("modelopt") else name


def _read_modelopt(body: Mapping[str, Any]) -> tuple[str | None, int | None]:
    algo = _algo(body.get("quant_algo"))
    weights = _group_weights(body)
    if not any(key in body for key in _MODELOPT_KEYS):
        algo = "UNKNOWN"  # somebody quantized it, or the file is damaged
    return algo, _size(body.get("group_size")) or _size(weights.get("group_size"))


def _read_compressed(body: Mapping[str, Any]) -> tuple[str | None, int | None]:
    weights = _group_weights(body)
    bits, kind = _size(weights.get("num_bits")), weights.get("type")
    group = _size(weights.get("group_size"))
    form = body.get("format")
    if bits is None:
        name = form if isinstance(form, str) else ""
        return _CT_FORMATS.get(name, name.upper() or "COMPRESSED_TENSORS"), group
    if kind == "float" and bits == 4:
        return _CT_FORMATS.get(str(form), "NVFP4"), group
    if kind == "float":
        block = weights.get("block_structure") or weights.get("strategy") == "block"
        return ("FP8_BLOCK_SCALES" if block else f"FP{bits}"), group
    return f"INT{bits}", group


def _read_fp8(body: Mapping[str, Any]) -> tuple[str | None, int | None]:
    block = body.get("weight_block_size")
    if isinstance(block, (list, tuple)) and block:
        return "FP8_BLOCK_SCALES", _size(block[-1])
    return "FP8", None


def _read_quark(body: Mapping[str, Any]) -> tuple[str | None, int | None]:
    weight = _mapping(_mapping(body.get("global_quant_config")).get("weight"))
    dtype = str(weight.get("dtype") or "").lower()
    for mark, algo in (("fp8", "FP8"), ("fp4", "MXFP4"), ("int8", "INT8"), ("int4", "INT4")):
        if mark in dtype:
            return algo, _size(weight.get("group_size"))
    return "QUARK", _size(weight.get("group_size"))


def _read_bits(name: str) -> Any:
    def read(body: Mapping[str, Any]) -> tuple[str | None, int | None]:
        bits = _size(body.get("bits")) or _size(body.get("w_bit")) or 4
        group = _size(body.get("group_size")) or _size(body.get("q_group_size"))
        return f"W{bits}A16_{name}", group

    return read


def _read_named(algo: str, group_size: int | None) -> Any:
    return lambda body: (algo, _size(body.get("group_size")) or group_size)


def _read_unknown(body: Mapping[str, Any]) -> tuple[str | None, int | None]:
    algo = _algo(body.get("quant_algo")) or _algo(body.get("quant_method"))
    return (algo or "UNKNOWN"), _size(body.get("group_size"))


_READERS: Final[Mapping[str, Any]] = {
    "modelopt": _read_modelopt,
    "compressed-tensors": _read_compressed,
    "fp8": _read_fp8,
    "quark": _read_quark,
    "awq": _read_bits("AWQ"),
    "gptq": _read_bits("GPTQ"),
    "nvfp4": _read_named("NVFP4", 16),
    "mxfp4": _read_named("MXFP4", 32),
}


def _algo(value: object) -> str | None:
    """An algorithm's name; null and ModelOpt's NO_QUANT mean none."""
    if not isinstance(value, str) or value.upper() in ("", "NO_QUANT", "NONE"):
        return None
    return value.upper()


def _size(value: object) -> int | None:
    whole = isinstance(value, int) and not isinstance(value, bool) and value > 0
    return value if whole and isinstance(value, int) else None


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _group_weights(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """`weights` of the first config group that has them."""
    for group in _mapping(body.get("config_groups")).values():
        weights = _mapping(_mapping(group).get("weights"))
        if weights:
            return weights
    return {}


def _kv_cache(body: Mapping[str, Any]) -> str | None:
    name = body.get("kv_cache_quant_algo")
    scheme = body.get("kv_cache_scheme")
    if not isinstance(name, str) and isinstance(scheme, str):
        name = scheme
    if isinstance(name, str):
        return _algo(name)
    if isinstance(scheme, Mapping):
        bits = _size(scheme.get("num_bits")) or 8
        kind = "FP" if scheme.get("type", "float") == "float" else "INT"
        return f"{kind}{bits}"
    quark = _mapping(body.get("kv_cache_quant_config"))
    return "FP8" if quark else None


def _excludes(body: Mapping[str, Any]) -> tuple[str, ...]:
    for key in _EXCLUDE_KEYS:
        value = body.get(key)
        if isinstance(value, (list, tuple)) and value:
            return tuple(item for item in value if isinstance(item, str))
    return ()


def _layers(body: Mapping[str, Any]) -> dict[str, str]:
    """Algorithm of each module that MIXED_PRECISION lists."""
    layers = {}
    for module, entry in _mapping(body.get("quantized_layers")).items():
        algo = _algo(entry.get("quant_algo") if isinstance(entry, Mapping) else entry)
        if algo is not None:
            layers[str(module)] = algo
    return layers


def _rotation(value: object, depth: int = 0) -> str:
    """The first mention of a rotation of hidden states, or nothing."""
    if not isinstance(value, Mapping) or depth > _MAX_DEPTH:
        return ""
    for key, item in value.items():
        name = str(key)
        if _KV_KEY.search(name) or name in _EXCLUDE_KEYS:
            continue
        if _ROTATION_KEY.search(name) and item and str(item).lower() != "none":
            return name
        if isinstance(item, str) and _ROTATION_VALUE.search(item):
            return item[:80]
        inner = _rotation(item, depth + 1)
        if inner:
            return inner
    return ""


def _first(values: Iterable[Any]) -> Any:
    return next((value for value in values if value), None)


def _check_same(one: QuantConfig, other: QuantConfig) -> None:
    pairs: list[tuple[str, Any, Any]] = [("algorithm", one.algo, other.algo)]
    pairs += [
        (what, a, b)
        for what, a, b in (
            ("group size", one.group_size, other.group_size),
            ("KV cache", one.kv_cache_algo, other.kv_cache_algo),
            ("quantized layers", dict(one.layers) or None, dict(other.layers) or None),
        )
        if a is not None and b is not None
    ]
    for what, a, b in pairs:
        if a != b:
            raise ConfigError(
                f"{one.source} and {other.source} contradict each other about the {what}: "
                f"{a if a is not None else 'none'} against {b if b is not None else 'none'}. One "
                "of them is left over from another export: keep the one that fits the tensors.",
                check="V23",
            )
