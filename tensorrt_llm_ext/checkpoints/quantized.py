# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Whether the metadata of a quantized draft agree with its tensors, and engines can run it.

Metadata that say something else than the tensors are a finding (V23), and so is a quantized module
that no engine can run (V24).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tensorrt_llm_ext.checkpoints.module_formats import (
    SCALE_SUFFIXES,
    ModuleFormat,
    Stored,
    logical_shapes,
    module_formats,
)
from tensorrt_llm_ext.checkpoints.names import canonical_draft_name
from tensorrt_llm_ext.configs.quant import QuantConfig
from tensorrt_llm_ext.planning.host_names import MAX_PATTERN, host_module_names, matches_exclude

__all__ = [
    "SCALE_SUFFIXES",
    "ExcludeReport",
    "ModuleFormat",
    "QuantProblem",
    "Stored",
    "host_module_names",
    "logical_shapes",
    "match_excludes",
    "module_formats",
    "quantization_problems",
]

_MAX_PATTERNS: Final = 1024  # they come from strangers
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
