# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""What a quantized checkpoint says and how much of it is accepted, read back from its files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from tensorrt_llm_ext.checkpoints.loader import load_draft
from tensorrt_llm_ext.checkpoints.normalize import open_draft
from tensorrt_llm_ext.checkpoints.quantized import module_formats
from tensorrt_llm_ext.engine.loading import LoadedModels
from tensorrt_llm_ext.errors import ConfigError
from tensorrt_llm_ext.models.deepseek import DeepseekV3
from tensorrt_llm_ext.quantization.linear import Mode
from tensorrt_llm_ext.quantization.tensors import Nvfp4Tensor, QuantTensor
from tensorrt_llm_ext.quantizing.acceptance import EngineRun, acceptance_ratio, run_engine
from tensorrt_llm_ext.quantizing.agreement import DraftAgreement, compare, install_quantized
from tensorrt_llm_ext.quantizing.export import read_tensors
from tensorrt_llm_ext.quantizing.job import Job
from tensorrt_llm_ext.quantizing.packing import packed_from
from tensorrt_llm_ext.quantizing.report import EngineAcceptance
from tensorrt_llm_ext.quantizing.texts import SplitTexts

FLOAT_LABEL: Final = "bf16"
# What the engine's loader calls each mode.
_ENGINE_MODES: Final[Mapping[Mode, str]] = {"dequantized": "dequantized", "emulated": "w4a4"}


def ways_to_run(packed: Mapping[str, QuantTensor]) -> dict[str, Mode]:
    """Returns how a checkpoint can be run, by label: weights rounded, then inputs too."""
    if not packed:
        return {}
    is_nvfp4 = {isinstance(part, Nvfp4Tensor) for part in packed.values()}
    weights, both = "weights", "weights+inputs"
    if len(is_nvfp4) == 1:
        weights, both = ("W4A16", "W4A4") if True in is_nvfp4 else ("W8A16", "W8A8")
    ways: dict[str, Mode] = {weights: "dequantized"}
    if all(part.input_scale is not None for part in packed.values()):
        ways[both] = "emulated"
    return ways


def measure_agreement(
    job: Job, out: Path, texts: SplitTexts
) -> dict[str, tuple[Mode, DraftAgreement]]:
    """Compares the checkpoint with the float draft, on texts that it was not calibrated on."""
    written = open_draft(out)
    tensors = read_tensors(written)
    packed = packed_from(tensors, tuple(module_formats(written.stored)))
    floats = dict(tensors)
    for name in packed:
        floats[f"{name}.weight"] = job.tensors[f"{name}.weight"]  # replaced below
    exact, packs = job.build(), job.packs(texts.held_out)
    ways = ways_to_run(packed)
    advance = job.told("comparing with the float draft", len(ways))
    found = {}
    for label, mode in ways.items():
        draft = job.build(floats)
        install_quantized(draft, draft.core, packed, mode)
        found[label] = mode, compare(exact.core, draft.core, packs, job.steps)
        advance(1)
    return found


def measure_acceptance(
    job: Job,
    out: Path,
    models: LoadedModels,
    prompts: Sequence[Sequence[int]],
    ways: Mapping[str, Mode],
) -> dict[str, EngineAcceptance]:
    """Runs float and quantized draft on the embedded engine, as a user would load them.

    Args:
        job: The float draft.
        out: The quantized one.
        models: The target.
        prompts: Token ids.
        ways: How to run the quantized one, by label.

    Raises:
        ConfigError: If the target is of another kind.
    """
    target = models.target
    if not isinstance(target, DeepseekV3):
        raise ConfigError(f"A draft cannot be loaded for a {type(target).__name__}.")
    advance = job.told("generating on the engine", (1 + len(ways)) * len(prompts))
    source = job.source.files.folder
    boundaries = job.config.boundaries

    def run(folder: Path, mode: str) -> EngineRun:
        draft = load_draft(folder, target, boundaries=boundaries, quant_mode=mode)
        return _run(job, models, draft, prompts, advance)

    base = run(source, "auto")
    found = {FLOAT_LABEL: EngineAcceptance(stats=base.pooled, ratio=None, is_same_text=True)}
    for label, mode in ways.items():
        other = run(out, _ENGINE_MODES[mode])
        found[label] = EngineAcceptance(
            stats=other.pooled,
            ratio=acceptance_ratio(base.per_prompt, other.per_prompt),
            is_same_text=base.token_ids == other.token_ids,
        )
    return found


def _run(
    job: Job,
    models: LoadedModels,
    draft: object,
    prompts: Sequence[Sequence[int]],
    advance: Callable[[int], None],
) -> EngineRun:
    return run_engine(
        models.target,
        draft,  # type: ignore[arg-type]
        prompts,
        max_draft_len=job.steps,
        max_tokens=job.options.max_tokens,
        eos_token_ids=models.eos_token_ids,
        progress=advance,
    )
