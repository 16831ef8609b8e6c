# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Opens a draft that a loader would refuse, because what is wrong with it is the question.

The draft is read as its files declare it. Where they contradict themselves, the reading that an
engine without checks would take is kept, and what the loader says about it is recorded. Quantized
weights are dequantized: what is asked is which setting fits them, not what their rounding costs.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import torch

from tensorrt_llm_ext.checkpoints import normalize
from tensorrt_llm_ext.checkpoints.io import CheckpointFiles
from tensorrt_llm_ext.checkpoints.loadable import cache_scales, loadable_formats
from tensorrt_llm_ext.checkpoints.names import TensorMap
from tensorrt_llm_ext.checkpoints.normalize import DraftCheckpoint
from tensorrt_llm_ext.checkpoints.source import SafetensorsSource
from tensorrt_llm_ext.checkpoints.vocabulary import check_vocabulary_map
from tensorrt_llm_ext.configs.boundaries import EXPLICIT_KEY
from tensorrt_llm_ext.configs.draft import DraftConfig
from tensorrt_llm_ext.configs.target import TargetConfig
from tensorrt_llm_ext.errors import CheckpointError, ConfigError, ExtError
from tensorrt_llm_ext.quantization.loading import take_weight
from tensorrt_llm_ext.quantization.tensors import QuantTensor

IDS_KEYS: Final = (
    "eagle_aux_hidden_state_layer_ids",
    "layer_ids",
    "aux_hidden_states_layer_ids",
    EXPLICIT_KEY,
)
# Name in a setting of the table as it is in the file; `d2t` is clamped into the vocabulary.
STORED_D2T: Final = "stored d2t"
# Spellings of each flag; all of them are read, and all that are present are rewritten.
FLAG_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "fc_norm": ("fc_norm", "use_aux_norm"),
    "norm_output": ("norm_output", "return_hidden_post_norm"),
    "norm_before_fc": ("norm_before_fc",),
    "norm_before_residual": ("norm_before_residual",),
}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A draft as it could be run: a configuration and the tensors that go with it.

    Attributes:
        config: `boundaries` in the order of the fc columns, which need not ascend.
        tensors: Every tensor by canonical name (`models.eagle3`); those that `config` does not use
            may be among them.
    """

    config: DraftConfig
    tensors: Mapping[str, torch.Tensor] = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class OpenedDraft:
    """A draft in memory.

    Attributes:
        checkpoint: Its files.
        declared: What its files say it is.
        problems: What the loader would refuse, as its messages.
        packed: The weights that are quantized, by module; `declared` has them dequantized.
    """

    checkpoint: DraftCheckpoint
    declared: Setting
    problems: tuple[str, ...] = ()
    packed: Mapping[str, QuantTensor] = field(default_factory=dict)

    @property
    def files(self) -> CheckpointFiles:
        """The stored tensors, from headers."""
        return self.checkpoint.files

    @property
    def names(self) -> TensorMap:
        """Where each canonical tensor lies."""
        return self.checkpoint.tensors


def open_leniently(
    folder: Path, target: TargetConfig, *, boundaries: tuple[int, ...] | None = None
) -> OpenedDraft:
    """Reads a draft and all its tensors.

    Args:
        folder: The draft's folder.
        target: The target that it is to run beside.
        boundaries: The user's override of the captured boundaries.

    Raises:
        CheckpointError: If the folder cannot be read, or brings code.
        ConfigError: If the draft is for another target, or a size is missing.
        UnsupportedError: If it is no MLA Eagle3 draft, or quantized in another format than NVFP4
            and per-tensor FP8.
    """
    checkpoint = normalize.open_draft(folder)
    tensors, packed = _read_tensors(checkpoint)
    config, problems = read_leniently(checkpoint, target, boundaries)
    if config.has_d2t:
        tensors[STORED_D2T] = tensors["d2t"]
        tensors["d2t"], found = _offsets(tensors["d2t"], tensors.get("t2d"), config)
        problems.extend(found)
    declared = Setting(config=config, tensors=tensors)
    return OpenedDraft(
        checkpoint=checkpoint, declared=declared, problems=tuple(problems), packed=packed
    )


def _read_tensors(
    checkpoint: DraftCheckpoint,
) -> tuple[dict[str, torch.Tensor], dict[str, QuantTensor]]:
    """Returns every float or integer tensor by canonical name, and the packed weights by module.

    Raises:
        UnsupportedError: If a module is in a format that is not loaded.
        CheckpointError: If the tensors of a quantized module contradict each other.
    """
    source = SafetensorsSource(checkpoint.files, checkpoint.tensors, label="draft")
    label = str(checkpoint.files.folder)
    formats = loadable_formats(source.stored, checkpoint.quant, label=label)
    skipped = set(cache_scales(source.stored))
    tensors, packed = {}, {}
    for module, kind in formats.items():
        rows, columns = source.shape(f"{module}.weight")
        width = 2 * columns if kind == "nvfp4" else columns
        weight = take_weight(source, module, (rows, width))
        if isinstance(weight, torch.Tensor):
            raise CheckpointError(f"{label}: {module} is {kind} by its scales, and float.")
        packed[module] = weight
        tensors[f"{module}.weight"] = weight.dequantize(torch.float32)
        skipped.update(weight.tensors(module))
    for name in checkpoint.tensors.refs:
        if name not in skipped:
            tensors[name] = source.peek(name)
    return tensors, packed


def read_leniently(
    checkpoint: DraftCheckpoint,
    target: TargetConfig,
    boundaries: tuple[int, ...] | None = None,
) -> tuple[DraftConfig, list[str]]:
    """Reads a draft's config as an engine without checks would.

    Args:
        checkpoint: The draft's files.
        target: The target.
        boundaries: The user's override.

    Returns:
        The configuration, and what the strict reader says against it.

    Raises:
        ConfigError, UnsupportedError: If no reading makes sense.
    """
    problems: list[str] = []
    norms = _relax_norms(checkpoint)
    given = boundaries or _declared_boundaries(checkpoint.config, target)
    # One after the other, so that each contradiction is told and no more than needed is relaxed.
    for relaxed, override in (
        (checkpoint, boundaries),
        (norms, boundaries),
        (_relax_boundaries(checkpoint), given),
        (_relax_boundaries(norms), given),
    ):
        try:
            return normalize.draft_config(relaxed, target, boundaries=override), problems
        except ExtError as error:
            if _told(error) not in problems:
                problems.append(_told(error))
    raise ConfigError(
        "The draft cannot be read in any way that could be run, so there is nothing to compare: "
        + " ".join(problems)
    )


def _told(error: ExtError) -> str:
    check = f"{error.check}: " if getattr(error, "check", None) else ""
    return check + " ".join(str(error).split())


def _relax_norms(checkpoint: DraftCheckpoint) -> DraftCheckpoint:
    """Takes flags at their word: tensors without a flag are idle, a flag without tensors is off."""
    raw = copy.deepcopy(dict(checkpoint.config))
    refs = dict(checkpoint.tensors.refs)
    for flag, prefix in (("fc_norm", "fc_norm."), ("norm_before_fc", "input_norm.")):
        named = [name for name in refs if name.startswith(prefix)]
        if not flag_value(raw, flag):
            for name in named:
                del refs[name]
        elif not named:
            write_flag(raw, flag, False)
    tensors = replace(checkpoint.tensors, refs=refs)
    return replace(checkpoint, config=raw, tensors=tensors)


def _relax_boundaries(checkpoint: DraftCheckpoint) -> DraftCheckpoint:
    """Removes every statement about captured layers; the caller gives the boundaries instead."""
    raw = copy.deepcopy(dict(checkpoint.config))
    for section in sections(raw):
        for key in IDS_KEYS:
            section.pop(key, None)
    detection = replace(checkpoint.detection, id_convention=None)
    return replace(checkpoint, config=raw, detection=detection)


def _declared_boundaries(raw: Mapping[str, Any], target: TargetConfig) -> tuple[int, ...] | None:
    """What an engine would capture that reads the ids: the explicit key, else ids as boundaries."""
    found: dict[str, tuple[int, ...]] = {}
    for section in sections(dict(raw)):
        for key in IDS_KEYS:
            ids = section.get(key)
            if isinstance(ids, list) and all(isinstance(i, int) for i in ids):
                found.setdefault(key, tuple(ids))
    for key in (EXPLICIT_KEY, *IDS_KEYS):
        if key in found:
            ids = found[key]
            ids = tuple(i + 1 for i in ids) if key == "aux_hidden_states_layer_ids" else ids
            return tuple(sorted({min(max(i, 1), target.num_layers) for i in ids}))
    return None


def sections(raw: dict[str, Any]) -> list[dict[str, Any]]:
    """The mappings of a config.json that may carry a draft's settings, nested ones first."""
    nested = [raw[key] for key in ("eagle_config",) if isinstance(raw.get(key), dict)]
    return [*nested, raw]


def flag_value(raw: Mapping[str, Any], flag: str) -> bool:
    """Whether any spelling of a flag is true."""
    return any(
        section.get(key) is True for section in sections(dict(raw)) for key in FLAG_KEYS[flag]
    )


def write_flag(raw: dict[str, Any], flag: str, value: bool) -> None:
    """Writes a flag at the top, and into every other place where it stands."""
    for section in sections(raw):
        for key in FLAG_KEYS[flag]:
            if section.get(key) is not None:
                section[key] = value
    raw[flag] = value


def _offsets(
    d2t: torch.Tensor, t2d: torch.Tensor | None, config: DraftConfig
) -> tuple[torch.Tensor, list[str]]:
    """The table as offsets that stay inside the vocabulary, and what is wrong with it."""
    problems = []
    try:
        check_vocabulary_map(
            d2t, t2d, draft_vocab_size=config.draft_vocab_size, vocab_size=config.vocab_size
        )
    except CheckpointError as error:
        problems.append(_told(error))
    return inside(d2t.to(torch.int64), config.vocab_size), problems


def inside(d2t: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Clamps the target ids of an offset table into the vocabulary: indices must exist."""
    ids = torch.arange(d2t.numel())
    return (ids + d2t.to(torch.int64)).clamp(0, vocab_size - 1) - ids


def with_boundaries(setting: Setting, boundaries: tuple[int, ...]) -> Setting:
    """The same draft over other captured states, in the order of the fc columns."""
    return replace(setting, config=replace(setting.config, boundaries=boundaries))
