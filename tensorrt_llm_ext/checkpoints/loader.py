# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""From a checkpoint folder to a model: config, cross-checks, weights, leftovers."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from tensorrt_llm_ext.checkpoints.io import (
    CheckpointFiles,
    checkpoint_folder,
    has_file,
)
from tensorrt_llm_ext.checkpoints.loadable import cache_scales, loadable_formats
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
from tensorrt_llm_ext.configs.quant import checked_quant_mode
from tensorrt_llm_ext.configs.target import TargetConfig
from tensorrt_llm_ext.errors import ConfigError
from tensorrt_llm_ext.models.blocks import TorchBlocks
from tensorrt_llm_ext.models.deepseek import DeepseekV3
from tensorrt_llm_ext.models.eagle3 import Eagle3Draft
from tensorrt_llm_ext.quantization.linear import Mode

_logger = logging.getLogger(__name__)

TORCH_DTYPES: Final[Mapping[str, torch.dtype]] = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


# What becomes of quantized weights, by the user's word for it. "auto" takes what is fastest here:
# no kernel of this package multiplies packed weights as fast as plain ones are.
_MODES: Final[Mapping[str, Mode]] = {
    "auto": "dequantized",
    "dequantized": "dequantized",
    "packed": "packed",
    "w4a4": "emulated",
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
    quant_mode: str = "auto",
) -> DeepseekV3:
    """Loads a target: DeepSeek-V3, Kimi-K2.x or the text part of Kimi-K2.5.

    Any of its linear layers but kv_b_proj may be stored in NVFP4 or per-tensor FP8.

    Args:
        folder: A checkpoint in Hugging Face layout, sharded or not. Its own code is never run.
        device: Where the weights go.
        dtype: Dtype of weights and activations; what the checkpoint declares when None.
        quant_mode: What becomes of quantized weights, one of `configs.quant.QUANT_MODES`.

    Returns:
        The model in eval mode.

    Raises:
        CheckpointError: If files are missing, unsafe or do not fit the config.
        ConfigError: If the config is incomplete or contradicts itself, or the mode is unknown.
        UnsupportedError: If the model is of another architecture, or quantized in another format.
    """
    mode = _MODES[checked_quant_mode(quant_mode)]
    checkpoint = open_target(checkpoint_folder(folder))
    raw, files = checkpoint.raw, checkpoint.files
    config = target_config(checkpoint)
    tensors = target_tensor_map(files.entries, config)
    dtype = dtype or _stored_dtype(raw, files, tensors, "model.embed_tokens.weight")
    source = SafetensorsSource(files, tensors, label="target")
    formats = _formats(source, checkpoint, mode, "target")
    _expect_sizes(config, source)
    blocks = TorchBlocks(torch.device(device), dtype, formats=formats, mode=mode)
    model = DeepseekV3(config, blocks)
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
    loadable_formats(checkpoint.stored, checkpoint.quant, label=_described(checkpoint))
    return draft_config(checkpoint, target, boundaries=boundaries)


def load_draft(
    folder: str | os.PathLike[str],
    target: DeepseekV3,
    *,
    boundaries: Sequence[int] | None = None,
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
    quant_mode: str = "auto",
) -> Eagle3Draft:
    """Loads an MLA Eagle3 draft for a loaded target.

    Its layer but kv_b_proj, its fc and its head may each be stored in NVFP4 or per-tensor FP8. On a
    CPU, weights that stay packed are mapped from their files, which must not change meanwhile.

    Args:
        folder: The draft, in any of the layouts that `checkpoints.names` knows.
        target: The model to be verified with; the draft borrows what it lacks.
        boundaries: The user's override of the captured boundaries.
        device: Where the weights go; the target's device when None.
        dtype: Dtype of weights and activations; the target's when None.
        quant_mode: What becomes of quantized weights, one of `configs.quant.QUANT_MODES`.

    Returns:
        The draft in eval mode, sharing embedding and head with the target where it has none, or
        where its embedding is bit-equal to the target's.

    Raises:
        CheckpointError: If files are missing, unsafe or do not fit the config.
        ConfigError: If config, tensors and target contradict each other.
        UnsupportedError: If it is no MLA draft, quantized in another format, or caches rows of
            another width.
    """
    mode = _MODES[checked_quant_mode(quant_mode)]
    checkpoint = open_draft(checkpoint_folder(folder))
    config = draft_config(checkpoint, target.config, boundaries=boundaries)
    for fact in checkpoint.detection.facts:
        _logger.warning("draft: %s", fact)
    embedding = next(target.embed_tokens.parameters())
    device = embedding.device if device is None else torch.device(device)
    dtype = dtype or embedding.dtype
    source = SafetensorsSource(checkpoint.files, checkpoint.tensors, label="draft")
    formats = _formats(source, checkpoint, mode, "draft")
    if config.has_own_embedding and _same_embedding(source, embedding, dtype):
        _logger.info("draft: its embedding equals the target's and is shared.")
        source.skip("embed_tokens.weight")
        config = dataclasses.replace(config, has_own_embedding=False)
    for name, shape in expected_shapes(config).items():
        source.expect(name, shape)  # before anything of that size is allocated
    blocks = TorchBlocks(device, dtype, formats=formats, mode=mode)
    draft = Eagle3Draft(config, blocks, target.config.num_layers)
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


def _formats(
    source: SafetensorsSource,
    checkpoint: DraftCheckpoint | TargetCheckpoint,
    mode: Mode,
    label: str,
) -> dict[str, str]:
    """Decides by the tensors what is quantized; refuses other formats by name."""
    stored = source.stored
    formats = loadable_formats(stored, checkpoint.quant, label=_described(checkpoint))
    unused = cache_scales(stored)
    for name in unused:
        source.skip(name)
    if unused:
        _logger.warning(
            "%s: %d scales of a quantized KV cache (%s) are not used; the cache keeps full "
            "precision.",
            label,
            len(unused),
            unused[0],
        )
    if formats:
        counts = Counter(formats.values())
        kinds = ", ".join(f"{count} in {kind}" for kind, count in counts.items())
        _logger.info("%s: %d quantized modules (%s), %s.", label, len(formats), kinds, mode)
    return formats


def _described(checkpoint: DraftCheckpoint | TargetCheckpoint) -> str:
    return str(checkpoint.files.folder)


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
