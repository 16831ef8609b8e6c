# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Checkpoints of the true size that take no space: real headers over sparse files.

Whatever reads configs, indices and headers cannot tell them from the original; tensors without
given values read as zeros.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from tensorrt_llm_ext.checkpoints.io import INDEX_NAME

# dtype name in the format -> bits of a value, dtype of given values (None: cannot be given)
DTYPES: dict[str, tuple[int, torch.dtype | None]] = {
    "F64": (64, torch.float64),
    "F32": (32, torch.float32),
    "F16": (16, torch.float16),
    "BF16": (16, torch.bfloat16),
    "F8_E4M3": (8, torch.float8_e4m3fn),
    "F8_E5M2": (8, torch.float8_e5m2),
    "F8_E8M0": (8, None),
    "I64": (64, torch.int64),
    "I32": (32, torch.int32),
    "I16": (16, torch.int16),
    "I8": (8, torch.int8),
    "U8": (8, torch.uint8),
    "BOOL": (8, torch.bool),
}
Spec = tuple[str, tuple[int, ...]]


def spec_of(tensor: torch.Tensor) -> Spec:
    """dtype name and shape of a tensor, as they stand in a header."""
    name = next(name for name, (_, dtype) in DTYPES.items() if dtype == tensor.dtype)
    return name, tuple(tensor.shape)


def num_bytes(spec: Spec) -> int:
    """Bytes that a tensor of this dtype and shape takes."""
    return DTYPES[spec[0]][0] * math.prod(spec[1]) // 8


def write_header_only(
    folder: Path,
    config: dict[str, Any],
    tensors: Mapping[str, Spec],
    *,
    values: Mapping[str, torch.Tensor] | None = None,
    extra_json: Mapping[str, dict[str, Any]] | None = None,
    shards: int = 1,
) -> Path:
    """Writes a checkpoint folder whose files have the size of the real ones and hold no data.

    Args:
        folder: Where to; created.
        config: Its config.json.
        tensors: dtype name (as in the format) and shape of each tensor, in the order of the file.
        values: Tensors whose data are written; dtype and shape must be those in `tensors`.
        extra_json: Further documents by file name, for instance hf_quant_config.json.
        shards: Number of files, with an index beside them when there are several.

    Returns:
        The folder.
    """
    values = values or {}
    for name, tensor in values.items():
        if spec_of(tensor) != tensors[name]:
            raise ValueError(f"{name}: the value is {spec_of(tensor)}, declared {tensors[name]}")
    folder.mkdir(parents=True, exist_ok=True)
    for file_name, document in {"config.json": config, **(extra_json or {})}.items():
        text = json.dumps(document, indent=1, sort_keys=True)
        (folder / file_name).write_text(text, encoding="utf-8")
    parts = _parts(tensors, shards)
    if shards == 1:
        write_file(folder / "model.safetensors", tensors, values)
        return folder
    weight_map: dict[str, str] = {}
    for number, names in enumerate(parts, start=1):
        file_name = f"model-{number:05d}-of-{len(parts):05d}.safetensors"
        write_file(folder / file_name, {name: tensors[name] for name in names}, values)
        weight_map |= dict.fromkeys(names, file_name)
    total = sum(num_bytes(spec) for spec in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / INDEX_NAME).write_text(json.dumps(index), encoding="utf-8")
    return folder


def write_file(
    path: Path, tensors: Mapping[str, Spec], values: Mapping[str, torch.Tensor] | None = None
) -> None:
    """Writes one sparse .safetensors file."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, spec in tensors.items():
        end = offset + num_bytes(spec)
        header[name] = {"dtype": spec[0], "shape": spec[1], "data_offsets": (offset, end)}
        offset = end
    blob = json.dumps(header, separators=(",", ":")).encode()
    blob += b" " * (-len(blob) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(blob)))
        file.write(blob)
        file.truncate(8 + len(blob) + offset)
        for name, tensor in (values or {}).items():
            if name in header:
                file.seek(8 + len(blob) + header[name]["data_offsets"][0])
                file.write(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)


def _parts(tensors: Mapping[str, Spec], shards: int) -> list[Sequence[str]]:
    """Splits the names into `shards` runs of about equal bytes; none is empty."""
    names = list(tensors)
    if not 1 <= shards <= len(names):
        raise ValueError(f"{len(names)} tensors cannot fill {shards} shards")
    share = sum(num_bytes(spec) for spec in tensors.values()) / shards
    parts: list[list[str]] = [[]]
    filled = 0
    for position, name in enumerate(names):
        left_to_open = shards - len(parts)
        enough = filled >= share * len(parts) or len(names) - position == left_to_open
        if parts[-1] and left_to_open and enough:
            parts.append([])
        parts[-1].append(name)
        filled += num_bytes(tensors[name])
    return parts
