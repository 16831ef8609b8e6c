# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The two ways to quantize: with ModelOpt, and without it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import nn

from tensorrt_llm_ext import __version__
from tensorrt_llm_ext.checkpoints.quantized import module_formats
from tensorrt_llm_ext.errors import UnsupportedError
from tensorrt_llm_ext.models.eagle3 import Eagle3Draft
from tensorrt_llm_ext.quantization.siblings import larger
from tensorrt_llm_ext.quantization.tensors import Nvfp4Tensor, QuantTensor
from tensorrt_llm_ext.quantizing import modelopt_backend
from tensorrt_llm_ext.quantizing.calibration import InputStatistics, collect_inputs
from tensorrt_llm_ext.quantizing.dense import DenseDraft, linear_names
from tensorrt_llm_ext.quantizing.distill import DistillReport, distill
from tensorrt_llm_ext.quantizing.export import STORED_DTYPES, unequal_siblings
from tensorrt_llm_ext.quantizing.fake_quant import insert_fake_quant
from tensorrt_llm_ext.quantizing.job import Job, Quantized
from tensorrt_llm_ext.quantizing.packing import (
    pack_modules,
    packed_from,
    quantize_group,
    stored_tensors,
)
from tensorrt_llm_ext.quantizing.recipes import RecipePlan, is_distillation, read_plan
from tensorrt_llm_ext.quantizing.rollout import TextPack
from tensorrt_llm_ext.quantizing.texts import SplitTexts


def quantize(job: Job, texts: SplitTexts) -> Quantized:
    """Quantizes with the backend that was asked for.

    Raises:
        UnsupportedError: If ModelOpt is asked for or needed, and is not there.
        ConfigError: If the recipe does not fit.
    """
    backend = job.options.backend
    if backend == "auto":
        backend = "modelopt" if modelopt_backend.is_installed() else "builtin"
    return _with_modelopt(job, texts) if backend == "modelopt" else _built_in(job, texts)


def _built_in(job: Job, texts: SplitTexts) -> Quantized:
    """Quantizes without ModelOpt: the same bits, for the recipes that it can read."""
    student = job.build()
    plan = read_plan(job.recipe, linear_names(student))
    packs = job.packs(texts.train)
    floats = dict(job.tensors)
    statistics = _calibrate(job, student, packs) if plan.needs_data else None
    packed = pack_modules(_weights(floats, plan), plan.modules, statistics)
    training = None
    if is_distillation(job.recipe):
        insert_fake_quant(student, student.core, plan.modules, packed)
        training = _train(job, texts, student.core, trainable(student), packs)
        for name, parameter in student.named_parameters():
            floats[name] = parameter.detach().to(job.tensors[name].dtype)
        if plan.needs_data:
            statistics = _calibrate(job, job.build(floats), packs)
        packed = pack_modules(_weights(floats, plan), plan.modules, statistics)
    return Quantized(
        packed=packed,
        floats=floats,
        kv_cache_algo=plan.kv_cache_algo,
        producer={"name": "tensorrt_llm_ext", "version": __version__},
        statistics=statistics,
        distillation=training,
    )


def _with_modelopt(job: Job, texts: SplitTexts) -> Quantized:
    packs = job.packs(texts.train)
    training: list[DistillReport] = []

    def train(core: Eagle3Draft, tree: nn.Module) -> None:
        training.append(_train(job, texts, core, trainable(tree), packs))

    exported = modelopt_backend.run_modelopt(
        job.recipe,
        modelopt_backend.ModelOptInput(
            config=job.config,
            tensors=job.tensors,
            ends=job.ends,
            packs=packs,
            steps=job.steps,
            dtype=job.dtype,
            export_dtype=job.tensors["norm.weight"].dtype,
        ),
        train=train if is_distillation(job.recipe) else None,
        advance=_advance(job, packs, 2 if is_distillation(job.recipe) else 1),
    )
    gc.collect()  # ModelOpt's modules refer to each other in circles, and a draft may be large
    packed = _known_formats(exported.tensors)
    floats = dict(job.tensors)
    for name, tensor in exported.tensors.items():
        if name in floats and name.removesuffix(".weight") not in packed:
            floats[name] = tensor
    packed |= _shared(packed, floats, is_trained=bool(training))
    return Quantized(
        packed=packed,
        floats=floats,
        kv_cache_algo=exported.hf_quant_config["quantization"].get("kv_cache_quant_algo"),
        producer={"name": "modelopt", "version": exported.version},
        statistics=_calibrate(job, _measured(job, floats, packed, bool(training)), packs),
        distillation=training[0] if training else None,
    )


def _measured(
    job: Job,
    floats: Mapping[str, torch.Tensor],
    packed: Mapping[str, QuantTensor],
    is_trained: bool,
) -> DenseDraft:
    """The draft whose inputs the report shows: trained weights are known in rounded form only."""
    if not is_trained:
        return job.build()
    weights = {f"{name}.weight": value.dequantize(job.dtype) for name, value in packed.items()}
    return job.build({**floats, **weights})


def _known_formats(tensors: Mapping[str, torch.Tensor]) -> dict[str, QuantTensor]:
    """The packed modules of an export; refuses formats that this package does not run."""
    stored = {n: (STORED_DTYPES.get(t.dtype, "?"), tuple(t.shape)) for n, t in tensors.items()}
    formats = module_formats(stored)
    for module, form in formats.items():
        scale = tensors.get(f"{module}.weight_scale")
        per_row = form.kind == "fp8" and (scale is None or scale.numel() != 1)
        if form.kind not in ("float", "nvfp4", "fp8") or per_row:
            kind = "fp8 with a scale per row" if per_row else form.kind
            raise UnsupportedError(
                f"The recipe makes {module} {kind}. NVFP4 in blocks of 16 and FP8 with one scale "
                "per tensor are what this package runs and measures. Choose a recipe with these."
            )
    return packed_from(tensors, tuple(formats))


def _shared(
    packed: Mapping[str, QuantTensor], floats: Mapping[str, torch.Tensor], *, is_trained: bool
) -> dict[str, QuantTensor]:
    """Siblings that the exporter left with scales of their own, under common ones.

    ModelOpt leaves FP8 siblings apart, and all where its dummy forward did not reach them.
    """
    mended: dict[str, QuantTensor] = {}
    for group in unequal_siblings(packed):
        parts = {name: packed[name] for name in group}
        kind = "nvfp4" if isinstance(parts[group[0]], Nvfp4Tensor) else "fp8"
        weights = {name: floats[f"{name}.weight"] for name in group}
        if is_trained:  # the trained weights are known in rounded form only
            weights = {name: part.dequantize(torch.float32) for name, part in parts.items()}
        scale = larger([part.input_scale for part in parts.values()])
        mended |= quantize_group(weights, kind, scale)
    return mended


def _weights(floats: Mapping[str, torch.Tensor], plan: RecipePlan) -> dict[str, torch.Tensor]:
    return {name: floats[f"{name}.weight"] for name in plan.modules}


def _advance(job: Job, packs: Sequence[TextPack], rounds: int = 1) -> Callable[[int], None]:
    return job.told("calibrating on every draft step", rounds * len(packs))


def _calibrate(job: Job, draft: DenseDraft, packs: Sequence[TextPack]) -> InputStatistics:
    advance = _advance(job, packs)
    return collect_inputs(draft, draft.core, packs, job.steps, advance=advance)


def trainable(tree: nn.Module) -> list[nn.Parameter]:
    """Returns what a QAD recipe trains: linear layers and norms, but no embedding."""
    linear = [m.get_parameter("weight") for m in tree.modules() if isinstance(m, nn.Linear)]
    norms = [parameter for parameter in tree.parameters() if parameter.dim() == 1]
    return [*linear, *norms]


def _train(
    job: Job,
    texts: SplitTexts,
    student: Eagle3Draft,
    parameters: Sequence[nn.Parameter],
    packs: Sequence[TextPack],
) -> DistillReport:
    return distill(
        student,
        parameters,
        job.build().core,
        packs,
        job.packs(texts.held_out),
        job.steps,
        job.options.distill,
        job.progress,
    )


def all_tensors(result: Quantized) -> dict[str, torch.Tensor]:
    """Returns what is to be stored, by canonical name."""
    return stored_tensors(result.floats, result.packed)
