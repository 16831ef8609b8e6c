# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Any public layout in, one canonical view out, from headers and JSON alone."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tensorrt_llm_ext.checkpoints.detect import detect_format
from tensorrt_llm_ext.checkpoints.formats.base import Detection, DraftFiles, DraftFormat
from tensorrt_llm_ext.checkpoints.io import CheckpointFiles, has_file, open_checkpoint, read_json
from tensorrt_llm_ext.checkpoints.names import (
    TensorMap,
    canonical_draft_name,
    draft_tensor_map,
)
from tensorrt_llm_ext.checkpoints.quantized import logical_shapes, module_formats
from tensorrt_llm_ext.checkpoints.store import CheckpointStore, open_store
from tensorrt_llm_ext.configs.boundaries import BoundaryEvidence
from tensorrt_llm_ext.configs.draft import DraftConfig
from tensorrt_llm_ext.configs.hf_draft import draft_config_from_hf
from tensorrt_llm_ext.configs.hf_quant import FILE_NAME, quant_config_from_hf
from tensorrt_llm_ext.configs.hf_target import target_config_from_hf
from tensorrt_llm_ext.configs.pairing import check_pair
from tensorrt_llm_ext.configs.quant import QuantConfig
from tensorrt_llm_ext.configs.target import TargetConfig
from tensorrt_llm_ext.errors import CheckpointError
from tensorrt_llm_ext.planning.hosts import DraftTraits

Ref = str | os.PathLike[str] | CheckpointStore
_GENERATION: Final = "generation_config.json"
_MAX_DEPTH: Final = 32
_MAX_DRAFT_TENSORS: Final = 50_000  # a draft with quantized experts would still be named as one


@dataclass(frozen=True, kw_only=True)
class DraftCheckpoint:
    """A draft's files in canonical terms. Nothing has been judged yet but that they can be read.

    Attributes:
        files: Tensors by stored name, from headers.
        raw: config.json as it is.
        config: The same in the keys that `configs.hf_draft` reads: flat, without nulls.
        detection: Layout and evidence.
        tensors: Where each canonical tensor lies.
        quant: What the files declare about quantization.
    """

    files: CheckpointFiles
    raw: Mapping[str, Any] = field(repr=False)
    config: Mapping[str, Any] = field(repr=False)
    detection: Detection
    tensors: TensorMap
    quant: QuantConfig

    @property
    def stored(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Stored dtype name and shape of each canonical tensor, scales included."""
        shapes = self.tensors.shapes(self.files.shapes)
        return {
            name: (self.files.entries[ref.name].dtype, shapes[name])
            for name, ref in self.tensors.refs.items()
        }

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each canonical tensor as if nothing were quantized; scales are left out."""
        return logical_shapes(self.stored)

    def traits(self) -> DraftTraits:
        """What a host sees of the draft and `DraftConfig` does not keep."""
        formats = module_formats(self.stored)
        quantized = (name for name, form in formats.items() if form.kind != "float")
        return DraftTraits.of(self.files.shapes, self.raw, quantized)


@dataclass(frozen=True, kw_only=True)
class TargetCheckpoint:
    """A target's files.

    Attributes:
        files: Tensors by stored name, from headers.
        raw: config.json as it is.
        quant: What the files declare about quantization.
    """

    files: CheckpointFiles
    raw: Mapping[str, Any] = field(repr=False)
    quant: QuantConfig


def open_draft(ref: Ref) -> DraftCheckpoint:
    """Reads the headers and JSON files of a draft and puts them in canonical terms.

    Args:
        ref: A folder, a repository of the hub (`checkpoints.store.open_store`), or a store.

    Raises:
        CheckpointError: If the files are incomplete, unsafe or pickled, bring code, hold a tensor
            twice, or fused projections that cannot be split.
        ConfigError: If two files contradict each other about quantization (V23).
    """
    store = open_store(ref)
    raw = read_document(store, "config.json")
    refuse_code(store, raw)
    files = open_checkpoint(store)
    if len(files.entries) > _MAX_DRAFT_TENSORS:
        raise CheckpointError(
            f"{store.label} has {len(files.entries)} tensors: it is a model, not a draft, which "
            "has about twenty. Are target and draft swapped?",
            check="V5",
        )
    hf_quant = _optional_json(store, FILE_NAME)
    detection = detect_format(DraftFiles(config=raw, shapes=files.shapes, hf_quant_config=hf_quant))
    config = detection.format.read_config(raw)
    tensors = draft_tensor_map(
        files.shapes,
        q_lora_rank=_size(config, "q_lora_rank") or None,
        latent_size=_size(config, "kv_lora_rank") + _size(config, "qk_rope_head_dim"),
        rename=lambda name: _renamed(name, detection.format),
    )
    return DraftCheckpoint(
        files=files,
        raw=raw,
        config=config,
        detection=detection,
        tensors=tensors,
        quant=quant_config_from_hf(raw, hf_quant),
    )


def open_target(ref: Ref) -> TargetCheckpoint:
    """Reads the headers and JSON files of a target; its own code, if any, is left alone.

    Raises:
        CheckpointError: If the files are incomplete, unsafe or pickled.
        ConfigError: If two files contradict each other about quantization (V23).
    """
    store = open_store(ref)
    raw = read_document(store, "config.json")
    files = open_checkpoint(store)
    quant = quant_config_from_hf(raw, _optional_json(store, FILE_NAME))
    return TargetCheckpoint(files=files, raw=raw, quant=quant)


def draft_config(
    draft: DraftCheckpoint,
    target: TargetConfig | None = None,
    *,
    boundaries: Sequence[int] | None = None,
    num_target_layers: int | None = None,
) -> DraftConfig:
    """Applies every rule that a draft's config and headers must keep.

    Args:
        draft: The draft.
        target: The target it is to run beside; the pair is cross-checked when given.
        boundaries: The user's override of the captured boundaries.
        num_target_layers: Number of target layers, where the target itself is not at hand.

    Raises:
        ConfigError, UnsupportedError: As `draft_config_from_hf` and `check_pair`; `check` holds
            the id of the check that the error is a finding of.
    """
    detection = draft.detection
    convention = detection.id_convention
    config = draft_config_from_hf(
        draft.config,
        tensors=draft.shapes,
        num_target_layers=num_target_layers if target is None else target.num_layers,
        target_hidden_size=None if target is None else target.hidden_size,
        boundaries=boundaries,
        producer=BoundaryEvidence(
            convention=None if convention is None else convention.value,
            fingerprint=detection.id_evidence,
            weak=detection.id_is_weak,
            against=detection.id_against,
        ),
    )
    if target is not None:
        check_pair(config, target)
    return config


def target_config(target: TargetCheckpoint) -> TargetConfig:
    """Reads a target's config.json and generation_config.json.

    Raises:
        ConfigError, UnsupportedError: As `target_config_from_hf`.
    """
    store = target.files.store
    generation = None if store is None else _optional_json(store, _GENERATION)
    return target_config_from_hf(target.raw, generation_config=generation)


def read_document(ref: Ref, name: str) -> dict[str, Any]:
    """Reads a JSON file of settings.

    Raises:
        CheckpointError: If it cannot be read, or nests deeper than any settings do: what reads it
            calls itself for each level.
    """
    document = read_json(ref, name)
    level: list[Any] = [document]
    for _ in range(_MAX_DEPTH):
        inner = [item.values() if isinstance(item, dict) else item for item in level]
        level = [v for values in inner for v in values if isinstance(v, dict | list)]
        if not level:
            return document
    raise CheckpointError(
        f"{name} of {open_store(ref).label} nests more than {_MAX_DEPTH} levels deep. It is not "
        "what its name says."
    )


def refuse_code(store: CheckpointStore, raw: Mapping[str, Any]) -> None:
    """Refuses a draft that asks a host to run its code.

    Raises:
        CheckpointError: If it holds a .py file at any depth, or `auto_map` in config.json.
    """
    scripts = [name for name in store.names() if name.endswith(".py")]
    if scripts or raw.get("auto_map"):
        found = scripts[0] if scripts else "auto_map in config.json"
        raise CheckpointError(
            f"The draft in {store.label} brings code ({found}), which a host would run. Drafts "
            "need none. Look at why it is there, remove the .py files and auto_map, and run "
            "trtllm-ext convert, which copies none."
        )


def _optional_json(store: CheckpointStore, name: str) -> dict[str, Any] | None:
    return read_document(store, name) if has_file(store, name) else None


def _renamed(name: str, form: DraftFormat) -> str:
    """A tensor's canonical name: the layout's own table, then the union of all."""
    for pattern, replacement in form.renames:
        while (shorter := pattern.sub(replacement, name)) != name:
            name = shorter
    return canonical_draft_name(name)


def _size(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    whole = isinstance(value, int) and not isinstance(value, bool) and value > 0
    return value if whole and isinstance(value, int) else 0
