# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""From a checkpoint folder to a model: config, cross-checks, weights, leftovers."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch

from tensorrt_llm_ext.checkpoints.io import (
    CheckpointFiles,
    checkpoint_folder,
    open_checkpoint,
    read_json,
)
from tensorrt_llm_ext.checkpoints.names import TensorMap, draft_tensor_map, target_tensor_map
from tensorrt_llm_ext.checkpoints.source import SafetensorsSource
from tensorrt_llm_ext.checkpoints.vocabulary import check_vocabulary_map
from tensorrt_llm_ext.configs.draft import DraftConfig
from tensorrt_llm_ext.configs.hf_draft import draft_config_from_hf
from tensorrt_llm_ext.configs.hf_keys import declared_dtype
from tensorrt_llm_ext.configs.hf_target import target_config_from_hf
from tensorrt_llm_ext.configs.pairing import check_pair
from tensorrt_llm_ext.configs.target import TargetConfig
from tensorrt_llm_ext.errors import CheckpointError, ConfigError, UnsupportedError
from tensorrt_llm_ext.models.blocks import TorchBlocks
from tensorrt_llm_ext.models.deepseek import DeepseekV3
from tensorrt_llm_ext.models.eagle3 import Eagle3Draft

_logger = logging.getLogger(__name__)

_QUANTIZED_SUFFIXES: Final = (
    ".weight_scale",
    ".weight_scale_2",
    ".weight_scale_inv",
    ".weight_packed",
    ".weight_zero_point",
    ".input_scale",
    ".k_scale",
    ".v_scale",
)
_FLOAT_DTYPES: Final = ("F64", "F32", "F16", "BF16")
TORCH_DTYPES: Final[Mapping[str, torch.dtype]] = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def read_target_config(folder: str | os.PathLike[str]) -> TargetConfig:
    """Reads a target's config.json and generation_config.json; no weights are opened.

    Raises:
        CheckpointError: If the folder or its config.json cannot be read.
        ConfigError, UnsupportedError: As `target_config_from_hf`.
    """
    path = checkpoint_folder(folder)
    generation = None
    if (path / "generation_config.json").exists():
        generation = read_json(path, "generation_config.json")
    return target_config_from_hf(read_json(path, "config.json"), generation_config=generation)


def load_target(
    folder: str | os.PathLike[str],
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | None = None,
) -> DeepseekV3:
    """Loads a target: DeepSeek-V3, Kimi-K2.x or the text part of Kimi-K2.5.

    Args:
        folder: A checkpoint in Hugging Face layout, sharded or not. Its own code is never run.
        device: Where the weights go.
        dtype: Dtype of weights and activations; what the checkpoint declares when None.

    Returns:
        The model in eval mode.

    Raises:
        CheckpointError: If files are missing, unsafe or do not fit the config.
        ConfigError: If the config is incomplete or contradicts itself.
        UnsupportedError: If the model is of another architecture, or quantized.
    """
    path = checkpoint_folder(folder)
    raw = read_json(path, "config.json")
    config = read_target_config(path)
    files = open_checkpoint(path)
    _refuse_quantized(path, raw, files)
    tensors = target_tensor_map(files.entries, config)
    dtype = dtype or _stored_dtype(raw, files, tensors, "model.embed_tokens.weight")
    model = DeepseekV3(config, TorchBlocks(torch.device(device), dtype))
    source = SafetensorsSource(files, tensors, label="target")
    model.load_weights(source)
    source.finish()
    return model.eval()


def read_draft_config(
    folder: str | os.PathLike[str],
    target: TargetConfig | None = None,
    *,
    boundaries: Sequence[int] | None = None,
) -> DraftConfig:
    """Reads a draft's config.json and the headers of its tensors; no weights are loaded.

    Args:
        folder: The draft.
        target: The target it is to run beside; the pair is cross-checked when given.
        boundaries: The user's override of the captured boundaries.

    Raises:
        CheckpointError: If the folder cannot be read, or brings code.
        ConfigError, UnsupportedError: As `draft_config_from_hf` and `check_pair`.
    """
    return _inspect_draft(checkpoint_folder(folder), target, boundaries)[0]


def load_draft(
    folder: str | os.PathLike[str],
    target: DeepseekV3,
    *,
    boundaries: Sequence[int] | None = None,
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
) -> Eagle3Draft:
    """Loads an MLA Eagle3 draft for a loaded target.

    Args:
        folder: The draft, in any of the layouts that `checkpoints.names` knows.
        target: The model to be verified with; the draft borrows what it lacks.
        boundaries: The user's override of the captured boundaries.
        device: Where the weights go; the target's device when None.
        dtype: Dtype of weights and activations; the target's when None.

    Returns:
        The draft in eval mode, sharing embedding and head with the target where it has none, or
        where its embedding is bit-equal to the target's.

    Raises:
        CheckpointError: If files are missing, unsafe or do not fit the config.
        ConfigError: If config, tensors and target contradict each other.
        UnsupportedError: If it is no MLA draft, quantized, or caches rows of another width.
    """
    path = checkpoint_folder(folder)
    config, files, tensors = _inspect_draft(path, target.config, boundaries)
    embedding = next(target.embed_tokens.parameters())
    device = embedding.device if device is None else torch.device(device)
    dtype = dtype or embedding.dtype
    source = SafetensorsSource(files, tensors, label="draft")
    if config.has_own_embedding and _same_embedding(source, embedding, dtype):
        _logger.info("draft: its embedding equals the target's and is shared.")
        source.skip("embed_tokens.weight")
        config = dataclasses.replace(config, has_own_embedding=False)
    draft = Eagle3Draft(config, TorchBlocks(device, dtype), target.config.num_layers)
    _check_vocabulary(config, source)
    draft.load_weights(source)
    source.finish()
    draft.share_with(target)
    _logger.info(
        "draft: captures boundaries %s, that is after target layers %s; evidence: %s.",
        list(config.boundaries),
        [b - 1 for b in config.boundaries],
        config.boundaries_evidence,
    )
    return draft.eval()


def _inspect_draft(
    path: Path, target: TargetConfig | None, boundaries: Sequence[int] | None
) -> tuple[DraftConfig, CheckpointFiles, TensorMap]:
    """Reads config and headers of a draft and cross-checks them with each other and the target."""
    raw = read_json(path, "config.json")
    _refuse_code(path, raw)
    files = open_checkpoint(path)
    _refuse_quantized(path, raw, files)
    tensors = draft_tensor_map(
        files.shapes,
        q_lora_rank=_size(raw, "q_lora_rank") or None,
        latent_size=_size(raw, "kv_lora_rank") + _size(raw, "qk_rope_head_dim"),
    )
    config = draft_config_from_hf(
        raw,
        tensors=tensors.shapes(files.shapes),
        num_target_layers=None if target is None else target.num_layers,
        target_hidden_size=None if target is None else target.hidden_size,
        boundaries=boundaries,
    )
    if target is not None:
        check_pair(config, target)
    return config, files, tensors


def _size(raw: Mapping[str, Any], key: str) -> int:
    value = raw.get(key)
    return value if isinstance(value, int) else 0


def _refuse_code(path: Path, raw: Mapping[str, Any]) -> None:
    """Refuses a draft that asks a host to run its code."""
    scripts = sorted(p.relative_to(path).as_posix() for p in path.rglob("*.py"))
    if scripts or raw.get("auto_map"):
        found = scripts[0] if scripts else "auto_map in config.json"
        raise CheckpointError(
            f"The draft in {path} brings code ({found}), which a host would run. Drafts need none: "
            "remove the .py files and auto_map, after a look at why they are there."
        )


def _refuse_quantized(path: Path, raw: Mapping[str, Any], files: CheckpointFiles) -> None:
    text = raw.get("text_config")
    inner = text.get("quantization_config") if isinstance(text, Mapping) else None
    found = "quantization_config in config.json"
    if not (raw.get("quantization_config") or inner):
        found = "hf_quant_config.json"
        if not (path / found).exists():
            scaled = (n for n in files.entries if n.endswith(_QUANTIZED_SUFFIXES))
            packed = (
                name
                for name, entry in files.entries.items()
                if name.endswith(".weight") and entry.dtype not in _FLOAT_DTYPES
            )
            found = next(scaled, None) or next(packed, "")
    if found:
        raise UnsupportedError(
            f"{path} is a quantized checkpoint ({found}). Only float weights are loaded so far; "
            "NVFP4 arrives with the quantization work. Use the bf16 release of the model."
        )


def _stored_dtype(
    raw: Mapping[str, Any], files: CheckpointFiles, tensors: TensorMap, probe: str
) -> torch.dtype:
    """The declared dtype, or that of a large tensor where config.json declares none."""
    name = declared_dtype(raw)
    if name is None:
        ref = tensors.refs.get(probe)
        stored = files.entries[ref.name].dtype if ref is not None else "F32"
        names = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
        name = names.get(stored, stored)
    if name not in TORCH_DTYPES:
        raise ConfigError(
            f"config.json declares dtype {name!r}; known: {', '.join(TORCH_DTYPES)}. Pass dtype "
            "to load in another one."
        )
    return TORCH_DTYPES[name]


def _same_embedding(source: SafetensorsSource, target: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether the draft's embedding is bit-equal to the target's, in the dtype they run in."""
    if source.shape("embed_tokens.weight") != tuple(target.shape) or target.dtype != dtype:
        return False
    own = source.peek("embed_tokens.weight")
    return torch.equal(own.to(dtype), target.detach().cpu())


def _check_vocabulary(config: DraftConfig, source: SafetensorsSource) -> None:
    t2d = source.peek("t2d") if source.has("t2d") else None
    if config.has_d2t:
        check_vocabulary_map(
            source.peek("d2t"),
            t2d,
            draft_vocab_size=config.draft_vocab_size,
            vocab_size=config.vocab_size,
        )
    elif t2d is not None and not bool(t2d.to(torch.bool).all()):
        raise CheckpointError(
            "The draft has t2d, which leaves out target ids, but no d2t. The export is incomplete."
        )
    if t2d is not None:
        source.skip("t2d")
