# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Checkpoint files, read with suspicion: paths, JSON and safetensors headers; free of torch.

A checkpoint comes from strangers. Only safetensors are read; whatever unpickles is never opened.
Every file must lie in the folder, links included, except in a hub cache, whose snapshots link to
blobs beside them. Sizes are bounded before anything is parsed.
"""

from __future__ import annotations

import json
import math
import os
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from tensorrt_llm_ext.errors import CheckpointError

MAX_CONFIG_BYTES: Final = 16 << 20
MAX_INDEX_BYTES: Final = 256 << 20  # one of 208,550 tensors takes 20 MB
MAX_HEADER_BYTES: Final = 100_000_000  # the format's own limit

INDEX_NAME: Final = "model.safetensors.index.json"
_SHARD: Final = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<total>\d{5})\.safetensors")
_PICKLES: Final = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
_DTYPE_BITS: Final[Mapping[str, int]] = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
    **{"F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6},
}


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor of a safetensors file: its file, dtype name (as in the format) and shape."""

    file: Path
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointFiles:
    """A checkpoint's tensors by file name, from headers alone.

    Attributes:
        folder: The checkpoint's folder, links resolved.
        entries: Every tensor of every shard.
        extra_files: safetensors files of the folder that its index does not mention.
    """

    folder: Path
    entries: Mapping[str, TensorEntry] = field(repr=False)
    extra_files: tuple[str, ...] = ()

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every tensor."""
        return {name: entry.shape for name, entry in self.entries.items()}


def open_checkpoint(path: str | os.PathLike[str]) -> CheckpointFiles:
    """Reads the headers of a checkpoint: a folder (sharded or not) or one .safetensors file.

    Raises:
        CheckpointError: If the path does not exist, has no safetensors, misses a shard, holds a
            tensor twice, or contains anything unsafe; the message says what to do.
    """
    given = Path(path)
    if given.is_file():
        if given.suffix != ".safetensors":
            raise _not_safetensors(given.parent, [given.name])
        folder = given.parent.resolve()
        names, index, extra = _Shards([given.name])
        safe_file(folder, given.name)
    else:
        folder = checkpoint_folder(given)
        names, index, extra = _shards(folder)
    entries: dict[str, TensorEntry] = {}
    for name in names:
        for tensor, entry in read_header(safe_file(folder, name)).items():
            if tensor in entries:
                raise CheckpointError(
                    f"{folder}: tensor {tensor!r} is in two files, {entries[tensor].file.name} and "
                    f"{name}. Remove the file that does not belong to the checkpoint."
                )
            entries[tensor] = entry
    if index is not None:
        _check_index(folder, index, entries)
    return CheckpointFiles(folder=folder, entries=entries, extra_files=extra)


def checkpoint_folder(path: str | os.PathLike[str]) -> Path:
    """Returns the folder with links resolved; CheckpointError when there is none."""
    folder = Path(path)
    if not folder.is_dir():
        raise CheckpointError(
            f"{folder} is not a folder. Give the folder of a checkpoint on this machine; fetch one "
            "from the hub with `hf download <name> --local-dir <folder>`."
        )
    return folder.resolve()


class _Shards(NamedTuple):
    """File names of the shards; what the index lists, if there is one; files it leaves out."""

    names: list[str]
    listed: dict[str, str] | None = None
    extra: tuple[str, ...] = ()


def _shards(folder: Path) -> _Shards:
    present = sorted(p.name for p in folder.iterdir() if p.name.endswith(".safetensors"))
    if (folder / INDEX_NAME).exists() or (folder / INDEX_NAME).is_symlink():
        index = read_index(folder)
        names = sorted(set(index.values()))
        missing = [name for name in names if not (folder / name).exists()]
        if missing:
            raise _missing_shards(folder, missing, len(names))
        return _Shards(names, index, tuple(sorted(set(present) - set(names))))
    if not present:
        raise _not_safetensors(folder, [p.name for p in folder.iterdir()])
    for name in present:
        match = _SHARD.fullmatch(name)
        if match is not None:
            total = int(match["total"])
            wanted = [
                f"{match['stem']}-{i:05d}-of-{total:05d}.safetensors" for i in range(1, total + 1)
            ]
            missing = [w for w in wanted if w not in present]
            if missing:
                raise _missing_shards(folder, missing, total)
    return _Shards(present)


def _missing_shards(folder: Path, missing: list[str], total: int) -> CheckpointError:
    shown = ", ".join(missing[:4]) + (", ..." if len(missing) > 4 else "")
    return CheckpointError(
        f"{folder}: {len(missing)} of {total} shards are missing: {shown}. The download is "
        "incomplete; run it again."
    )


def _not_safetensors(folder: Path, names: list[str]) -> CheckpointError:
    pickles = sorted(name for name in names if name.endswith(_PICKLES))
    if pickles:
        return CheckpointError(
            f"{folder} holds pickled weights ({', '.join(pickles[:4])}), which can run code when "
            "opened and are never read. Convert them to safetensors first, on a machine that you "
            "would trust with that code."
        )
    return CheckpointError(
        f"{folder} holds no .safetensors file. Give the folder of a checkpoint in Hugging Face "
        "layout (config.json beside model.safetensors or its shards)."
    )


def read_index(folder: Path) -> dict[str, str]:
    """Returns tensor -> shard of model.safetensors.index.json, entries checked.

    Raises:
        CheckpointError: If the file is malformed, or an entry is not a plain file name.
    """
    index = read_json(folder, INDEX_NAME, max_bytes=MAX_INDEX_BYTES)
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(
            f"{folder / INDEX_NAME} has no weight_map with tensors. The download is damaged; run "
            "it again."
        )
    for tensor, name in weight_map.items():
        if not isinstance(name, str) or not is_plain_name(name):
            raise CheckpointError(
                f"{folder / INDEX_NAME} puts {tensor!r} into {name!r}, which is not a plain file "
                "name inside the folder. Do not use this checkpoint: it points at other files."
            )
        if not name.endswith(".safetensors"):
            raise CheckpointError(
                f"{folder / INDEX_NAME} puts {tensor!r} into {name!r}, which is not a .safetensors "
                "file. Only safetensors are read."
            )
    return weight_map


def is_plain_name(name: str) -> bool:
    """Whether `name` names a file in its folder and nothing else, on any system."""
    unsafe = any(c in name for c in "/\\:\0") or name in ("", ".", "..")
    return not unsafe and name == os.path.basename(name)


def safe_file(folder: Path, name: str) -> Path:
    """Returns the path of a file of the folder, links resolved.

    Raises:
        CheckpointError: If the file does not exist, or lies outside the folder and is no blob of
            the hub cache that the folder belongs to.
    """
    if not is_plain_name(name):
        raise CheckpointError(f"{name!r} is not a plain file name inside {folder}.")
    path = folder / name
    try:
        real = path.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}). Is it complete?") from None
    if not real.is_file():
        raise CheckpointError(f"{path} is not a file.")
    if real.parent == folder or (_blobs(folder) is not None and real.parent == _blobs(folder)):
        return real
    raise CheckpointError(
        f"{path} is a link to {real}, outside the checkpoint's folder. Only a hub cache may link "
        "(snapshots to blobs). Copy the file into the folder if it belongs there."
    )


def _blobs(folder: Path) -> Path | None:
    """The blobs folder of the hub cache that `folder` is a snapshot of, if it is one."""
    snapshots = folder.parent
    if snapshots.name != "snapshots":
        return None
    blobs = snapshots.parent / "blobs"
    return blobs.resolve() if blobs.is_dir() else None


def read_json(folder: Path, name: str, *, max_bytes: int = MAX_CONFIG_BYTES) -> dict[str, Any]:
    """Reads a JSON object of the folder.

    Raises:
        CheckpointError: If the file is missing, too large, or not a JSON object.
    """
    path = safe_file(folder, name)
    size = path.stat().st_size
    if size > max_bytes:
        raise CheckpointError(
            f"{folder / name} has {size} bytes, more than the {max_bytes} that such a file may "
            "have. It is not what its name says."
        )
    return parse_json(path.read_bytes(), folder / name)


def parse_json(data: bytes, where: object) -> dict[str, Any]:
    """Parses a JSON object; CheckpointError when it is anything else."""
    try:
        value = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{where} is not valid JSON: {error}.") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{where} must hold a JSON object, got {type(value).__name__}.")
    return value


def read_header(path: Path) -> dict[str, TensorEntry]:
    """Reads the header of a safetensors file, without its data.

    Raises:
        CheckpointError: If the header is too large or malformed, or the file is truncated.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
        if length > MAX_HEADER_BYTES:
            raise CheckpointError(
                f"{path} declares a header of {length} bytes, more than {MAX_HEADER_BYTES}. It is "
                "damaged, or no safetensors file."
            )
        if not 2 <= length <= size - 8:
            raise CheckpointError(
                f"{path} ({size} bytes) is truncated, or no safetensors file. Download it again."
            )
        header = parse_json(file.read(length), f"the header of {path}")
    header.pop("__metadata__", None)
    entries = {name: _entry(path, name, value) for name, value in header.items()}
    end = max((value["data_offsets"][1] for value in header.values()), default=0)
    if 8 + length + end > size:
        raise CheckpointError(
            f"{path} has {size} bytes, but its header needs {8 + length + end}: the file is "
            "truncated. Download it again."
        )
    return entries


def _entry(path: Path, name: str, value: Any) -> TensorEntry:
    valid = (
        isinstance(value, dict)
        and isinstance(value.get("dtype"), str)
        and _is_sizes(value.get("shape"))
        and _is_sizes(value.get("data_offsets"))
        and len(value["data_offsets"]) == 2
    )
    if not valid:
        raise CheckpointError(f"{path}: the header entry of {name!r} is malformed: {value!r}.")
    begin, end = value["data_offsets"]
    bits = _DTYPE_BITS.get(value["dtype"])
    if begin > end or (bits is not None and (end - begin) * 8 != bits * math.prod(value["shape"])):
        raise CheckpointError(
            f"{path}: tensor {name!r} of shape {value['shape']} and dtype {value['dtype']} does "
            f"not fill its {end - begin} bytes. The file is damaged."
        )
    return TensorEntry(path, value["dtype"], tuple(value["shape"]))


def _is_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _check_index(folder: Path, index: dict[str, str], entries: Mapping[str, TensorEntry]) -> None:
    """Refuses an index that disagrees with the headers of its shards."""
    absent = [name for name in index if name not in entries]
    unlisted = [name for name in entries if name not in index]
    for names, problem in (
        (absent, "are listed in the index but in no shard"),
        (unlisted, "are in a shard but not listed in the index"),
    ):
        if names:
            raise CheckpointError(
                f"{folder}: {len(names)} tensors {problem}, for instance {names[0]!r}. Index and "
                "shards belong to different versions; download both again."
            )
    files = {name: safe_file(folder, name) for name in set(index.values())}
    moved = next((name for name in index if entries[name].file != files[index[name]]), None)
    if moved is not None:
        raise CheckpointError(
            f"{folder}: the index puts {moved!r} into {index[moved]}, but it is in "
            f"{entries[moved].file.name}. Index and shards belong to different versions."
        )
