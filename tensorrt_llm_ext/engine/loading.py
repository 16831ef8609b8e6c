# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""From checkpoint folders to what an engine runs: target, draft, tokenizer, end tokens."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tensorrt_llm_ext import devices
from tensorrt_llm_ext.checkpoints.loader import (
    TORCH_DTYPES,
    load_draft,
    load_target,
    read_target_config,
)
from tensorrt_llm_ext.configs.quant import checked_quant_mode
from tensorrt_llm_ext.engine.tokenizer import (
    Tokenizer,
    check_vocabulary,
    load_tokenizer,
    resolve_eos_token_ids,
)
from tensorrt_llm_ext.errors import CheckpointError, ConfigError
from tensorrt_llm_ext.models.interfaces import DraftModel, TargetModel


@dataclass(frozen=True, kw_only=True)
class LoadedModels:
    """A target with what belongs to it; several engines may share one.

    Attributes:
        target: The verified model.
        draft: The proposing model, None without speculation.
        tokenizer: None when only token ids are wanted.
        eos_token_ids: Tokens that end a text.
        quant_mode: What was asked to become of the target's quantized weights.
        draft_quant_mode: The same for the draft.
    """

    target: TargetModel
    draft: DraftModel | None = None
    tokenizer: Tokenizer | None = None
    eos_token_ids: tuple[int, ...] = ()
    quant_mode: str = "auto"
    draft_quant_mode: str = "auto"

    @property
    def device(self) -> torch.device:
        """Where the target's weights are."""
        return self._weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the target's weights and activations."""
        return self._weight.dtype

    @property
    def _weight(self) -> torch.Tensor:
        if not isinstance(self.target, torch.nn.Module):
            raise ConfigError(f"A target must be a torch module: {type(self.target).__name__}.")
        return next(iter(self.target.parameters()))


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizerChoice:
    """Which tokenizer to load, and how.

    Attributes:
        source: Folder or `transformers` tokenizer; the target's folder when None.
        is_skipped: Whether to do without a tokenizer.
        trust_remote_code: Whether a tokenizer's own Python files may run.
        use_fast: Whether to prefer the Rust implementation.
    """

    source: Any = None
    is_skipped: bool = False
    trust_remote_code: bool = False
    use_fast: bool = True


def load_models(
    model: str | Path,
    *,
    draft: str | Path | None = None,
    boundaries: tuple[int, ...] | None = None,
    tokenizer: TokenizerChoice | None = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype = "auto",
    quant_mode: str = "auto",
    draft_quant_mode: str | None = None,
) -> LoadedModels:
    """Loads everything that `LLM` or the command line runs.

    Args:
        model: Folder of the target's checkpoint.
        draft: Folder of the draft's checkpoint; no speculation when None.
        boundaries: Overrides which target boundaries the draft captures.
        tokenizer: The one in the target's folder when None.
        device: The default device when None.
        dtype: A torch dtype or its name; "auto" is float32 on the CPU and bfloat16 on CUDA.
        quant_mode: What becomes of quantized weights, one of `configs.quant.QUANT_MODES`.
        draft_quant_mode: The same for the draft; `quant_mode` when None.

    Raises:
        CheckpointError: If a folder is missing, incomplete or inconsistent.
        ConfigError: If `device`, `dtype` or a mode is not supported.
        UnsupportedError: If a model is quantized in a format other than NVFP4 and per-tensor FP8.
    """
    folder = Path(model)
    if not folder.is_dir():
        raise CheckpointError(
            f"The model folder {str(model)!r} does not exist. Names of a model hub are not "
            "resolved: download the checkpoint and pass its folder."
        )
    place = devices.default_device() if device is None else torch.device(_checked(device))
    number = resolve_dtype(dtype, place)
    checked_quant_mode(quant_mode)
    draft_mode = checked_quant_mode(draft_quant_mode or quant_mode, "draft_quant_mode")
    # Before the weights: a wrong folder or a missing tokenizer should not cost minutes of loading.
    read_target_config(folder)
    text = _tokenizer(folder, tokenizer or TokenizerChoice())
    target = load_target(folder, device=place, dtype=number, quant_mode=quant_mode)
    if not devices.probe(place).is_cuda:
        devices.limit_cpu_threads(target.config.hidden_size)
    vocab_size = target.config.vocab_size
    if text is not None:
        check_vocabulary(text, vocab_size)
    eos = resolve_eos_token_ids(target.config.eos_token_ids, text, vocab_size)
    proposer = None
    if draft is not None:
        proposer = load_draft(
            Path(draft),
            target,
            boundaries=boundaries,
            device=place,
            dtype=number,
            quant_mode=draft_mode,
        )
    return LoadedModels(
        target=target,
        draft=proposer,
        tokenizer=text,
        eos_token_ids=eos,
        quant_mode=quant_mode,
        draft_quant_mode=draft_mode,
    )


def _checked(device: str | torch.device) -> str | torch.device:
    devices.probe(device)
    return device


def resolve_dtype(dtype: str | torch.dtype, device: torch.device) -> torch.dtype:
    """Returns the torch dtype that a user's choice names.

    Raises:
        ConfigError: If the dtype is not one of float64, float32, bfloat16, float16.
    """
    if dtype == "auto":
        return devices.default_dtype(device)
    name = str(dtype).removeprefix("torch.")
    if name not in TORCH_DTYPES:
        raise ConfigError(f"dtype is {name!r}, expected auto, {', '.join(TORCH_DTYPES)}")
    return TORCH_DTYPES[name]


def _tokenizer(folder: Path, choice: TokenizerChoice) -> Tokenizer | None:
    source = choice.source
    if choice.is_skipped:
        return None
    if isinstance(source, Tokenizer):
        return source
    if source is None or isinstance(source, (str, Path)):
        return load_tokenizer(
            source or folder, trust_remote_code=choice.trust_remote_code, use_fast=choice.use_fast
        )
    return Tokenizer(source)
