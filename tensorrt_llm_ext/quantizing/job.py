# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""What is known of a quantization before it begins, and how it is to be done."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch

from tensorrt_llm_ext.checkpoints.normalize import DraftCheckpoint, TargetCheckpoint
from tensorrt_llm_ext.configs.draft import DraftConfig
from tensorrt_llm_ext.configs.target import TargetConfig
from tensorrt_llm_ext.engine.teacher_states import TeacherStates
from tensorrt_llm_ext.errors import unknown_key_error
from tensorrt_llm_ext.quantization.tensors import QuantTensor
from tensorrt_llm_ext.quantizing.calibration import InputStatistics
from tensorrt_llm_ext.quantizing.dense import BorrowedEnds, DenseDraft
from tensorrt_llm_ext.quantizing.distill import DistillOptions, DistillReport
from tensorrt_llm_ext.quantizing.rollout import TextPack, make_packs

# Called with what is being done, how much of it is done, and how much there is.
Progress = Callable[[str, int, int], None]
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
        dtype: Dtype to calibrate and judge in; "auto" is float32 on the CPU and bfloat16 on CUDA,
            and the stored dtype for drafts of more than half a billion weights. Training is in
            float32.
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
class Job:
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

    def build(self, tensors: Mapping[str, torch.Tensor] | None = None) -> DenseDraft:
        """Returns the float draft, or one of other float tensors."""
        tensors = self.tensors if tensors is None else tensors
        return DenseDraft(self.config, tensors, self.ends, dtype=self.dtype)

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
class Quantized:
    """What a backend produced, by canonical name."""

    packed: Mapping[str, QuantTensor] = field(repr=False)
    floats: Mapping[str, torch.Tensor] = field(repr=False)
    kv_cache_algo: str | None
    producer: Mapping[str, Any]
    statistics: InputStatistics | None
    distillation: DistillReport | None
