# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Checkpoint files, read with suspicion: paths, JSON and safetensors headers; free of torch.

A checkpoint comes from strangers. Only safetensors are read; whatever unpickles is never opened.
Every file must lie in the folder, links included, except in a hub cache, whose snapshots link to
blobs beside them. Sizes are bounded before anything is parsed. Where the files lie is the business
of `checkpoints.store`, what a header may say that of `checkpoints.headers`.
"""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from tensorrt_llm_ext.checkpoints.headers import (
    MAX_HEADER_BYTES,
    TensorEntry,
    parse_header,
    parse_json,
)
from tensorrt_llm_ext.checkpoints.store import (
    CheckpointStore,
    FolderStore,
    checkpoint_folder,
    is_plain_name,
    map_files,
    open_store,
    read_range,
    safe_file,
    shorten,
)
from tensorrt_llm_ext.errors import CheckpointError

__all__ = [
    "INDEX_NAME",
    "MAX_CONFIG_BYTES",
    "MAX_HEADER_BYTES",
    "MAX_INDEX_BYTES",
    "CheckpointFiles",
    "TensorEntry",
    "checkpoint_folder",
    "has_file",
    "is_plain_name",
    "open_checkpoint",
    "parse_json",
    "read_header",
    "read_index",
    "read_json",
    "safe_file",
]

MAX_CONFIG_BYTES: Final = 16 << 20
MAX_INDEX_BYTES: Final = 256 << 20  # one of 208,550 tensors takes 20 MB

INDEX_NAME: Final = "model.safetensors.index.json"
_SHARD: Final = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<total>\d{5})\.safetensors")
_PICKLES: Final = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")

Ref: TypeAlias = str | os.PathLike[str] | CheckpointStore


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointFiles:
    """A checkpoint's tensors by file name, from headers alone.

    Attributes:
        folder: The checkpoint's folder, links resolved; the store's label as a path when remote.
        entries: Every tensor of every shard.
        extra_files: safetensors files of the folder that its index does not mention.
        store: Where the files are read from.
    """

    folder: Path
    entries: Mapping[str, TensorEntry] = field(repr=False)
    extra_files: tuple[str, ...] = ()
    store: CheckpointStore

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every tensor."""
        return {name: entry.shape for name, entry in self.entries.items()}


def open_checkpoint(ref: Ref) -> CheckpointFiles:
    """Reads the headers of a checkpoint, sharded or not, and nothing of its weights.

    Args:
        ref: A folder, one .safetensors file, a repository of the hub (see `open_store`) or a store.

    Raises:
        CheckpointError: If there is no such checkpoint, it has no safetensors, misses a shard,
            holds a tensor twice, or contains anything unsafe; the message says what to do.
    """
    if isinstance(ref, str | os.PathLike) and os.path.isfile(ref):
        given = Path(ref)
        if given.suffix != ".safetensors":
            raise _not_safetensors(str(given.parent), [given.name])
        store: CheckpointStore = FolderStore(given.parent)
        shards = _Shards([given.name])
    else:
        store = open_store(ref)
        shards = _shards(store)
    with _collector_paused():
        entries = _read_entries(store, shards.names)
        if shards.listed is not None:
            _check_index(store.label, shards.listed, entries)
    return CheckpointFiles(
        folder=store.folder or Path(store.label),
        entries=entries,
        extra_files=shards.extra,
        store=store,
    )


def _read_entries(store: CheckpointStore, names: list[str]) -> dict[str, TensorEntry]:
    """The tensors of several files; CheckpointError when one is in two of them."""
    entries: dict[str, TensorEntry] = {}
    headers = map_files(store, lambda name: _read_header(store, name), names)
    for name, header in zip(names, headers, strict=True):
        if not entries.keys().isdisjoint(header):
            tensor = next(tensor for tensor in header if tensor in entries)
            raise CheckpointError(
                f"{store.label}: tensor {tensor!r} is in two files, {entries[tensor].name} and "
                f"{name}. Remove the file that does not belong to the checkpoint."
            )
        entries.update(header)
    return entries


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Keeps the cycle collector from walking 280,000 new entries, which have no cycles."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _Shards(NamedTuple):
    """File names of the shards; what the index lists, if there is one; files it leaves out."""

    names: list[str]
    listed: dict[str, str] | None = None
    extra: tuple[str, ...] = ()


def _shards(store: CheckpointStore) -> _Shards:
    names = _root_names(store)
    present = [name for name in names if name.endswith(".safetensors")]
    if INDEX_NAME in names:
        index = read_index(store)
        listed = sorted(set(index.values()))
        have = set(present)
        missing = [name for name in listed if name not in have or _dangles(store, name)]
        if missing:
            raise _missing_shards(store.label, missing, len(listed))
        return _Shards(listed, index, tuple(sorted(set(present) - set(listed))))
    if not present:
        raise _not_safetensors(store.label, names)
    have = set(present)
    for stem, total in sorted({part for name in present if (part := _set_of(name))}):
        wanted = (f"{stem}-{i:05d}-of-{total:05d}.safetensors" for i in range(1, total + 1))
        missing = [name for name in wanted if name not in have]
        if missing:
            raise _missing_shards(store.label, missing, total)
    return _Shards(present)


def _set_of(name: str) -> tuple[str, int] | None:
    """Stem and number of the shards that a file is one of, by its name."""
    match = _SHARD.fullmatch(name)
    return None if match is None else (match["stem"], int(match["total"]))


def _root_names(store: CheckpointStore) -> list[str]:
    """Names of the files that lie in the root itself, sorted."""
    if store.folder is not None:
        return sorted(os.listdir(store.folder))
    return [name for name in store.names() if "/" not in name]


def _dangles(store: CheckpointStore, name: str) -> bool:
    return store.folder is not None and not (store.folder / name).exists()


def _missing_shards(label: str, missing: list[str], total: int) -> CheckpointError:
    shown = ", ".join(missing[:4]) + (", ..." if len(missing) > 4 else "")
    return CheckpointError(
        f"{label}: {len(missing)} of {total} shards are missing: {shown}. The download is "
        "incomplete; run it again."
    )


def _not_safetensors(label: str, names: list[str]) -> CheckpointError:
    pickles = sorted(name for name in names if name.endswith(_PICKLES))
    if pickles:
        return CheckpointError(
            f"{label} holds pickled weights ({', '.join(pickles[:4])}), which can run code when "
            "opened and are never read. Convert them to safetensors first, on a machine that you "
            "would trust with that code."
        )
    return CheckpointError(
        f"{label} holds no .safetensors file. Give the folder of a checkpoint in Hugging Face "
        "layout (config.json beside model.safetensors or its shards)."
    )


def read_index(ref: Ref) -> dict[str, str]:
    """Returns tensor -> shard of model.safetensors.index.json, entries checked.

    Raises:
        CheckpointError: If the file is malformed, or an entry is not a plain file name.
    """
    store = open_store(ref)
    where = f"{store.label}/{INDEX_NAME}"
    index = parse_json(_read_all(store, INDEX_NAME, MAX_INDEX_BYTES), where, strict=True)
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(
            f"{where} has no weight_map with tensors. The download is damaged; run it again."
        )
    good: set[str] = set()  # a few names, listed 100,000 times
    for tensor, name in weight_map.items():
        if isinstance(name, str) and name in good:
            continue
        if not isinstance(name, str) or not is_plain_name(name):
            raise CheckpointError(
                f"{where} puts {shorten(tensor)} into {shorten(name)}, which is not a plain file "
                "name inside the folder. Do not use this checkpoint: it points at other files."
            )
        if not name.endswith(".safetensors"):
            raise CheckpointError(
                f"{where} puts {shorten(tensor)} into {shorten(name)}, which is not a .safetensors "
                "file. Only safetensors are read."
            )
        good.add(name)
    return weight_map


def has_file(ref: Ref, name: str) -> bool:
    """Whether the checkpoint has a file or link of this name, which may still be unsafe to read."""
    store = open_store(ref)
    if store.folder is not None:
        return os.path.lexists(store.folder / name)
    return name in store.names()


def read_json(ref: Ref, name: str, *, max_bytes: int = MAX_CONFIG_BYTES) -> dict[str, Any]:
    """Reads a JSON object of a checkpoint.

    Raises:
        CheckpointError: If the file is missing, too large, or not a JSON object.
    """
    store = open_store(ref)
    return parse_json(_read_all(store, name, max_bytes), f"{store.label}/{name}")


def _read_all(store: CheckpointStore, name: str, max_bytes: int) -> bytes:
    size = store.size(name)
    if size > max_bytes:
        raise CheckpointError(
            f"{store.label}/{name} has {size} bytes, more than the {max_bytes} that such a file "
            "may have. It is not what its name says."
        )
    return store.read(name, 0, size)


def read_header(path: Path) -> dict[str, TensorEntry]:
    """Reads the header of a safetensors file, without its data; the path is taken as it is.

    Raises:
        CheckpointError: If the header is too large or malformed, or the file is truncated.
    """
    return parse_header(
        lambda begin, end: read_range(path, begin, end),
        path.stat().st_size,
        where=path,
        file=path,
        name=path.name,
        max_bytes=MAX_HEADER_BYTES,
    )


def _read_header(store: CheckpointStore, name: str) -> dict[str, TensorEntry]:
    """The header of one file of a store."""
    return parse_header(
        lambda begin, end: store.read(name, begin, end),
        store.size(name),
        where=f"{store.label}/{name}",
        file=Path(name) if store.folder is None else safe_file(store.folder, name),
        name=name,
        max_bytes=MAX_HEADER_BYTES,
    )


def _check_index(label: str, index: dict[str, str], entries: Mapping[str, TensorEntry]) -> None:
    """Refuses an index that disagrees with the headers of its shards."""
    for names, others, problem in (
        (index.keys(), entries.keys(), "are listed in the index but in no shard"),
        (entries.keys(), index.keys(), "are in a shard but not listed in the index"),
    ):
        alone = [name for name in names if name not in others] if names != others else []
        if alone:
            raise CheckpointError(
                f"{label}: {len(alone)} tensors {problem}, for instance {shorten(alone[0])}. Index "
                "and shards belong to different versions; download both again."
            )
    moved = next((name for name in index if entries[name].stored_in != index[name]), None)
    if moved is not None:
        raise CheckpointError(
            f"{label}: the index puts {moved!r} into {index[moved]}, but it is in "
            f"{entries[moved].name}. Index and shards belong to different versions."
        )
