# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Checks of quantization: V23 to V25 and V27."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from tensorrt_llm_ext.checkpoints.checks.base import CheckContext, Finding
from tensorrt_llm_ext.checkpoints.checks.examination import Examination
from tensorrt_llm_ext.checkpoints.checks.rules import (
    check,
    error,
    info,
    not_checked,
    passed,
    warning,
)
from tensorrt_llm_ext.checkpoints.quantized import (
    ModuleFormat,
    match_excludes,
    module_formats,
    quantization_problems,
)
from tensorrt_llm_ext.checkpoints.rows import MAX_SMALL_BYTES, read_tensor
from tensorrt_llm_ext.configs.pairing import check_rotation
from tensorrt_llm_ext.planning.host_names import host_module_names

_KV_SCALES: Final = (".k_scale", ".v_scale", ".kv_scale")


_FUSED: Final = (
    ("self_attn.q_a_proj", "self_attn.kv_a_proj_with_mqa"),
    ("mlp.gate_proj", "mlp.up_proj"),
)


@check("V23", "quantization metadata")
def quantization_metadata(ctx: CheckContext, found: Examination) -> Iterable[Finding]:
    """Tensors are what the draft's own files declare, and engines can tell so."""
    quant, formats = ctx.draft.quant, module_formats(ctx.draft.stored)
    problems = [p for p in quantization_problems(quant, formats) if p.check == "V23"]
    for problem in problems:
        yield (error if problem.fatal else warning)("V23", problem.message)
    yield from _fused_scales(ctx, formats)
    if any(problem.fatal for problem in problems):
        return
    kinds = Counter(form.kind for form in formats.values() if form.kind != "float")
    if not kinds:
        yield passed("V23", "Not quantized: no metadata say so, and every tensor is float.")
        return
    report = match_excludes(quant.exclude, tuple(formats))
    excluded = sorted({name for modules in report.matched.values() for name in modules})
    host = [host_module_names(name)[0] for name in excluded]
    listing = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    kept = f" Left alone, in the host's names: {', '.join(host)}." if host else ""
    yield info(
        "V23",
        f"{quant.describe()} by {quant.source}; modules: {listing}.{kept}",
        modules=dict(kinds),
        excluded=excluded,
        exclude_modules=host,
    )


def _fused_scales(ctx: CheckContext, formats: Mapping[str, ModuleFormat]) -> Iterable[Finding]:
    """Scales of projections that engines fuse into one matmul must be the same."""
    layers = sorted({m.split(".self_attn.")[0] for m in formats if ".self_attn." in m})
    for layer, (first, second) in itertools.product(layers, _FUSED):
        pair = f"{layer}.{first}", f"{layer}.{second}"
        kinds = [formats[module].kind for module in pair if module in formats]
        if len(kinds) != 2 or kinds == ["float", "float"]:
            continue
        if kinds[0] != kinds[1]:
            yield error(
                "V23",
                f"{pair[0]} is {kinds[0]}, {pair[1]} is {kinds[1]}: engines run them as one "
                "matmul and need the same format. Quantize both, or neither.",
            )
            continue
        for scale, fatal in (
            ("input_scale", True),
            ("weight_scale_2", False),
            ("weight_scale", False),
        ):
            yield from _unequal(ctx, pair, scale, fatal=fatal)


def _unequal(
    ctx: CheckContext, pair: tuple[str, str], scale: str, *, fatal: bool
) -> Iterable[Finding]:
    values = [_scalar(ctx, f"{module}.{scale}") for module in pair]
    if values[0] is None or values[1] is None or values[0] == values[1]:
        return
    if not (math.isfinite(values[0]) and math.isfinite(values[1])):
        return  # damaged, which V30 says
    consequence = (
        "engines that run both as one matmul refuse it"
        if fatal
        else "engines requantize the smaller one at load, with a loss, or take one of the two"
    )
    yield (error if fatal else warning)(
        "V23",
        f"{scale} of {pair[0]} is {values[0]:.6g}, of {pair[1]} {values[1]:.6g}: {consequence}. "
        "Calibrate the two together and export one common scale.",
        scales=dict(zip(pair, values, strict=True)),
    )


def _scalar(ctx: CheckContext, name: str) -> float | None:
    """The value of a scale of a whole tensor; None when there is none."""
    ref = ctx.draft.tensors.refs.get(name)
    if ref is None or math.prod(ctx.draft.files.entries[ref.name].shape) != 1:
        return None
    return float(read_tensor(ctx.draft.files, ref.name).flatten()[0])


@check("V24", "quantized modules")
def quantized_modules(ctx: CheckContext, found: Examination) -> Iterable[Finding]:
    """Head and kv_b_proj are in a format that engines run."""
    formats = module_formats(ctx.draft.stored)
    problems = [p for p in quantization_problems(ctx.draft.quant, formats) if p.check == "V24"]
    for problem in problems:
        yield (error if problem.fatal else warning)("V24", problem.message)
    if not problems:
        yield passed("V24", "lm_head and kv_b_proj are in floating point, where they are.")


@check("V25", "KV cache dtype")
def kv_cache_dtype(ctx: CheckContext, found: Examination) -> Iterable[Finding]:
    """The dtype of the draft's KV cache is known, and no scale is lost on the way."""
    own = ctx.draft.quant.kv_cache_algo
    scaled = [name for name in ctx.draft.tensors.refs if name.endswith(_KV_SCALES)]
    if ctx.target is None:
        yield not_checked("V25", "a draft's KV cache has its target's dtype: no target was given")
        return
    target = ctx.target.quant.kv_cache_algo
    data = {"draft": own, "target": target, "scales": scaled}
    if target is not None and target != "FP8":
        yield warning(
            "V25",
            f"The target's KV cache is {target}, and the host gives the draft the same: a draft "
            "with MLA was never trained or measured with it. Set kv_cache_config.dtype to fp8 or "
            "auto.",
            **data,
        )
        return
    if own is not None and own != target:
        yield warning(
            "V25",
            f"The draft declares {own} for its KV cache, the target {target or 'nothing'}: the "
            f"host overwrites the draft's with the target's. Remove kv_cache_quant_algo from the "
            "draft, or serve it beside a target with the same.",
            **data,
        )
        return
    lost = [name for name in scaled if _is_not_one(ctx, name)]
    if lost:
        yield warning(
            "V25",
            f"{', '.join(lost)} {'is' if len(lost) == 1 else 'are'} not 1, but the host caches MLA "
            "rows with scale 1.0: values beyond the FP8 range would be cut. Calibrate the draft "
            "for scale 1.0, or serve it with kv_cache_config.dtype auto.",
            **data,
        )
        return
    if target is None:
        yield passed("V25", "Neither target nor draft quantizes its KV cache.", **data)
        return
    declared = "declares the same" if own else "says nothing"
    yield info(
        "V25",
        f"The target's KV cache is {target}; the draft {declared} and runs {target} with scale "
        "1.0.",
        **data,
    )


def _is_not_one(ctx: CheckContext, name: str) -> bool:
    stored = ctx.draft.tensors.refs[name].name
    if ctx.draft.files.entries[stored].nbytes > MAX_SMALL_BYTES:
        return True
    return bool((read_tensor(ctx.draft.files, stored).double() != 1.0).any())


@check("V27", "rotated target")
def rotated_target(ctx: CheckContext, found: Examination) -> Iterable[Finding]:
    """A target with rotated hidden states needs a draft that was counter-rotated."""
    if ctx.target is None:
        yield not_checked("V27", "no target was given")
        return
    rotation, own = ctx.target.quant.rotation, ctx.draft.quant.rotation
    if rotation != own:
        check_rotation(ctx.target.quant)
    if own and not rotation:
        yield error(
            "V27",
            f"The draft's metadata mention {own}, but the target is not rotated. Use the draft "
            "beside the rotated target that it was made for.",
            rotation=rotation,
            draft_rotation=own,
        )
        return
    state = f"both are rotated by {rotation}" if rotation else "nothing mentions a rotation"
    yield passed("V27", f"Hidden states: {state}.", rotation=rotation)
