# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Writes a checkpoint folder: config.json beside one safetensors file or several shards."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tensorrt_llm_ext.checkpoints.io import INDEX_NAME, is_plain_name
from tensorrt_llm_ext.errors import CheckpointError

_METADATA = {"format": "pt"}  # transformers refuses files without it


def save_checkpoint(
    folder: str | os.PathLike[str],
    config: Mapping[str, Any],
    tensors: Mapping[str, torch.Tensor],
    *,
    max_shard_bytes: int | None = None,
    extra_json: Mapping[str, Mapping[str, Any]] | None = None,
    overwrite: bool = False,
) -> tuple[Path, ...]:
    """Writes a checkpoint that `open_checkpoint` and transformers read back.

    Args:
        folder: Created if it does not exist.
        config: Content of config.json.
        tensors: Tensors by the names they are to have in the file.
        max_shard_bytes: A new shard begins where this would be exceeded; None writes one file.
        extra_json: Further JSON files, for instance `{"generation_config.json": {...}}`.
        overwrite: Whether weights already in the folder may be replaced.

    Returns:
        The files written.

    Raises:
        CheckpointError: If the folder already holds weights and `overwrite` is False, or a name is
            unusable.
    """
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    old = [p for p in path.iterdir() if p.suffix == ".safetensors" or p.name == INDEX_NAME]
    if old and not overwrite:
        raise CheckpointError(
            f"{path} already holds weights ({old[0].name}). Write to another folder, or pass "
            "overwrite=True."
        )
    documents = {"config.json": config, **(extra_json or {})}
    for name in documents:
        if not is_plain_name(name) or not name.endswith(".json"):
            raise CheckpointError(f"{name!r} is not a plain name of a JSON file.")
    for stale in old:
        stale.unlink()
    shards = _shards(tensors, max_shard_bytes)
    written = []
    for number, names in enumerate(shards, start=1):
        file = path / _shard_name(number, len(shards))
        save_file({name: _owned(tensors[name]) for name in names}, file, metadata=_METADATA)
        written.append(file)
    if len(shards) > 1:
        documents[INDEX_NAME] = _index(tensors, shards)
    for name, document in documents.items():
        text = json.dumps(document, indent=2, sort_keys=False, allow_nan=False)
        (path / name).write_text(text + "\n", encoding="utf-8")
        written.append(path / name)
    # safetensors writes for the owner alone; whoever may read the config may read the weights.
    mode = (path / "config.json").stat().st_mode
    for file in written:
        file.chmod(mode)
    return tuple(written)


def _owned(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous CPU copy where storage is shared or strided, which the format cannot hold."""
    tensor = tensor.detach().cpu()
    shares = tensor.untyped_storage().nbytes() != tensor.numel() * tensor.element_size()
    return tensor.clone(memory_format=torch.contiguous_format) if shares else tensor.contiguous()


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _shards(tensors: Mapping[str, torch.Tensor], limit: int | None) -> list[list[str]]:
    shards: list[list[str]] = [[]]
    used = 0
    for name, tensor in tensors.items():
        size = _bytes(tensor)
        if limit is not None and shards[-1] and used + size > limit:
            shards.append([])
            used = 0
        shards[-1].append(name)
        used += size
    return shards


def _shard_name(number: int, total: int) -> str:
    if total == 1:
        return "model.safetensors"
    return f"model-{number:05d}-of-{total:05d}.safetensors"


def _index(tensors: Mapping[str, torch.Tensor], shards: list[list[str]]) -> dict[str, Any]:
    weight_map = {
        name: _shard_name(number, len(shards))
        for number, names in enumerate(shards, start=1)
        for name in names
    }
    total = sum(_bytes(tensor) for tensor in tensors.values())
    return {"metadata": {"total_size": total}, "weight_map": weight_map}
