# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Checkpoint tensors into the host's modules, with nobody's name tables but ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tensorrt_llm_ext.checkpoints.loadable import cache_scales, loadable_formats
from tensorrt_llm_ext.checkpoints.normalize import DraftCheckpoint
from tensorrt_llm_ext.checkpoints.source import SafetensorsSource
from tensorrt_llm_ext.checkpoints.vocabulary import allows_identity, check_vocabulary_tables
from tensorrt_llm_ext.configs.draft import DraftConfig
from tensorrt_llm_ext.errors import CheckpointError
from tensorrt_llm_ext.models.interfaces import WeightSource
from tensorrt_llm_ext.quantization.loading import dense, take_float, take_weight
from tensorrt_llm_ext.quantization.siblings import share_scales
from tensorrt_llm_ext.quantization.tensors import Nvfp4Tensor, Weight
from tensorrt_llm_ext.trtllm.fused import load_packed
from tensorrt_llm_ext.trtllm.host import host


def draft_formats(checkpoint: DraftCheckpoint) -> dict[str, str]:
    """Formats of the modules that are not float; refuses what is not loaded."""
    return loadable_formats(checkpoint.stored, checkpoint.quant, label=str(checkpoint.files.folder))


def open_source(checkpoint: DraftCheckpoint, config: DraftConfig) -> SafetensorsSource:
    """Opens a draft's tensors, with those set aside that the host's draft has no use for.

    Raises:
        CheckpointError: If the vocabulary maps are inconsistent.
    """
    source = SafetensorsSource(checkpoint.files, checkpoint.tensors, label="draft")
    for name in cache_scales(source.stored):
        source.skip(name)
    t2d = source.peek("t2d") if source.has("t2d") else None
    check_vocabulary_tables(
        source.peek("d2t") if config.has_d2t else None,
        t2d,
        draft_vocab_size=config.draft_vocab_size,
        vocab_size=config.vocab_size,
        allow_identity=allows_identity(checkpoint.config),
    )
    if t2d is not None:
        source.skip("t2d")
    return source


def load_projection(
    linear: Any,
    source: WeightSource,
    modules: Sequence[tuple[str, int]],
    in_features: int,
    kind: str,
) -> None:
    """Loads a linear layer of the host that stands for one module, or for several fused by rows.

    Args:
        linear: The host's layer, with its weights created.
        source: Where tensors come from.
        modules: Canonical name and rows of each part.
        in_features: Width of the input, over all ranks.
        kind: Format that the layer was built in; other weights are dequantized into it.
    """
    weights = _taken(source, modules, in_features)
    if kind == "packed":
        load_packed(linear, weights, columns=host().symbol("TensorParallelMode").COLUMN)
        return
    linear.load_weights([_joined(weights, kind, modules[0][0])])


def load_gate_up(
    linear: Any, source: WeightSource, prefix: str, sizes: tuple[int, int], kind: str
) -> None:
    """Loads the host's fused gate and up projection, which takes its two parts apart.

    Args:
        linear: The host's layer.
        source: Where tensors come from.
        prefix: Canonical name of the MLP.
        sizes: Hidden and intermediate size.
        kind: Format that the layer was built in.
    """
    hidden, rows = sizes
    modules = [(f"{prefix}.{name}", rows) for name in ("gate_proj", "up_proj")]
    weights = _taken(source, modules, hidden)
    if kind == "packed":
        load_packed(linear, weights, columns=host().symbol("TensorParallelMode").COLUMN)
        return
    linear.load_weights(
        [_joined([w], kind, name) for w, (name, _) in zip(weights, modules, strict=True)]
    )


def load_kv_b(mla: Any, source: WeightSource, module: str, heads: int) -> None:
    """Loads kv_b_proj whole, for contexts, and split into the halves that generation absorbs.

    Args:
        mla: The host's attention.
        source: Where tensors come from.
        module: Canonical name of the projection.
        heads: Of the whole model.
    """
    nope, value, rank = mla.qk_nope_head_dim, mla.v_head_dim, mla.kv_lora_rank
    weight = take_float(source, module, (heads * (nope + value), rank))
    mla.kv_b_proj.load_weights([{"weight": weight}])
    local = mla.k_b_proj_trans.shape[0]
    first = (heads // local > 1) * mla.kv_b_proj.tp_rank * local
    by_head = weight.view(heads, nope + value, rank)[first : first + local]
    keys, values = torch.split(by_head, [nope, value], dim=1)
    with torch.no_grad():
        mla.k_b_proj_trans.copy_(keys.transpose(1, 2))
        mla.v_b_proj.copy_(values)


def _taken(
    source: WeightSource, modules: Sequence[tuple[str, int]], in_features: int
) -> tuple[Weight, ...]:
    """The parts of one layer, with the scales that engines share between them."""
    return share_scales([take_weight(source, name, (rows, in_features)) for name, rows in modules])


def _joined(weights: Sequence[Weight], kind: str, name: str) -> dict[str, torch.Tensor]:
    """The tensors that the host's layer is loaded from, under the names it knows."""
    if kind == "float":
        # One after the other: a head is gigabytes.
        parts = [dense(weight, torch.bfloat16) for weight in weights]
        return {"weight": parts[0] if len(parts) == 1 else torch.cat(parts)}
    first = weights[0]
    if isinstance(first, torch.Tensor) or first.input_scale is None:
        raise CheckpointError(
            f"{name} has no input_scale, which this host needs to quantize activations. Quantize "
            "the draft with a W4A4 recipe (trtllm-ext quantize), or set "
            "TRTLLM_EXT_DRAFT_QUANT=dequantize."
        )
    packed = [w for w in weights if not isinstance(w, torch.Tensor)]
    joined = {"weight": torch.cat([_bytes(w.data) for w in packed])}
    if isinstance(first, Nvfp4Tensor):
        scales = [w.block_scale for w in packed if isinstance(w, Nvfp4Tensor)]
        joined["weight_scale"] = torch.cat([_bytes(s) for s in scales]).view(torch.float8_e4m3fn)
        joined["weight_scale_2"] = first.global_scale
    else:
        joined["weight"] = joined["weight"].view(torch.float8_e4m3fn)
        joined["weight_scale"] = first.scale
    joined["input_scale"] = first.input_scale
    return joined


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.uint8)  # not every version of torch joins fp8


__all__ = ["draft_formats", "load_gate_up", "load_kv_b", "load_projection", "open_source"]
