# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""What the tensors say about quantization, and whether the metadata agree.

A module is what its tensors are: a `weight` of bytes with a scale per 16 values is NVFP4 whatever
config.json declares. Metadata that say something else are a finding (V23), and so is a quantized
module that no engine can run (V24).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tensorrt_llm_ext.checkpoints.names import canonical_draft_name
from tensorrt_llm_ext.configs.quant import QuantConfig
from tensorrt_llm_ext.planning.host_names import MAX_PATTERN, host_module_names, matches_exclude

Stored = Mapping[str, tuple[str, tuple[int, ...]]]

SCALE_SUFFIXES: Final = (
    "weight_scale",
    "weight_scale_2",
    "weight_scale_inv",
    "input_scale",
    "weight_zero_point",
    "weight_packed",
    "weight_shape",
    "weight_g_idx",
    "weight_global_scale",
    "input_global_scale",
    "pre_quant_scale",
    "k_scale",
    "v_scale",
    "q_scale",
    "output_scale",
    "qweight",
    "qzeros",
    "scales",
    "g_idx",
)
_FLOATS: Final = ("F64", "F32", "F16", "BF16")
_FP8: Final = ("F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ")
_BYTES: Final = ("U8", "I8", "F4")
_NVFP4_BLOCK: Final = 16
_FP8_BLOCK: Final = 128
_MAX_PATTERNS: Final = 1024
# What a declared algorithm makes of a module.
_KIND_OF_ALGO: Final[Mapping[str, tuple[str, ...]]] = {
    "NVFP4": ("nvfp4",),
    "NVFP4_AWQ": ("nvfp4",),
    "W4A16_NVFP4": ("nvfp4",),
    "W4A8_NVFP4_FP8": ("nvfp4",),
    "FP8": ("fp8",),
    "FP8_PER_CHANNEL_PER_TOKEN": ("fp8",),
    "FP8_PB_WO": ("fp8_block",),
    "FP8_BLOCK_SCALES": ("fp8_block",),
    "INT4": ("int4",),
    "W4A16_AWQ": ("int4",),
    "W4A16_GPTQ": ("int4",),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ModuleFormat:
    """How one module's weight is stored.

    Attributes:
        kind: "float", "nvfp4", "fp8" (one scale, or one per output row), "fp8_block", "int4" or
            "unknown".
        dtype: dtype name of the stored weight.
        shape: Shape of the weight in values, [out_features, in_features] for a linear module.
        group_size: Values along K that share a scale; None when there is one per row or tensor.
        scales: Names of the tensors beside the weight, without the module's name.
        problems: What is inconsistent about them, in words; empty when they fit.
    """

    kind: str
    dtype: str
    shape: tuple[int, ...]
    group_size: int | None = None
    scales: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class QuantProblem:
    """Something wrong with the quantization of a draft.

    Attributes:
        check: Id of the check that it is a finding of.
        message: What was found, what was expected, what to do.
        fatal: Whether the draft must not be served so.
    """

    check: str
    message: str
    fatal: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class ExcludeReport:
    """What exclude patterns match.

    Attributes:
        matched: Canonical modules by pattern, for patterns that match some.
        stale: Patterns that match none, as written.
        renamed: Patterns that match only once their exporter's names (`eagle_module.`,
            `midlayer.`) are made canonical, so that no engine honours them as written.
    """

    matched: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    stale: tuple[str, ...] = ()
    renamed: tuple[str, ...] = ()


def module_formats(tensors: Stored) -> dict[str, ModuleFormat]:
    """Decides, for every module with a weight, how it is stored.

    Args:
        tensors: dtype name and shape by canonical name.

    Returns:
        The format by module name (`layers.0.mlp.up_proj`, `fc`, `norm`), problems included;
        modules that hold scales but no weight are of kind "unknown".
    """
    modules: dict[str, dict[str, tuple[str, tuple[int, ...]]]] = {}
    for name, entry in tensors.items():
        module, dot, kind = name.rpartition(".")
        if dot and (kind in ("weight", "bias") or kind in SCALE_SUFFIXES):
            modules.setdefault(module, {})[kind] = entry
    return {
        module: _module_format(parts)
        for module, parts in modules.items()
        if parts.keys() - {"bias", "k_scale", "v_scale", "q_scale"}
    }


def logical_shapes(tensors: Stored) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every tensor as if nothing were quantized.

    Packed weights count in values and are called `X.weight`; scales are left out.

    Args:
        tensors: dtype name and shape by canonical name.
    """
    shapes = {
        name: tuple(shape)
        for name, (_, shape) in tensors.items()
        if name.rpartition(".")[2] not in SCALE_SUFFIXES
    }
    for module, form in module_formats(tensors).items():
        if form.kind != "float" and form.shape:
            shapes[f"{module}.weight"] = form.shape
    return shapes


def _module_format(parts: Mapping[str, tuple[str, tuple[int, ...]]]) -> ModuleFormat:
    scales = tuple(sorted(kind for kind in parts if kind in SCALE_SUFFIXES))
    packed = parts.get("weight_packed")
    if packed is not None:
        dtype, shape = packed
        if dtype in _BYTES:  # compressed-tensors' NVFP4
            return _nvfp4(parts, packed, scales, packed_name="weight_packed")
        return ModuleFormat(kind="int4", dtype=dtype, shape=_times(shape, 8), scales=scales)
    if "qweight" in parts:
        dtype, shape = parts["qweight"]
        return ModuleFormat(kind="int4", dtype=dtype, shape=(), scales=scales)
    weight = parts.get("weight")
    if weight is None:
        problem = f"has {', '.join(scales)} but no weight"
        return ModuleFormat(kind="unknown", dtype="", shape=(), scales=scales, problems=(problem,))
    dtype, shape = weight
    if dtype in _FLOATS:
        return _float(dtype, shape, scales)
    if dtype in _FP8:
        return _fp8(parts, weight, scales)
    if dtype in _BYTES and "weight_scale" in parts:
        return _nvfp4(parts, weight, scales)
    problem = f"is stored as {dtype} without weight_scale"
    return ModuleFormat(
        kind="unknown", dtype=dtype, shape=shape, scales=scales, problems=(problem,)
    )


def _times(shape: tuple[int, ...], factor: int) -> tuple[int, ...]:
    return (*shape[:-1], shape[-1] * factor) if shape else shape


def _float(dtype: str, shape: tuple[int, ...], scales: tuple[str, ...]) -> ModuleFormat:
    weight_scales = [name for name in scales if name.startswith("weight_")]
    problems = (
        (f"is {dtype}, but has {', '.join(weight_scales)}: a float weight has no scale",)
        if weight_scales
        else ()
    )
    return ModuleFormat(kind="float", dtype=dtype, shape=shape, scales=scales, problems=problems)


def _nvfp4(
    parts: Mapping[str, tuple[str, tuple[int, ...]]],
    weight: tuple[str, tuple[int, ...]],
    scales: tuple[str, ...],
    packed_name: str = "weight",
) -> ModuleFormat:
    dtype, shape = weight
    logical = _times(shape, 1 if dtype == "F4" else 2)
    problems = []
    scale = parts.get("weight_scale")
    group = _NVFP4_BLOCK
    if scale is None:
        problems.append(f"has a packed {packed_name} but no weight_scale")
    elif len(logical) != 2 or len(scale[1]) != 2 or scale[1][0] != logical[0] or not scale[1][1]:
        problems.append(
            f"has a weight_scale of shape {list(scale[1])} for a weight of {list(logical)} values; "
            f"expected [out, in/{_NVFP4_BLOCK}], not swizzled"
        )
    else:
        group = logical[1] // scale[1][1]
        if logical[1] % scale[1][1] or group not in (_NVFP4_BLOCK, 32):
            problems.append(
                f"has {scale[1][1]} scales for {logical[1]} values per row, expected one per "
                f"{_NVFP4_BLOCK}"
            )
        if scale[0] not in _FP8[:1] and scale[0] not in ("U8", "F8_E8M0"):
            problems.append(f"has a weight_scale of dtype {scale[0]}, expected F8_E4M3")
    if packed_name == "weight" and "weight_scale_2" not in parts:
        problems.append("has no weight_scale_2, the scale of the whole tensor")
    kind = "unknown" if scale is not None and scale[0] == "F8_E8M0" else "nvfp4"
    return ModuleFormat(
        kind=kind,
        dtype=dtype,
        shape=logical,
        group_size=group,
        scales=scales,
        problems=tuple(problems),
    )


def _fp8(
    parts: Mapping[str, tuple[str, tuple[int, ...]]],
    weight: tuple[str, tuple[int, ...]],
    scales: tuple[str, ...],
) -> ModuleFormat:
    dtype, shape = weight
    scale = parts.get("weight_scale_inv") or parts.get("weight_scale")
    if scale is None:
        problem = "is FP8, but has neither weight_scale nor weight_scale_inv"
        return ModuleFormat(
            kind="fp8", dtype=dtype, shape=shape, scales=scales, problems=(problem,)
        )
    rows = shape[0] if shape else 0
    if scale[0] in ("U8", "F8_E8M0"):  # MXFP8: a power of two per 32 values
        return ModuleFormat(kind="unknown", dtype=dtype, shape=shape, group_size=32, scales=scales)
    if scale[1] in ((), (1,), (rows,), (rows, 1)):
        return ModuleFormat(kind="fp8", dtype=dtype, shape=shape, scales=scales)
    blocks = tuple(-(-size // _FP8_BLOCK) for size in shape)
    problems: tuple[str, ...] = ()
    if scale[1] != blocks:
        problems = (
            f"has scales of shape {list(scale[1])} for a weight of {list(shape)}; expected one, "
            f"one per row, or one per {_FP8_BLOCK} x {_FP8_BLOCK} block, {list(blocks)}",
        )
    return ModuleFormat(
        kind="fp8_block",
        dtype=dtype,
        shape=shape,
        group_size=_FP8_BLOCK,
        scales=scales,
        problems=problems,
    )


def match_excludes(patterns: Iterable[str], modules: Sequence[str]) -> ExcludeReport:
    """Matches exclude patterns of any exporter against the modules of a draft.

    A pattern matches a module, or all below a module that it matches, as in current hosts: by
    shell wildcards, by a trailing `.*`, or, after `re:`, as a regular expression.

    Args:
        patterns: As written in the metadata.
        modules: Canonical module names.
    """
    matched: dict[str, tuple[str, ...]] = {}
    stale, renamed = [], []
    for number, pattern in enumerate(patterns):
        if number >= _MAX_PATTERNS or len(pattern) > MAX_PATTERN:
            stale.append(f"{pattern[:MAX_PATTERN]}")
            continue
        canonical = _canonical_pattern(pattern)
        hits = tuple(m for m in modules if matches_exclude(canonical, m))
        if not hits:
            stale.append(pattern)
            continue
        matched[pattern] = hits
        if not any(matches_exclude(pattern, name) for m in hits for name in host_module_names(m)):
            renamed.append(pattern)
    return ExcludeReport(matched=matched, stale=tuple(stale), renamed=tuple(renamed))


def _canonical_pattern(pattern: str) -> str:
    if pattern.startswith("re:"):
        text = pattern.removeprefix("re:")
        for prefix in (r"model\.", r"draft_model\.", r"eagle_module\."):
            text = text.removeprefix(prefix)
        return "re:" + text.replace(r"midlayer\.", r"layers\.0\.").replace("midlayer", r"layers\.0")
    return canonical_draft_name(pattern)


def quantization_problems(
    quant: QuantConfig, formats: Mapping[str, ModuleFormat]
) -> tuple[QuantProblem, ...]:
    """Compares what a draft declares with what its tensors are (V23, V24).

    Args:
        quant: Its metadata.
        formats: Its modules (`module_formats`).
    """
    found = [
        QuantProblem(check="V23", message=f"{module} {problem}. Export it again.")
        for module, form in formats.items()
        for problem in form.problems
    ]
    packed = {m: f for m, f in formats.items() if f.kind not in ("float", "unknown")}
    found += _declared_problems(quant, formats, packed)
    found += _unsupported(packed)
    return tuple(found)


def _declared_problems(
    quant: QuantConfig, formats: Mapping[str, ModuleFormat], packed: Mapping[str, ModuleFormat]
) -> list[QuantProblem]:
    if packed and not quant.is_quantized:
        module, form = next(iter(packed.items()))
        return [
            QuantProblem(
                check="V23",
                message=f"{len(packed)} modules are quantized ({module} is {form.kind}), but "
                "neither hf_quant_config.json nor config.json declares it, so engines read the "
                "bytes as float weights. Restore the metadata of the export.",
            )
        ]
    if not quant.is_quantized:
        return []
    if all(form.kind == "float" for form in formats.values()):
        return [
            QuantProblem(
                check="V23",
                message=f"{quant.source} declares {quant.describe()}, but every tensor is float. "
                "The metadata are the target's, or left over: remove them.",
            )
        ]
    return _module_problems(quant, formats, packed)


def _module_problems(
    quant: QuantConfig, formats: Mapping[str, ModuleFormat], packed: Mapping[str, ModuleFormat]
) -> list[QuantProblem]:
    found = []
    report = match_excludes(quant.exclude, tuple(formats))
    excluded = {module for hits in report.matched.values() for module in hits}
    layers = {canonical_draft_name(name): algo for name, algo in quant.layers.items()}
    for module, form in packed.items():
        algo = layers.get(module, None if quant.layers else quant.algo)
        if module in excluded:
            message = f"{module} is {form.kind}, but {quant.source} excludes it"
        elif algo is None:
            message = f"{module} is {form.kind}, but {quant.source} does not list it"
        elif form.kind not in _KIND_OF_ALGO.get(algo, (form.kind,)):
            message = f"{module} is {form.kind}, but {quant.source} declares {algo}"
        else:
            continue
        found.append(
            QuantProblem(
                check="V23",
                message=f"{message}. Metadata and tensors are of different exports.",
            )
        )
    linear = [m for m, f in formats.items() if f.kind == "float" and len(f.shape) == 2]
    for module in linear:
        meant = layers.get(module) if quant.layers else quant.algo
        if meant is None or module in excluded or module == "embed_tokens":
            continue
        found.append(
            QuantProblem(
                check="V23",
                message=f"{module} is float, but {quant.source} declares {meant} and excludes it "
                "by no pattern that matches: engines would read its bytes as quantized. Add it to "
                "the excluded modules (`trtllm-ext convert` rewrites them in the engine's names).",
            )
        )
    found += [
        QuantProblem(
            check="V23",
            message=_stale_pattern(pattern, packed),
            fatal=False,
        )
        for pattern in report.stale
    ]
    found += [
        QuantProblem(
            check="V23",
            message=f"Exclude pattern {pattern!r} is in the exporter's names; TensorRT-LLM matches "
            f"{host_module_names(report.matched[pattern][0])[0]!r}. `trtllm-ext convert` rewrites "
            "it.",
            fatal=False,
        )
        for pattern in report.renamed
    ]
    return found


def _stale_pattern(pattern: str, packed: Iterable[str]) -> str:
    """Says what a pattern that matches no module does: nothing, or harm in a host's names."""
    hit = [name for m in packed if matches_exclude(pattern, name := host_module_names(m)[0])]
    if not hit:
        return (
            f"Exclude pattern {pattern!r} matches no module of the draft: a leftover of the base "
            "model or of the exporter. `trtllm-ext convert` drops it."
        )
    return (
        f"Exclude pattern {pattern!r}, a leftover of the base model, matches no name of the draft, "
        f"but {len(hit)} quantized modules by the names they have in TensorRT-LLM ({hit[0]} ...), "
        "which would read their bytes as float weights. `trtllm-ext convert` drops it."
    )


def _unsupported(packed: Mapping[str, ModuleFormat]) -> list[QuantProblem]:
    found = []
    for module, form in packed.items():
        if module.endswith(".kv_b_proj"):
            fatal = form.kind != "fp8_block"
            found.append(
                QuantProblem(
                    check="V24",
                    message=f"{module} is {form.kind}. Engines absorb it into the query and the "
                    "output and need it in floating point: quantize the draft again without it.",
                    fatal=fatal,
                )
            )
        elif module == "lm_head":
            found.append(
                QuantProblem(
                    check="V24",
                    message=f"lm_head is {form.kind}. TensorRT-LLM before its newest version has "
                    "a head in floating point only: keep it so, or serve it with this extension.",
                    fatal=False,
                )
            )
    return found
