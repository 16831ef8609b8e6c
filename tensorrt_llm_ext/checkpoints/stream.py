# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Writes a safetensors file from byte ranges of other files, a bounded chunk at a time.

Nothing here knows what a tensor means: a dtype is a name, a value is bytes. So the largest tensor
passes through a few megabytes of memory, and what is written is bit for bit what was read.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

from tensorrt_llm_ext.checkpoints.io import CheckpointFiles
from tensorrt_llm_ext.checkpoints.names import TensorRef
from tensorrt_llm_ext.checkpoints.store import CheckpointStore
from tensorrt_llm_ext.errors import CheckpointError

CHUNK_BYTES: Final = 8 << 20
METADATA: Final[Mapping[str, str]] = {"format": "pt"}  # transformers refuses files without it
_ALIGNMENT: Final = 8

Advance: TypeAlias = Callable[[int], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """Contiguous bytes of one file.

    Attributes:
        store: The checkpoint.
        file: The file's name in it.
        begin: Offset of the first byte.
        end: Offset after the last byte.
    """

    store: CheckpointStore = field(repr=False)
    file: str
    begin: int
    end: int

    def chunks(self) -> Iterator[bytes]:
        """Yields the bytes in order."""
        for begin in range(self.begin, self.end, CHUNK_BYTES):
            yield self.store.read(self.file, begin, min(begin + CHUNK_BYTES, self.end))


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """Some rows of a span, in ascending order.

    Attributes:
        span: All rows.
        row_bytes: Size of one.
        rows: Which ones, ascending.
    """

    span: Span
    row_bytes: int
    rows: Sequence[int] = field(repr=False)

    def chunks(self) -> Iterator[bytes]:
        """Yields the bytes in order; neighbouring rows are read at once, gaps included.

        A pruned head keeps every fifth row or so: many small reads would cost more than reading
        through.
        """
        size = self.row_bytes
        if size == 0:
            return
        most = max(1, CHUNK_BYTES // size)
        start = 0
        while start < len(self.rows):
            first = self.rows[start]
            stop = start
            while stop < len(self.rows) and self.rows[stop] < first + most:
                stop += 1
            offset = self.span.begin + first * size
            length = (self.rows[stop - 1] + 1 - first) * size
            block = memoryview(self.span.store.read(self.span.file, offset, offset + length))
            kept = (row - first for row in self.rows[start:stop])
            yield b"".join(block[row * size : (row + 1) * size] for row in kept)
            start = stop


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes in memory: small tensors that are computed."""

    data: bytes = field(repr=False)

    def chunks(self) -> Iterator[bytes]:
        """Yields the bytes."""
        yield self.data


Data: TypeAlias = "Span | Rows | Held"


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamTensor:
    """A tensor to be written.

    Attributes:
        name: Its name in the new file.
        dtype: As in the format, for instance "BF16".
        shape: Its shape.
        nbytes: Size of its data.
        data: Where its bytes come from.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    data: Data

    @property
    def row_bytes(self) -> int:
        """Size of one row (dimension 0); 0 when there are no rows."""
        rows = self.shape[0] if self.shape else 1
        if rows and self.nbytes % rows:
            raise CheckpointError(
                f"Rows of tensor {self.name!r} ({self.dtype} {list(self.shape)}) end inside a byte."
            )
        return self.nbytes // rows if rows else 0


def stored_tensor(name: str, files: CheckpointFiles, ref: TensorRef) -> StreamTensor:
    """Returns the tensor that a reference names, to be written under another name.

    Args:
        name: The name it is to have.
        files: The checkpoint.
        ref: A tensor of it, or a range of its rows.
    """
    entry = files.entries[ref.name]
    end = entry.begin + entry.nbytes
    span = Span(store=files.store, file=entry.name, begin=entry.begin, end=end)
    whole = StreamTensor(
        name=name, dtype=entry.dtype, shape=entry.shape, nbytes=entry.nbytes, data=span
    )
    if ref.rows is None:
        return whole
    first, last = ref.rows
    size = whole.row_bytes
    begin = span.begin + first * size
    part = Span(store=span.store, file=span.file, begin=begin, end=begin + (last - first) * size)
    return dataclasses.replace(
        whole,
        shape=(last - first, *entry.shape[1:]),
        nbytes=part.end - part.begin,
        data=part,
    )


def select_rows(tensor: StreamTensor, rows: Sequence[int]) -> StreamTensor:
    """Returns a stored tensor with some of its rows only.

    Args:
        tensor: [R, ...].
        rows: Ascending row numbers below R.
    """
    if not isinstance(tensor.data, Span):
        raise TypeError("rows are selected from stored tensors, once")
    size = tensor.row_bytes
    return dataclasses.replace(
        tensor,
        shape=(len(rows), *tensor.shape[1:]),
        nbytes=size * len(rows),
        data=Rows(span=tensor.data, row_bytes=size, rows=rows),
    )


def digest(tensor: StreamTensor, advance: Advance | None = None) -> str:
    """Returns the SHA-256 of a tensor's bytes, read in chunks."""
    sha = hashlib.sha256()
    for chunk in tensor.data.chunks():
        sha.update(chunk)
        if advance is not None:
            advance(len(chunk))
    return sha.hexdigest()


def write_safetensors(
    path: Path, tensors: Sequence[StreamTensor], *, advance: Advance | None = None
) -> dict[str, str]:
    """Writes a safetensors file; the same tensors give the same bytes, whatever their order.

    Args:
        path: The new file.
        tensors: What it is to hold.
        advance: Called with the number of bytes after each chunk.

    Returns:
        SHA-256 of each tensor's bytes, by name.

    Raises:
        CheckpointError: If a name occurs twice, a source ends early, or the disk refuses.
    """
    ordered = sorted(tensors, key=_file_order)
    digests: dict[str, str] = {}
    try:
        with path.open("xb") as file:
            file.write(_header(ordered))
            for tensor in ordered:
                sha, written = hashlib.sha256(), 0
                for chunk in tensor.data.chunks():
                    file.write(chunk)
                    sha.update(chunk)
                    written += len(chunk)
                    if advance is not None:
                        advance(len(chunk))
                if written != tensor.nbytes:
                    raise CheckpointError(
                        f"Tensor {tensor.name!r} gave {written} bytes, its shape needs "
                        f"{tensor.nbytes}. The source changed while it was read."
                    )
                digests[tensor.name] = sha.hexdigest()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written: {error}.") from None
    return digests


def _file_order(tensor: StreamTensor) -> tuple[int, str]:
    """Wide dtypes first, so that every tensor is aligned, then by name, as the format does."""
    return -(tensor.nbytes // max(1, math.prod(tensor.shape))), tensor.name


def _header(ordered: Sequence[StreamTensor]) -> bytes:
    header: dict[str, object] = {"__metadata__": dict(METADATA)}
    offset = 0
    for tensor in ordered:
        if tensor.name in header:
            raise CheckpointError(f"Two tensors are to be written as {tensor.name!r}.")
        end = offset + tensor.nbytes
        header[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return struct.pack("<Q", len(text)) + text
