# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""From two folders to a report: loads, captures, examines, mends and examines again."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from tensorrt_llm_ext import devices
from tensorrt_llm_ext.checkpoints.io import checkpoint_folder, open_checkpoint
from tensorrt_llm_ext.checkpoints.loader import read_target_config
from tensorrt_llm_ext.checkpoints.names import target_tensor_map
from tensorrt_llm_ext.checkpoints.source import SafetensorsSource
from tensorrt_llm_ext.configs.target import TargetConfig
from tensorrt_llm_ext.diagnostics.canary.building import TargetEnds
from tensorrt_llm_ext.diagnostics.canary.examination import ExaminationOptions, examine
from tensorrt_llm_ext.diagnostics.canary.fix import check_out, write_fixed
from tensorrt_llm_ext.diagnostics.canary.opening import OpenedDraft, open_leniently
from tensorrt_llm_ext.diagnostics.canary.verdict import CanaryReport, Verdict
from tensorrt_llm_ext.engine.loading import (
    LoadedModels,
    TokenizerChoice,
    load_models,
    resolve_dtype,
)
from tensorrt_llm_ext.engine.teacher_capture import states_from_prompts
from tensorrt_llm_ext.engine.teacher_files import load_states, save_states
from tensorrt_llm_ext.engine.teacher_states import TeacherStates
from tensorrt_llm_ext.errors import ConfigError
from tensorrt_llm_ext.models.blocks import TorchBlocks
from tensorrt_llm_ext.models.deepseek import DeepseekV3
from tensorrt_llm_ext.models.interfaces import DraftTokenId, TargetModel, TargetTokenId
from tensorrt_llm_ext.models.loading import load_modules

# Called with what is being done, and how much of how much of it is done.
Progress = Callable[[str, int, int], None]
Prompts = Sequence[str] | Sequence[Sequence[int]]


@dataclass(frozen=True, kw_only=True)
class CanaryOptions:
    """How a canary run is made.

    Attributes:
        max_draft_len: Proposals per position.
        max_tokens: Most tokens that the target adds to a prompt.
        max_anchors: Positions to judge at; every one when None.
        boundaries: The user's override of the captured boundaries.
        confidence: That no healthy draft is accused by chance.
        seed: Of sampling and resampling.
        device: The default device when None.
        dtype: A torch dtype or its name; "auto" is float32 on the CPU and bfloat16 on CUDA.
    """

    max_draft_len: int = 3
    max_tokens: int = 192
    max_anchors: int | None = None
    boundaries: tuple[int, ...] | None = None
    confidence: float = 0.99
    seed: int = 0
    device: str | torch.device | None = None
    dtype: str | torch.dtype = "auto"


def run_canary(
    target_folder: str | os.PathLike[str],
    draft_folder: str | os.PathLike[str],
    *,
    prompts: Prompts | None = None,
    states: TeacherStates | str | os.PathLike[str] | None = None,
    options: CanaryOptions | None = None,
    fix: str | os.PathLike[str] | None = None,
    save_to: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> CanaryReport:
    """Finds the setting in which a draft agrees best with its target.

    Args:
        target_folder: The target. With `states` its layers are not loaded, only its config, and
            embedding and head where they are float.
        draft_folder: The draft, even if the loader refuses it.
        prompts: Texts, or token ids, that the target is to continue.
        states: In place of prompts: texts with the target's states, or their file.
        options: How to run.
        fix: Folder for the corrected draft; written when another setting fits, and examined.
        save_to: `.safetensors` file for the states.
        progress: Called all along.

    Returns:
        The verdict with the table behind it; `report.fixed` is the report of the corrected folder.

    Raises:
        ConfigError: If neither prompts nor states are given, or the two models do not fit.
        CheckpointError: If files are missing, unsafe or unreadable.
        UnsupportedError: If the draft is no MLA Eagle3 draft, or quantized in a format that is not
            loaded.
    """
    if (prompts is None) == (states is None):
        raise ConfigError("The canary needs prompts, or captured states: give one of the two.")
    if fix is not None:  # before anything is run
        check_out(Path(fix), Path(draft_folder))
    options = options or CanaryOptions()
    path = checkpoint_folder(target_folder)
    config = read_target_config(path)
    opened = open_leniently(Path(draft_folder), config, boundaries=options.boundaries)
    device = devices.default_device() if options.device is None else torch.device(options.device)
    dtype = resolve_dtype(options.dtype, device)
    if not devices.probe(device).is_cuda:
        devices.limit_cpu_threads(config.hidden_size)
    ends: TargetModel
    if prompts is not None:
        models = _load(path, prompts, device, dtype)
        ends = _whole_target(models)
        found = _capture(models, prompts, opened, options, progress)
    else:
        ends = load_ends(path, config, device, dtype)
        found = _given(states, opened, ends)
    if save_to is not None:
        save_states(found, Path(save_to))
    bench = _Bench(ends, found, options, device, dtype, progress)
    report = dataclasses.replace(bench.examine(opened), target=str(path))
    return report if fix is None else bench.mend(report, opened, Path(fix))


@dataclass
class _Bench:
    """Everything but the draft."""

    target: TargetModel
    states: TeacherStates
    options: CanaryOptions
    device: torch.device
    dtype: torch.dtype
    progress: Progress | None

    def examine(self, opened: OpenedDraft) -> CanaryReport:
        """Runs all settings of a draft."""
        options = ExaminationOptions(
            max_draft_len=self.options.max_draft_len,
            max_anchors=self.options.max_anchors,
            confidence=self.options.confidence,
            seed=self.options.seed,
            device=self.device,
            dtype=self.dtype,
        )
        told = self.progress

        def advance(done: int, planned: int, title: str) -> None:
            if told is not None:
                told(f"trying settings: {title}", done, planned)

        return examine(opened, self.target, self.states, options, advance)

    def mend(self, report: CanaryReport, opened: OpenedDraft, out: Path) -> CanaryReport:
        """Writes what fits, if there is something to write, and examines it."""
        if report.verdict is Verdict.NOTHING_FITS:
            return dataclasses.replace(report, fix_notes=("nothing was written: nothing fits",))
        if report.verdict is Verdict.DECLARED_FITS and not report.problems:
            return dataclasses.replace(report, fix_notes=("nothing was written: nothing to fix",))
        config = self.target.config
        try:
            notes = write_fixed(opened, report.best.setting, out, config)
        except ConfigError as error:  # hours of work end in a report all the same
            shutil.rmtree(out, ignore_errors=True)
            return dataclasses.replace(report, fix_notes=(f"nothing was written: {error}",))
        fixed = self.examine(open_leniently(out, config))
        fixed = dataclasses.replace(fixed, target=report.target)
        return dataclasses.replace(report, fixed=fixed, fix_notes=notes)


def _load(path: Path, prompts: Prompts, device: torch.device, dtype: torch.dtype) -> LoadedModels:
    needs_tokenizer = any(isinstance(prompt, str) for prompt in prompts)
    return load_models(
        path,
        tokenizer=TokenizerChoice(is_skipped=not needs_tokenizer),
        device=device,
        dtype=dtype,
    )


def _whole_target(models: LoadedModels) -> DeepseekV3:
    if not isinstance(models.target, DeepseekV3):
        raise ConfigError(f"The canary cannot capture from a {type(models.target).__name__}.")
    return models.target


def _capture(
    models: LoadedModels,
    prompts: Prompts,
    opened: OpenedDraft,
    options: CanaryOptions,
    progress: Progress | None,
) -> TeacherStates:
    tokenizer = models.tokenizer
    ids = [
        tokenizer.encode(prompt)
        if isinstance(prompt, str) and tokenizer is not None
        else [int(i) for i in prompt]
        for prompt in prompts
    ]
    if not ids:
        raise ConfigError("There is no prompt. Give several: texts are the canary's sample.")
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress("the target writes and is captured", done, 2 * len(ids))

    return states_from_prompts(
        _whole_target(models),
        ids,
        boundaries=needed_boundaries(opened, models.target.config),
        max_tokens=options.max_tokens,
        max_draft_len=options.max_draft_len,
        eos_token_ids=models.eos_token_ids,
        progress=advance,
    )


def needed_boundaries(opened: OpenedDraft, target: TargetConfig) -> tuple[int, ...]:
    """The declared boundaries and their neighbours."""
    around = {b + shift for b in opened.declared.config.boundaries for shift in (-1, 0, 1)}
    return tuple(sorted(b for b in around if 1 <= b <= target.num_layers))


def _given(
    states: TeacherStates | str | os.PathLike[str] | None,
    opened: OpenedDraft,
    target: TargetModel,
) -> TeacherStates:
    if not isinstance(states, TeacherStates):
        head = getattr(target.lm_head, "weight", None)
        boundaries = opened.declared.config.boundaries
        states = load_states(Path(str(states)), boundaries, target_head=head)
    if states.hidden_size != target.config.hidden_size:
        raise ConfigError(
            f"The states are {states.hidden_size} wide, the target's hidden_size is "
            f"{target.config.hidden_size}. They were captured from another target."
        )
    top = max(int(sequence.input_ids.max()) for sequence in states.sequences)
    if top >= target.config.vocab_size:
        raise ConfigError(
            f"The texts hold token id {top}, the target's vocabulary has "
            f"{target.config.vocab_size}. They were captured from another target."
        )
    return states


def load_ends(
    folder: Path, config: TargetConfig, device: torch.device, dtype: torch.dtype
) -> TargetEnds:
    """Loads a target's embedding and head, whatever its layers are; absent ones stay absent.

    Raises:
        CheckpointError: If the checkpoint cannot be read.
    """
    ends = TargetEnds(config=config, embed_tokens=torch.nn.Identity(), lm_head=_NoHead())
    if not any(folder.glob("*.safetensors")):
        return ends  # a config alone will do for a draft with both ends of its own
    files = open_checkpoint(folder)
    source = SafetensorsSource(files, target_tensor_map(files.entries, config), label="target")
    blocks = TorchBlocks(device, dtype)
    sizes = (config.vocab_size, config.hidden_size)
    if source.has("model.embed_tokens.weight"):
        embedding = blocks.embedding("model.embed_tokens", *sizes)
        load_modules({"model.embed_tokens": embedding}, source)
        ends.embed_tokens = embedding
        if config.tie_word_embeddings:
            ends.lm_head = blocks.tied_lm_head("lm_head", embedding)
    if source.has("lm_head.weight"):
        head = blocks.lm_head("lm_head", config.hidden_size, config.vocab_size)
        load_modules({"lm_head": head}, source)
        ends.lm_head = head
    return ends


class _NoHead(torch.nn.Module):
    """Stands where a checkpoint has no head."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Refuses."""
        raise self._error()

    def argmax(
        self, hidden: torch.Tensor, d2t: torch.Tensor | None
    ) -> tuple[DraftTokenId, TargetTokenId]:
        """Refuses."""
        raise self._error()

    @staticmethod
    def _error() -> ConfigError:
        return ConfigError(
            "The target's checkpoint has no lm_head.weight, and the draft has no head of its own. "
            "Give a target folder that holds it."
        )
