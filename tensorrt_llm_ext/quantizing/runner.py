# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""From a float draft and a recipe to a checkpoint and a report."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

import torch

from tensorrt_llm_ext import devices
from tensorrt_llm_ext.checkpoints.io import checkpoint_folder
from tensorrt_llm_ext.checkpoints.normalize import (
    draft_config,
    open_draft,
    open_target,
    target_config,
)
from tensorrt_llm_ext.checkpoints.quantized import module_formats
from tensorrt_llm_ext.engine.loading import (
    LoadedModels,
    TokenizerChoice,
    load_models,
    resolve_dtype,
)
from tensorrt_llm_ext.engine.teacher_files import load_states
from tensorrt_llm_ext.engine.teacher_states import TeacherStates
from tensorrt_llm_ext.errors import ConfigError, UnsupportedError
from tensorrt_llm_ext.planning.budget import step_budget
from tensorrt_llm_ext.quantizing.backends import all_tensors, quantize
from tensorrt_llm_ext.quantizing.export import ExportReport, read_tensors, write_draft
from tensorrt_llm_ext.quantizing.job import Job, Progress, Quantized, QuantizeOptions
from tensorrt_llm_ext.quantizing.measure import measure_acceptance, measure_agreement
from tensorrt_llm_ext.quantizing.packing import algo_of, quant_config_of
from tensorrt_llm_ext.quantizing.recipes import find_recipe, is_distillation
from tensorrt_llm_ext.quantizing.report import EngineAcceptance, QuantizeReport
from tensorrt_llm_ext.quantizing.texts import (
    SplitTexts,
    borrowed_ends,
    capture,
    encode_prompts,
    split_texts,
)

Prompts: TypeAlias = "Sequence[str] | Sequence[Sequence[int]]"
States: TypeAlias = "TeacherStates | str | os.PathLike[str]"

_MANY_WEIGHTS: Final = 1 << 29


def quantize_draft(
    draft: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    recipe: str,
    target: str | os.PathLike[str],
    prompts: Prompts | None = None,
    states: States | None = None,
    options: QuantizeOptions | None = None,
    progress: Progress | None = None,
) -> QuantizeReport:
    """Quantizes a draft with a recipe, writes it, and measures what it cost.

    Args:
        draft: Folder of a float MLA Eagle3 draft, in any layout.
        out: The new folder.
        recipe: A recipe's path or name (`recipes.find_recipe`).
        target: Folder of its target. Its layers are loaded for `prompts` only.
        prompts: Texts, or token ids, that the target is to continue.
        states: In place of prompts: texts with the target's states, or their file. No engine runs.
        options: How to quantize.
        progress: Called all along.

    Returns:
        What was done and measured.

    Raises:
        ConfigError: If neither prompts nor states are given, or draft, target and recipe do not
            fit.
        CheckpointError: If files are missing, unsafe or unreadable.
        UnsupportedError: If the draft is quantized already, or the recipe needs what is missing.
    """
    begin = time.monotonic()
    if (prompts is None) == (states is None):
        raise ConfigError("Calibration needs prompts, or captured states: give one of the two.")
    job = _job(draft, recipe, target, options or QuantizeOptions(), progress)
    models, ids = None, []
    if prompts is not None:
        models = _load_target(Path(target), prompts, job)
        ids = encode_prompts(models.tokenizer, prompts, job.options.chat_template)
    texts = split_texts(_states(job, models, ids, states))
    result = quantize(job, texts)
    kv_cache_algo, notes = _kv_cache(job, result)
    quant = quant_config_of(result.packed, kv_cache_algo, "hf_quant_config.json")
    written = write_draft(
        job.source,
        job.config,
        all_tensors(result),
        quant,
        out,
        producer=result.producer,
        target=job.target_files,
        overwrite=job.options.overwrite,
    )
    compared = measure_agreement(job, Path(out), texts)
    acceptance: dict[str, EngineAcceptance] = {}
    if models is not None and job.options.run_engine:
        chosen = [ids[i] for i in texts.held_out_indices]
        ways = {label: mode for label, (mode, _) in compared.items()}
        acceptance = measure_acceptance(job, Path(out), models, chosen, ways)
    report = _report(job, texts, result, written)
    return dataclasses.replace(
        report,
        agreement={label: agreement for label, (_, agreement) in compared.items()},
        acceptance=acceptance,
        notes=(*notes, *_notes(job, texts, result, models)),
        seconds=time.monotonic() - begin,
    )


def _report(
    job: Job, texts: SplitTexts, result: Quantized, written: ExportReport
) -> QuantizeReport:
    """What was done; what was measured is added to it."""
    formats = dict.fromkeys(_linear_modules(job), "float")
    formats |= {name: algo_of(part) for name, part in result.packed.items()}
    producer = result.producer
    return QuantizeReport(
        out=str(written.out),
        recipe=_title(job.recipe),
        quantizer=f"{producer['name']} {producer['version']}",
        algo=written.algo,
        formats=formats,
        statistics=result.statistics,
        num_texts=(len(texts.train.sequences), len(texts.held_out.sequences)),
        is_held_out=texts.is_split,
        distillation=result.distillation,
        nbytes_before=sum(tensor.nbytes for tensor in job.tensors.values()),
        nbytes_after=written.nbytes,
        budget_before=step_budget(job.config),
        budget_after=step_budget(job.config, _bits(result)),
        exclude=written.exclude,
        findings=written.findings,
    )


def _job(
    draft: str | os.PathLike[str],
    recipe: str,
    target: str | os.PathLike[str],
    options: QuantizeOptions,
    progress: Progress | None,
) -> Job:
    path = find_recipe(recipe)
    source = open_draft(checkpoint_folder(draft))
    packed = [m for m, form in module_formats(source.stored).items() if form.kind != "float"]
    if source.quant.is_quantized or packed:
        raise UnsupportedError(
            f"{source.files.folder} is quantized already ({source.quant.describe()}; "
            f"{', '.join(packed[:2]) or 'by its metadata'}). Quantize the float draft that it was "
            "made from; to mend an export of ModelOpt use --fix-export."
        )
    target_files = open_target(checkpoint_folder(target))
    config = target_config(target_files)
    drafted = draft_config(source, config, boundaries=options.boundaries)
    device = devices.default_device() if options.device is None else torch.device(options.device)
    tensors = read_tensors(source)
    return Job(
        source=source,
        target_files=target_files,
        target=config,
        config=drafted,
        tensors=tensors,
        ends=borrowed_ends(drafted, target_files, config),
        recipe=path,
        options=options,
        device=device,
        dtype=_run_dtype(options, device, tensors, is_trained=is_distillation(path)),
        progress=progress,
    )


def _run_dtype(
    options: QuantizeOptions,
    device: torch.device,
    tensors: Mapping[str, torch.Tensor],
    *,
    is_trained: bool,
) -> torch.dtype:
    """Dtype that the draft is calibrated and compared in."""
    if is_trained:
        return torch.float32  # training moves weights by less than bfloat16 can tell
    size = sum(tensor.numel() for tensor in tensors.values() if tensor.is_floating_point())
    if options.dtype == "auto" and size > _MANY_WEIGHTS:
        return tensors["norm.weight"].dtype  # copies in float32 would not fit
    return resolve_dtype(options.dtype, device)


def _load_target(folder: Path, prompts: Prompts, job: Job) -> LoadedModels:
    needs_text = any(isinstance(prompt, str) for prompt in prompts)
    return load_models(
        folder,
        tokenizer=TokenizerChoice(is_skipped=not needs_text),
        device=job.device,
        dtype=job.options.dtype,
    )


def _states(
    job: Job, models: LoadedModels | None, ids: Sequence[Sequence[int]], states: States | None
) -> TeacherStates:
    if isinstance(states, TeacherStates):
        return states
    if states is not None or models is None:
        return load_states(Path(str(states)), job.config.boundaries)

    def advance(done: int, total: int) -> None:
        if job.progress is not None:
            job.progress("the target writes and is captured", done, total)

    return capture(
        models,
        ids,
        job.config,
        max_tokens=job.options.max_tokens,
        steps=job.steps,
        progress=advance,
    )


def _kv_cache(job: Job, result: Quantized) -> tuple[str | None, tuple[str, ...]]:
    """The KV cache's format: hosts give a draft its target's, and warn when it declares another."""
    wanted, target = result.kv_cache_algo, job.target_files.quant.kv_cache_algo
    if wanted is None or wanted == target:
        return wanted, ()
    note = (
        f"the recipe's {wanted} KV cache is not declared, because the target declares "
        f"{target or 'none'}: a draft's cache has its target's format"
    )
    return None, (note,)


def _linear_modules(job: Job) -> tuple[str, ...]:
    formats = module_formats(job.source.stored)
    return tuple(n for n, f in formats.items() if len(f.shape) == 2 and n != "embed_tokens")


def _bits(result: Quantized) -> dict[str, float]:
    return {n: 8.0 if algo_of(part) == "FP8" else 4.5 for n, part in result.packed.items()}


def _title(recipe: Path) -> str:
    """The recipe's name in its library, or the file's."""
    parts = recipe.with_suffix("").parts
    if "huggingface" in parts:
        return "/".join(parts[parts.index("huggingface") :])
    return recipe.stem


def _notes(
    job: Job, texts: SplitTexts, result: Quantized, models: LoadedModels | None
) -> tuple[str, ...]:
    notes = []
    if not texts.is_split:
        notes.append(
            f"{len(texts.train.sequences)} texts are too few to keep some apart: the draft was "
            "judged on the texts that it was calibrated on"
        )
    if models is None:
        notes.append("acceptance on the engine was not measured: that needs prompts, not states")
    if not job.config.has_own_lm_head:
        notes.append("the draft has no lm_head of its own; the target's stays as it is")
    training = result.distillation
    if training is not None and not training.is_kept:
        notes.append("training did not help on the texts kept apart, so its result was dropped")
    notes.extend(job.source.detection.facts)
    return tuple(notes)


__all__ = ["QuantizeOptions", "quantize_draft"]
