# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Where a checkpoint's files come from: a folder, or a repository of the hub; free of torch.

A store lists files and reads byte ranges of them, no more. Everything above it works on both kinds,
so a draft can be judged from headers and a few rows before any of its weights are downloaded.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Protocol, TypeVar

from tensorrt_llm_ext.errors import CheckpointError

HUB_SCHEME: Final = "hf://"
_REMOTE_THREADS: Final = 8  # requests in flight; latency dominates, not bandwidth
_MAX_NAME: Final = 255  # of any file system
_REPOSITORY: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9_][\w.-]*", re.ASCII)

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class CheckpointStore(Protocol):
    """Files of one checkpoint, read by ranges.

    Attributes:
        label: The folder, or "org/name@revision", for messages.
        folder: The folder, links resolved; None when the files are on another machine.
    """

    @property
    def label(self) -> str:
        """The folder, or "org/name@revision", for messages."""
        ...

    @property
    def folder(self) -> Path | None:
        """The folder, links resolved; None when the files are on another machine."""
        ...

    def names(self) -> tuple[str, ...]:
        """Every file as a posix path relative to the root, sorted."""
        ...

    def size(self, name: str) -> int:
        """Size of a file in bytes; CheckpointError when it is absent or unsafe."""
        ...

    def read(self, name: str, begin: int, end: int) -> bytes:
        """Exactly the bytes [begin, end) of a file; CheckpointError when there are fewer."""
        ...


class FolderStore:
    """A checkpoint in a folder of this machine.

    Args:
        path: The folder; it may be a link, its files may not lead out of it (`safe_file`).

    Raises:
        CheckpointError: If there is no such folder.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.folder: Path = checkpoint_folder(path)
        self.label: str = str(self.folder)

    def __repr__(self) -> str:
        return f"FolderStore({self.label!r})"

    def names(self) -> tuple[str, ...]:
        """Every file as a posix path relative to the folder, sorted; linked folders not entered."""
        found: list[str] = []
        for root, _, files in os.walk(self.folder):
            prefix = Path(root).relative_to(self.folder)
            found.extend((prefix / name).as_posix() for name in files)
        return tuple(sorted(found))

    def size(self, name: str) -> int:
        """Size of a file in bytes; CheckpointError when it is absent or unsafe."""
        return safe_file(self.folder, name).stat().st_size

    def read(self, name: str, begin: int, end: int) -> bytes:
        """Exactly the bytes [begin, end) of a file.

        Raises:
            CheckpointError: If the file is absent, unsafe, unreadable or shorter than `end`.
        """
        path = safe_file(self.folder, name)
        check_range(path, begin, end, path.stat().st_size)
        return read_range(path, begin, end)


def check_range(where: object, begin: int, end: int, size: int) -> None:
    """Raises CheckpointError unless [begin, end) lies within a file of `size` bytes."""
    if not 0 <= begin <= end <= size:
        raise CheckpointError(
            f"{where} has {size} bytes; bytes {begin} to {end} are not all in it. The file is "
            "truncated. Download it again."
        )


def read_range(path: Path, begin: int, end: int) -> bytes:
    """Reads bytes [begin, end) of a file whose path was checked; CheckpointError when it cannot."""
    try:
        with path.open("rb") as file:
            file.seek(begin)
            data = file.read(end - begin)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error}). Is it complete?") from None
    if len(data) != end - begin:
        raise CheckpointError(f"{path} became shorter while it was read. Is it being written to?")
    return data


def open_store(
    ref: str | os.PathLike[str] | CheckpointStore, *, revision: str | None = None
) -> CheckpointStore:
    """Returns the files that `ref` names.

    Args:
        ref: A folder; or a repository of the hub as "org/name" (when no such folder exists) or
            "hf://org/name[@revision]". A store is returned as it is. The hub is the one that
            HF_ENDPOINT names.
        revision: Branch, tag or commit of a repository; a folder has none.

    Raises:
        CheckpointError: If there is neither a folder nor a repository that can be read, or
            `revision` is given for a folder.
    """
    if not isinstance(ref, str | os.PathLike):
        return ref
    text = os.fspath(ref)
    if not text:
        raise CheckpointError("'' is not a folder. Give a folder, or org/name of the hub.")
    if not text.startswith(HUB_SCHEME) and os.path.isdir(text):
        if revision is not None:
            raise CheckpointError(
                f"{text} is a folder, which has no revision {revision!r}. Leave the revision out, "
                f"or write {HUB_SCHEME}{text} for the repository of that name."
            )
        return FolderStore(text)
    from tensorrt_llm_ext.checkpoints.hub import HubStore

    if text.startswith(HUB_SCHEME):
        repository, _, given = text[len(HUB_SCHEME) :].partition("@")
        if not is_repository(repository) or (given and revision not in (None, given)):
            raise CheckpointError(
                f"{text!r} (revision {revision!r}) is no repository of the hub; expected "
                f"{HUB_SCHEME}org/name or {HUB_SCHEME}org/name@revision, with one revision."
            )
        return HubStore(repository, revision=given or revision)
    if not is_repository(text):
        return FolderStore(text)  # raises: there is no such folder
    try:
        return HubStore(text, revision=revision)
    except CheckpointError as error:
        raise CheckpointError(
            f"{text} is not a folder of this machine, so the hub was asked: {error}"
        ) from None


def is_repository(text: str) -> bool:
    """Whether `text` has the form "org/name"."""
    return _REPOSITORY.fullmatch(text) is not None and ".." not in text and "--" not in text


def map_files(
    store: CheckpointStore, function: Callable[[_Item], _Result], items: Iterable[_Item]
) -> list[_Result]:
    """Returns `function` of each item, in order; in a few threads when the files are remote."""
    todo = list(items)
    if store.folder is not None or len(todo) < 2:
        return [function(item) for item in todo]
    with ThreadPoolExecutor(max_workers=min(_REMOTE_THREADS, len(todo))) as pool:
        futures = [pool.submit(function, item) for item in todo]
        try:
            return [future.result() for future in futures]
        finally:  # after an error the rest would only be thrown away
            for future in futures:
                future.cancel()


def checkpoint_folder(path: str | os.PathLike[str]) -> Path:
    """Returns the folder with links resolved; CheckpointError when there is none."""
    folder = Path(path)
    if not folder.is_dir():
        raise CheckpointError(
            f"{folder} is not a folder. Give the folder of a checkpoint on this machine; fetch one "
            "from the hub with `hf download <name> --local-dir <folder>`."
        )
    return folder.resolve()


def shorten(value: object) -> str:
    """Repr of something hostile, for a message: ASCII, and not much of it."""
    text = ascii(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def is_plain_name(name: str) -> bool:
    """Whether `name` names a file in its folder and nothing else, on any system and terminal."""
    unsafe = any(c in name for c in "/\\:") or name in ("", ".", "..")
    printable = name.isprintable() and len(name) <= _MAX_NAME
    return not unsafe and printable and name == os.path.basename(name)


def safe_file(folder: Path, name: str) -> Path:
    """Returns the path of a file of the folder, links resolved.

    Args:
        folder: The folder, links resolved.
        name: Plain file name, or plain names joined by "/".

    Raises:
        CheckpointError: If the file does not exist, or lies outside the folder and is no blob of
            the hub cache that the folder belongs to.
    """
    parts = name.split("/")
    if not all(map(is_plain_name, parts)):
        raise CheckpointError(f"{shorten(name)} is not a plain file name inside {folder}.")
    path = folder / name
    try:
        real = path.resolve(strict=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}). Is it complete?") from None
    if not real.is_file():
        raise CheckpointError(f"{path} is not a file.")
    inside = real.parent == folder if len(parts) == 1 else real.is_relative_to(folder)
    if inside or (_blobs(folder) is not None and real.parent == _blobs(folder)):
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
