# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Tiny drafts that can be quantized (widths of whole blocks), and texts to calibrate them on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tensorrt_llm_ext.checkpoints.normalize import draft_config, open_draft
from tensorrt_llm_ext.checkpoints.writer import save_checkpoint
from tensorrt_llm_ext.configs.draft import DraftConfig
from tensorrt_llm_ext.engine.teacher_states import TeacherSequence, TeacherStates
from tensorrt_llm_ext.quantizing.dense import BorrowedEnds, DenseDraft
from tensorrt_llm_ext.quantizing.export import read_tensors
from tests.support.tiny_checkpoints import (
    draft_json,
    draft_shapes,
    random_tensors,
    write_target,
)

BOUNDARIES = (2, 4, 5)  # of `tiny_checkpoints.draft_json()`
HIDDEN, VOCAB = 32, 64


def quantizable_json(**overrides: Any) -> dict[str, Any]:
    """config.json of a draft whose linear layers are all a multiple of 16 wide."""
    return draft_json(
        **{"q_lora_rank": 32, "trtllm_ext_aux_boundaries": list(BOUNDARIES), **overrides}
    )


def write_pair(folder: Path, **shapes: Any) -> tuple[Path, Path]:
    """Writes a random target, and a random bfloat16 draft that borrows the target's embedding."""
    target, draft = folder / "target", folder / "draft"
    write_target(target)
    config = quantizable_json(torch_dtype="bfloat16")
    tensors = random_tensors(draft_shapes(config, **shapes), seed=1, dtype=torch.bfloat16)
    save_checkpoint(draft, config, tensors)
    return target, draft


def read_draft(folder: Path) -> tuple[DraftConfig, dict[str, torch.Tensor]]:
    """A draft's config and float tensors."""
    checkpoint = open_draft(folder)
    return draft_config(checkpoint), read_tensors(checkpoint)


def ends(seed: int = 3) -> BorrowedEnds:
    """A random embedding and head."""
    generator = torch.Generator().manual_seed(seed)
    return BorrowedEnds(
        embed_tokens=torch.randn(VOCAB, HIDDEN, generator=generator),
        lm_head=torch.randn(VOCAB, HIDDEN, generator=generator),
    )


def dense(folder: Path, dtype: torch.dtype = torch.float32) -> DenseDraft:
    """A draft over dense blocks."""
    config, tensors = read_draft(folder)
    return DenseDraft(config, tensors, ends(), dtype=dtype)


def texts(
    lengths: tuple[int, ...] = (14, 9, 20), seed: int = 0, boundaries: tuple[int, ...] = BOUNDARIES
) -> TeacherStates:
    """Random texts with random states, which the target is said to have written itself."""
    generator = torch.Generator().manual_seed(seed)
    sequences = []
    for length in lengths:
        ids = torch.randint(VOCAB, (length,), generator=generator)
        sequences.append(
            TeacherSequence(
                input_ids=ids,
                states={b: torch.randn(length, HIDDEN, generator=generator) for b in boundaries},
                labels=torch.cat((ids[1:], ids[:1])),
                counted=torch.arange(length) >= 2,
            )
        )
    return TeacherStates(sequences=tuple(sequences), source="made-up texts", labels="made up")
