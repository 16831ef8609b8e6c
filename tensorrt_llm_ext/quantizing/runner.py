# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""From a float draft and a recipe to a checkpoint and a report."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch

from tensorrt_llm_ext import __version__, devices
from tensorrt_llm_ext.checkpoints.io import checkpoint_folder
from tensorrt_llm_ext.checkpoints.loader import load_draft
from tensorrt_llm_ext.checkpoints.normalize import (
    DraftCheckpoint,
    TargetCheckpoint,
    draft_config,
    open_draft,
    open_target,
    target_config,
)
from tensorrt_llm_ext.checkpoints.quantized import module_formats
from tensorrt_llm_ext.configs.draft import DraftConfig
from tensorrt_llm_ext.configs.quant import QuantConfig
from tensorrt_llm_ext.configs.target import TargetConfig
from tensorrt_llm_ext.engine.loading import (
    LoadedModels,
    TokenizerChoice,
    load_models,
    resolve_dtype,
)
from tensorrt_llm_ext.engine.teacher_files import load_states
from tensorrt_llm_ext.engine.teacher_states import TeacherStates
from tensorrt_llm_ext.errors import ConfigError, UnsupportedError, unknown_key_error
from tensorrt_llm_ext.models.deepseek import DeepseekV3
from tensorrt_llm_ext.models.eagle3 import Eagle3Draft
from tensorrt_llm_ext.planning.budget import step_budget
from tensorrt_llm_ext.quantization.linear import Mode
from tensorrt_llm_ext.quantization.tensors import QuantTensor
from tensorrt_llm_ext.quantizing import modelopt_backend
from tensorrt_llm_ext.quantizing.acceptance import EngineRun, acceptance_ratio, run_engine
from tensorrt_llm_ext.quantizing.agreement import DraftAgreement, compare, install_quantized
from tensorrt_llm_ext.quantizing.calibration import InputStatistics, collect_inputs
from tensorrt_llm_ext.quantizing.dense import BorrowedEnds, DenseDraft, linear_names
from tensorrt_llm_ext.quantizing.distill import DistillOptions, DistillReport, distill
from tensorrt_llm_ext.quantizing.export import (
    ExportReport,
    read_tensors,
    unequal_siblings,
    write_draft,
)
from tensorrt_llm_ext.quantizing.fake_quant import insert_fake_quant
from tensorrt_llm_ext.quantizing.packing import (
    pack_modules,
    packed_from,
    quant_config_of,
    quantize_group,
    stored_tensors,
)
from tensorrt_llm_ext.quantizing.recipes import (
    RecipePlan,
    find_recipe,
    is_distillation,
    read_plan,
)
from tensorrt_llm_ext.quantizing.report import EngineAcceptance, QuantizeReport
from tensorrt_llm_ext.quantizing.rollout import TextPack, make_packs
from tensorrt_llm_ext.quantizing.texts import (
    SplitTexts,
    borrowed_ends,
    capture,
    encode_prompts,
    split_texts,
)

# Called with what is being done, how much of it is done, and how much there is.
Progress = Callable[[str, int, int], None]
Prompts = Sequence[str] | Sequence[Sequence[int]]

BACKENDS: Final = ("auto", "modelopt", "builtin")


@dataclass(frozen=True, kw_only=True)
class QuantizeOptions:
    """How a draft is quantized.

    Attributes:
        max_draft_len: Draft steps that are calibrated, and drafts per step on the engine.
        max_tokens: Most tokens that the target adds to a prompt.
        chat_template: A Jinja file that makes each prompt the user's turn of a conversation.
        backend: "modelopt", "builtin", or "auto": ModelOpt where it is installed.
        distill: How a QAD recipe trains.
        run_engine: Whether acceptance is measured on the embedded engine.
        boundaries: The user's override of the captured boundaries.
        device: The default device when None.
        dtype: Dtype to calibrate and judge in; "auto" is float32 on the CPU, bfloat16 on CUDA.
        overwrite: Whether a checkpoint in the output folder may be replaced.
    """

    max_draft_len: int = 3
    max_tokens: int = 192
    chat_template: Path | None = None
    backend: str = "auto"
    distill: DistillOptions = field(default_factory=DistillOptions)
    run_engine: bool = True
    boundaries: tuple[int, ...] | None = None
    device: str | torch.device | None = None
    dtype: str | torch.dtype = "auto"
    overwrite: bool = False

    def __post_init__(self) -> None:
        """Refuses an unknown backend."""
        if self.backend not in BACKENDS:
            raise unknown_key_error("backend", self.backend, BACKENDS)


@dataclass(frozen=True, kw_only=True)
class _Job:
    """Everything that is known before anything is quantized."""

    source: DraftCheckpoint
    target_files: TargetCheckpoint
    target: TargetConfig
    config: DraftConfig
    tensors: Mapping[str, torch.Tensor] = field(repr=False)
    ends: BorrowedEnds = field(repr=False)
    recipe: Path
    options: QuantizeOptions
    device: torch.device
    dtype: torch.dtype
    progress: Progress | None

    @property
    def steps(self) -> int:
        """Drafts per chain."""
        return self.options.max_draft_len

    def build(self) -> DenseDraft:
        """Returns the float draft."""
        return DenseDraft(self.config, self.tensors, self.ends, dtype=self.dtype)

    def packs(self, states: TeacherStates) -> list[TextPack]:
        """Returns texts as rows."""
        return make_packs(
            states,
            self.config.boundaries,
            self.steps,
            dtype=self.dtype,
            max_positions=self.config.mla.rope.max_position_embeddings,
        )

    def told(self, text: str, total: int) -> Callable[[int], None]:
        """Returns a function that advances a stage."""
        done = 0

        def advance(count: int) -> None:
            nonlocal done
            done += count
            if self.progress is not None:
                self.progress(text, min(done, total), total)

        return advance


@dataclass(frozen=True, kw_only=True)
class _Quantized:
    """What a backend produced, by canonical name."""

    packed: Mapping[str, QuantTensor] = field(repr=False)
    floats: Mapping[str, torch.Tensor] = field(repr=False)
    kv_cache_algo: str | None
    producer: Mapping[str, Any]
    statistics: InputStatistics | None
    distillation: DistillReport | None


def quantize_draft(
    draft: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    recipe: str,
    target: str | os.PathLike[str],
    prompts: Prompts | None = None,
    states: TeacherStates | str | os.PathLike[str] | None = None,
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
    result = _quantize(job, texts)
    notes = _notes(job, texts, result, models)
    quant = quant_config_of(result.packed, result.kv_cache_algo, "hf_quant_config.json")
    written = write_draft(
        job.source,
        job.config,
        stored_tensors(result.floats, result.packed),
        quant,
        out,
        producer=result.producer,
        target=job.target_files,
        overwrite=job.options.overwrite,
    )
    agreement = _agreement(job, Path(out), texts)
    acceptance: dict[str, EngineAcceptance] = {}
    if models is not None and job.options.run_engine:
        chosen = [ids[i] for i in texts.held_out_indices]
        acceptance = _engine(job, Path(out), models, chosen, list(agreement))
    return _report(job, texts, result, quant, written, agreement, acceptance, notes, begin)


def _job(
    draft: str | os.PathLike[str],
    recipe: str,
    target: str | os.PathLike[str],
    options: QuantizeOptions,
    progress: Progress | None,
) -> _Job:
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
    device = (
        devices.default_device() if options.device is None else torch.device(options.device)
    )
    return _Job(
        source=source,
        target_files=target_files,
        target=config,
        config=drafted,
        tensors=read_tensors(source),
        ends=borrowed_ends(drafted, target_files, config),
        recipe=path,
        options=options,
        device=device,
        dtype=resolve_dtype(options.dtype, device),
        progress=progress,
    )


def _load_target(folder: Path, prompts: Prompts, job: _Job) -> LoadedModels:
    needs_text = any(isinstance(prompt, str) for prompt in prompts)
    return load_models(
        folder,
        tokenizer=TokenizerChoice(is_skipped=not needs_text),
        device=job.device,
        dtype=job.dtype,
    )


def _states(
    job: _Job,
    models: LoadedModels | None,
    ids: Sequence[Sequence[int]],
    states: TeacherStates | str | os.PathLike[str] | None,
) -> TeacherStates:
    if isinstance(states, TeacherStates):
        return states
    if states is not None:
        return load_states(Path(states), job.config.boundaries)
    if models is None:
        raise ConfigError("There are neither prompts nor states.")

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


def _quantize(job: _Job, texts: SplitTexts) -> _Quantized:
    backend = job.options.backend
    if backend == "auto":
        backend = "modelopt" if modelopt_backend.is_installed() else "builtin"
    return _with_modelopt(job, texts) if backend == "modelopt" else _built_in(job, texts)


def _built_in(job: _Job, texts: SplitTexts) -> _Quantized:
    """Quantizes without ModelOpt: the same bits for the recipes that it can read."""
    student = job.build()
    plan = read_plan(job.recipe, linear_names(student))
    packs = job.packs(texts.train)
    statistics = _calibrate(job, student, packs) if plan.needs_data else None
    floats = dict(job.tensors)
    packed = pack_modules(_weights(floats, plan), plan.modules, statistics)
    training = None
    if is_distillation(job.recipe):
        insert_fake_quant(student, student.core, plan.modules, packed)
        training, floats = _train(job, texts, student, packs)
        student = job_with(job, floats).build()
        statistics = _calibrate(job, student, packs) if plan.needs_data else None
        packed = pack_modules(_weights(floats, plan), plan.modules, statistics)
    return _Quantized(
        packed=packed,
        floats=floats,
        kv_cache_algo=plan.kv_cache_algo,
        producer={"name": "tensorrt_llm_ext", "version": __version__},
        statistics=statistics,
        distillation=training,
    )
