# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""From a checkpoint folder to a model: config, cross-checks, weights, leftovers."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from tensorrt_llm_ext.checkpoints.io import (
    CheckpointFiles,
    checkpoint_folder,
    has_file,
)
from tensorrt_llm_ext.checkpoints.names import TensorMap, target_tensor_map
from tensorrt_llm_ext.checkpoints.normalize import (
    DraftCheckpoint,
    TargetCheckpoint,
    draft_config,
    open_draft,
    open_target,
    read_document,
    target_config,
)
from tensorrt_llm_ext.checkpoints.source import SafetensorsSource
from tensorrt_llm_ext.checkpoints.vocabulary import allows_identity, check_vocabulary_tables
from tensorrt_llm_ext.configs.draft import DraftConfig
from tensorrt_llm_ext.configs.draft_tensors import expected_shapes
from tensorrt_llm_ext.configs.hf_keys import declared_dtype
from tensorrt_llm_ext.configs.hf_target import target_config_from_hf
from tensorrt_llm_ext.configs.quant import QuantConfig
from tensorrt_llm_ext.configs.target import TargetConfig
from tensorrt_llm_ext.errors import ConfigError, UnsupportedError
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
    if has_file(path, "generation_config.json"):
        generation = read_document(path, "generation_config.json")
    return target_config_from_hf(read_document(path, "config.json"), generation_config=generation)


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
    checkpoint = open_target(checkpoint_folder(folder))
    raw, files = checkpoint.raw, checkpoint.files
    config = target_config(checkpoint)
    _refuse_quantized(checkpoint)
    tensors = target_tensor_map(files.entries, config)
    dtype = dtype or _stored_dtype(raw, files, tensors, "model.embed_tokens.weight")
    source = SafetensorsSource(files, tensors, label="target")
    _expect_sizes(config, source)
    model = DeepseekV3(config, TorchBlocks(torch.device(device), dtype))
    model.load_weights(source)
    source.finish()
    return model.eval()


def _expect_sizes(config: TargetConfig, source: SafetensorsSource) -> None:
    """Checks a tensor of each size before anything of that size is allocated.

    A config with a digit too many would otherwise fill the memory before its tensors are read.
    """
    hidden, mla, moe = config.hidden_size, config.mla, config.moe
    source.expect("model.embed_tokens.weight", (config.vocab_size, hidden))
    for index in range(config.num_layers):
        layer = f"model.layers.{index}"
        source.expect(f"{layer}.input_layernorm.weight", (hidden,))
        attention = f"{layer}.self_attn"
        source.expect(f"{attention}.kv_a_proj_with_mqa.weight", (mla.latent_size, hidden))
        rows = mla.num_heads * (mla.qk_nope_head_dim + mla.v_head_dim)
        source.expect(f"{attention}.kv_b_proj.weight", (rows, mla.kv_lora_rank))
        if mla.q_lora_rank is not None:
            source.expect(f"{attention}.q_a_proj.weight", (mla.q_lora_rank, hidden))
        source.expect(f"{attention}.o_proj.weight", (hidden, mla.num_heads * mla.v_head_dim))
        if moe is None or index not in config.moe_layers:
            source.expect(f"{layer}.mlp.gate_proj.weight", (config.intermediate_size, hidden))
            continue
        source.expect(f"{layer}.mlp.gate.weight", (moe.num_experts, hidden))
        width = moe.intermediate_size
        source.expect(f"{layer}.mlp.experts.0.gate_proj.weight", (width, hidden))
        if moe.num_shared_experts:
            shared = f"{layer}.mlp.shared_experts.gate_proj.weight"
            source.expect(shared, (moe.num_shared_experts * width, hidden))


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
    checkpoint = open_draft(checkpoint_folder(folder))
    _refuse_quantized(checkpoint)
    return draft_config(checkpoint, target, boundaries=boundaries)


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
    checkpoint = open_draft(checkpoint_folder(folder))
    _refuse_quantized(checkpoint)
    config = draft_config(checkpoint, target.config, boundaries=boundaries)
    for fact in checkpoint.detection.facts:
        _logger.warning("draft: %s", fact)
    embedding = next(target.embed_tokens.parameters())
    device = embedding.device if device is None else torch.device(device)
    dtype = dtype or embedding.dtype
    source = SafetensorsSource(checkpoint.files, checkpoint.tensors, label="draft")
    if config.has_own_embedding and _same_embedding(source, embedding, dtype):
        _logger.info("draft: its embedding equals the target's and is shared.")
        source.skip("embed_tokens.weight")
        config = dataclasses.replace(config, has_own_embedding=False)
    for name, shape in expected_shapes(config).items():
        source.expect(name, shape)  # before anything of that size is allocated
    draft = Eagle3Draft(config, TorchBlocks(device, dtype), target.config.num_layers)
    _check_vocabulary(config, source, checkpoint.config)
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


def _refuse_quantized(checkpoint: DraftCheckpoint | TargetCheckpoint) -> None:
    """Refuses quantized weights by name, and says which kind they are."""
    files, quant = checkpoint.files, checkpoint.quant
    found = quant.source if quant.is_quantized else ""
    if not found:
        scaled = (n for n in files.entries if n.endswith(_QUANTIZED_SUFFIXES))
        packed = (
            name
            for name, entry in files.entries.items()
            if name.endswith(".weight") and entry.dtype not in _FLOAT_DTYPES
        )
        found = next(scaled, None) or next(packed, "")
    if found:
        kind = f", declared as {quant.describe()}" if quant.is_quantized else ""
        raise UnsupportedError(
            f"{files.folder} is a quantized checkpoint ({found}{kind}). Only float weights are "
            f"loaded so far; NVFP4 arrives with the quantization work. {_advice(quant)}"
        )


def _advice(quant: QuantConfig) -> str:
    if quant.method == "compressed-tensors" and (quant.algo or "").startswith("INT"):
        return (
            "These are integers that share a scale per group, in the layout of compressed-tensors: "
            "use the bf16 or the NVFP4 release of the model, or decompress it with the "
            "compressed-tensors package."
        )
    return "Use the bf16 release of the model."


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


def _check_vocabulary(
    config: DraftConfig, source: SafetensorsSource, document: Mapping[str, Any]
) -> None:
    t2d = source.peek("t2d") if source.has("t2d") else None
    check_vocabulary_tables(
        source.peek("d2t") if config.has_d2t else None,
        t2d,
        draft_vocab_size=config.draft_vocab_size,
        vocab_size=config.vocab_size,
        allow_identity=allows_identity(document),
    )
    if t2d is not None:
        source.skip("t2d")
