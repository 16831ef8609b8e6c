# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Writes the setting that fits as a folder: config.json where a key can say it, else tensors.

The layout of the draft stays: its names, its spellings of each key (all that are present are
rewritten), its other small files. The input is never touched.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch

from tensorrt_llm_ext.checkpoints.loadable import cache_scales
from tensorrt_llm_ext.checkpoints.loader import read_draft_config
from tensorrt_llm_ext.checkpoints.names import TensorRef
from tensorrt_llm_ext.checkpoints.source import SafetensorsSource
from tensorrt_llm_ext.checkpoints.writer import save_checkpoint
from tensorrt_llm_ext.configs.boundaries import EXPLICIT_KEY
from tensorrt_llm_ext.configs.draft import DraftConfig
from tensorrt_llm_ext.configs.hf_rope import YARN_FIELDS
from tensorrt_llm_ext.configs.mla import RopeConfig
from tensorrt_llm_ext.configs.target import TargetConfig
from tensorrt_llm_ext.diagnostics.canary.opening import (
    FLAG_KEYS,
    IDS_KEYS,
    STORED_D2T,
    OpenedDraft,
    Setting,
    sections,
    write_flag,
)
from tensorrt_llm_ext.errors import CheckpointError, ConfigError
from tensorrt_llm_ext.ops.nvfp4.format import global_scale_of
from tensorrt_llm_ext.quantization.tensors import (
    Nvfp4Tensor,
    QuantTensor,
    fp8_scale_of,
    quantize_fp8,
    quantize_nvfp4,
)

_MAX_SHARD_BYTES: Final = 5 << 30
_MAX_EXTRA_BYTES: Final = 64 << 20
_EXTRA_SUFFIXES: Final = (".json", ".jinja", ".txt", ".md", ".model")
_ROPE_KEYS: Final = ("rope_scaling", "rope_parameters")


def write_fixed(
    opened: OpenedDraft, wanted: Setting, out: Path, target: TargetConfig
) -> tuple[str, ...]:
    """Writes a folder that declares, and holds, what `wanted` is.

    Args:
        opened: The draft as it was read.
        wanted: The setting that fits.
        out: A folder that does not exist, or is empty.
        target: The target, which the result is read back for.

    Returns:
        What was changed, one sentence each.

    Raises:
        CheckpointError: If `out` holds anything, or lies in the draft's own folder.
        ConfigError: If the result cannot be read back as wanted.
    """
    check_out(out, opened.files.folder)
    wanted, notes = _ascending(wanted)
    raw = copy.deepcopy(dict(opened.checkpoint.raw))
    wanted = _with_inverse(wanted)
    notes += _write_config(raw, opened, wanted.config)
    tensors, changed = _stored_tensors(opened, wanted)
    notes += changed
    save_checkpoint(out, raw, tensors, max_shard_bytes=_MAX_SHARD_BYTES)
    _copy_extras(opened.files.folder, out)
    _drop_contradicting_ids(out, raw, wanted.config, target)
    return tuple(notes)


def check_out(out: Path, source: Path) -> None:
    """Refuses a place for the corrected draft.

    Raises:
        CheckpointError: If `out` holds anything, or lies in the draft's own folder.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise CheckpointError(f"{out} exists already. Give a folder that does not, or is empty.")
    if source.resolve() in (out.resolve(), *out.resolve().parents):
        raise CheckpointError(f"{out} lies in the draft's own folder. Give another place.")


def _ascending(wanted: Setting) -> tuple[Setting, list[str]]:
    """Moves fc columns and fc_norm tensors so that the captured layers ascend."""
    values = wanted.config.boundaries
    order = sorted(range(len(values)), key=values.__getitem__)
    if order == list(range(len(values))):
        return wanted, []
    tensors = dict(wanted.tensors)
    chunks = wanted.tensors["fc.weight"].chunk(len(values), dim=1)
    tensors["fc.weight"] = torch.cat([chunks[i] for i in order], dim=1)
    for place, index in enumerate(order):
        name = f"fc_norm.{index}.weight"
        if name in wanted.tensors:
            tensors[f"fc_norm.{place}.weight"] = wanted.tensors[name]
    norm = wanted.tensors.get("input_norm.weight")
    if norm is not None:
        parts = norm.chunk(len(values))
        tensors["input_norm.weight"] = torch.cat([parts[i] for i in order])
    config = replace(wanted.config, boundaries=tuple(values[i] for i in order))
    shown = [i + 1 for i in order]
    return Setting(config=config, tensors=tensors), [f"fc column blocks reordered: {shown}"]


def _with_inverse(wanted: Setting) -> Setting:
    """Makes t2d, where there is one, say the same as d2t."""
    d2t, t2d = wanted.tensors.get("d2t"), wanted.tensors.get("t2d")
    if d2t is None or t2d is None:
        return wanted
    ids = torch.arange(d2t.numel()) + d2t.to(torch.int64)
    inverse = torch.zeros_like(t2d).index_fill(0, ids, 1)
    return replace(wanted, tensors={**wanted.tensors, "t2d": inverse})


def _write_config(raw: dict[str, Any], opened: OpenedDraft, wanted: DraftConfig) -> list[str]:
    """Edits config.json; returns what was changed."""
    declared = opened.declared.config
    notes = []
    for flag in FLAG_KEYS:
        value = getattr(wanted, flag)
        if value != getattr(declared, flag):
            write_flag(raw, flag, value)
            notes.append(f"{flag}: {str(value).lower()}")
    if wanted.boundaries != declared.boundaries or EXPLICIT_KEY not in raw or opened.problems:
        before = [section.get(key) for section in sections(raw) for key in IDS_KEYS]
        _write_boundaries(raw, declared.boundaries, wanted.boundaries)
        # An override of the user's is declared too: what counts is what stood in the file.
        after = [section.get(key) for section in sections(raw) for key in IDS_KEYS]
        if wanted.boundaries != declared.boundaries or before != after:
            notes.append(f"captured boundaries {list(wanted.boundaries)}")
    if wanted.mla.rope != declared.mla.rope:
        _write_rope(raw, wanted.mla.rope)
        notes.append("rope settings")
    return notes


def _write_boundaries(
    raw: dict[str, Any], declared: tuple[int, ...], wanted: tuple[int, ...]
) -> None:
    """Rewrites every spelling of the ids, each in the convention that it was in."""
    for section in sections(raw):
        for key in IDS_KEYS:
            ids = section.get(key)
            if ids is None:
                continue
            is_after_layer = key != EXPLICIT_KEY and list(ids) == [b - 1 for b in declared]
            section[key] = [b - 1 for b in wanted] if is_after_layer else list(wanted)
    raw[EXPLICIT_KEY] = list(wanted)


def _write_rope(raw: dict[str, Any], rope: RopeConfig) -> None:
    """Rewrites rope_theta and the scaling in both of transformers' spellings."""
    new: dict[str, Any] = {"rope_type": "default"}
    if rope.yarn is not None:
        new = {"type": "yarn", "rope_type": "yarn"}
        values = {key: getattr(rope.yarn, key) for key in YARN_FIELDS}
        new |= {key: value for key, value in values.items() if value is not None}
    else:
        raw["max_position_embeddings"] = rope.max_position_embeddings
    present = [key for key in _ROPE_KEYS if isinstance(raw.get(key), dict)] or ["rope_scaling"]
    for key in present:
        had_theta = key == "rope_parameters" or "rope_theta" in (raw.get(key) or {})
        raw[key] = {**new, **({"rope_theta": rope.theta} if had_theta else {})}
    raw["rope_theta"] = rope.theta


def _stored_tensors(
    opened: OpenedDraft, wanted: Setting
) -> tuple[dict[str, torch.Tensor], list[str]]:
    """Every stored tensor under its stored name, with the parts that `wanted` changes."""
    refs = opened.names.refs
    source = SafetensorsSource(opened.files, label="draft")
    stored = {name: source.peek(name) for name in opened.files.entries}
    scales = {n: m for m, weight in opened.packed.items() for n in weight.tensors(m)}
    kept = {name for name in refs if name in cache_scales(opened.checkpoint.stored)}
    notes = []
    for name in refs:
        module = scales.get(name)
        if name in kept or (module is not None and name != f"{module}.weight"):
            continue  # goes with its weight
        new = wanted.tensors.get(name)
        if new is None or _is_idle(name, wanted.config):
            gone = [name] if module is None else list(opened.packed[module].tensors(module))
            for each in gone:
                stored.pop(refs[each].name, None)
            notes.append(f"{name} left out")
            continue
        old = opened.declared.tensors[STORED_D2T if name == "d2t" else name]
        if torch.equal(new.to(old.dtype), old):
            continue
        if module is None:
            _replace(stored, refs[name], new.to(old.dtype))
            notes.append(f"{name} rewritten")
        else:
            for each, part in _requantized(new, opened.packed[module], module).items():
                _replace(stored, refs[each], part)
            notes.append(f"{name} rewritten and quantized again")
    return stored, notes


def _replace(stored: dict[str, torch.Tensor], ref: TensorRef, part: torch.Tensor) -> None:
    """Puts a canonical tensor in its place, which may be some rows of a stored one."""
    if ref.rows is not None:
        whole = stored[ref.name].clone()
        rows = slice(*ref.rows)
        if whole.element_size() == 1:  # not every version of torch assigns rows of fp8
            whole.view(torch.uint8)[rows] = part.view(torch.uint8)
        else:
            whole[rows] = part
        part = whole
    stored[ref.name] = part.contiguous().view(stored[ref.name].shape)


def _requantized(weight: torch.Tensor, packed: QuantTensor, module: str) -> dict[str, torch.Tensor]:
    """Packs a changed weight as the stored one was packed.

    Rows and blocks of columns that only moved get the codes that they had: numbers that NVFP4 or
    FP8 can hold are fixed points of it under the same scale of the tensor. Where the new numbers
    need a larger one, they get it, unless an engine shares the scale with a neighbour.
    """
    if isinstance(packed, Nvfp4Tensor):
        needed = global_scale_of(weight.abs().amax())
        scale = torch.maximum(packed.global_scale, needed)
        made: QuantTensor = quantize_nvfp4(
            weight, name=module, global_scale=scale, input_scale=packed.input_scale
        )
    else:
        largest = torch.maximum(packed.scale, fp8_scale_of(weight.abs().amax()))
        made = quantize_fp8(weight, name=module, scale=largest, input_scale=packed.input_scale)
    return made.tensors(module)


def _is_idle(name: str, config: DraftConfig) -> bool:
    """Whether a tensor has no use under these flags; the loader refuses idle norms."""
    if name.startswith("fc_norm."):
        return not config.fc_norm
    if name == "input_norm.weight":
        return not config.norm_before_fc
    return name == "t2d" and not config.has_d2t


def _copy_extras(source: Path, out: Path) -> None:
    """Copies tokenizer, template and the like; no code, no weights, nothing large."""
    for path in sorted(source.iterdir()):
        is_wanted = path.suffix in _EXTRA_SUFFIXES and not path.name.endswith(".index.json")
        if is_wanted and path.is_file() and not (out / path.name).exists():
            data = path.read_bytes() if path.stat().st_size <= _MAX_EXTRA_BYTES else None
            if data is not None:
                (out / path.name).write_bytes(data)


def _drop_contradicting_ids(
    out: Path, raw: dict[str, Any], wanted: DraftConfig, target: TargetConfig
) -> None:
    """Reads the folder back; ids that only contradict the explicit key go.

    Raises:
        ConfigError: If it is still not read as wanted.
    """
    attempts: list[Mapping[str, Any]] = [raw, _without_ids(raw)]
    for attempt in attempts:
        text = json.dumps(attempt, indent=2, allow_nan=False)
        (out / "config.json").write_text(text + "\n", encoding="utf-8")
        try:
            found = read_draft_config(out, target)
        except ConfigError as error:
            reason = str(error)
            continue
        if found.boundaries == wanted.boundaries:
            return
        reason = f"it is read with boundaries {list(found.boundaries)}"
    raise ConfigError(
        f"The corrected draft in {out} is not accepted: {reason} What else is wrong with the draft "
        "must be mended by hand; see trtllm-ext doctor."
    )


def _without_ids(raw: Mapping[str, Any]) -> dict[str, Any]:
    result = copy.deepcopy(dict(raw))
    for section in sections(result):
        for key in IDS_KEYS:
            section.pop(key, None)
    result[EXPLICIT_KEY] = list(raw[EXPLICIT_KEY])
    return result
