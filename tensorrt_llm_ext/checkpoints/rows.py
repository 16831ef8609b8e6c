# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Small tensors and single rows of large ones, read by their offset in the file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import Final

import torch

from tensorrt_llm_ext.checkpoints.headers import DTYPE_BITS, TensorEntry
from tensorrt_llm_ext.checkpoints.io import CheckpointFiles
from tensorrt_llm_ext.checkpoints.store import map_files
from tensorrt_llm_ext.errors import CheckpointError, UnsupportedError, nearest

MAX_SMALL_BYTES: Final = 1 << 20
MAX_ROWS_BYTES: Final = 64 << 20  # a sample, not a way to load a model
_TORCH_NAMES: Final = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
    "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2": "float8_e5m2",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
}


def read_tensor(files: CheckpointFiles, name: str, *, allow_large: bool = False) -> torch.Tensor:
    """Reads one tensor.

    Args:
        files: The checkpoint.
        name: Stored name.
        allow_large: Read more than `MAX_SMALL_BYTES` too; a hub keeps its own limit.

    Returns:
        The tensor on the CPU, in the dtype that it is stored in.

    Raises:
        CheckpointError: If there is no such tensor, it is large, or its file cannot be read.
        UnsupportedError: If the installed torch lacks its dtype.
    """
    entry = _entry(files, name)
    dtype = torch_dtype(entry.dtype)
    if entry.nbytes > MAX_SMALL_BYTES and not allow_large:
        raise CheckpointError(
            f"Tensor {name!r} of {files.store.label} has {entry.nbytes} bytes, more than the "
            f"{MAX_SMALL_BYTES} that a small tensor may have. The checkpoint is not what its "
            "config says, or the caller should read rows."
        )
    data = files.store.read(entry.name, entry.begin, entry.begin + entry.nbytes)
    return _decode(data, dtype, entry.shape)


def read_rows(files: CheckpointFiles, name: str, rows: Sequence[int]) -> torch.Tensor:
    """Reads rows (dim 0) of a tensor without reading the rest; adjacent rows in one go.

    Args:
        files: The checkpoint.
        name: Stored name.
        rows: Row numbers in any order, repeated or not; none is negative.

    Returns:
        A tensor of shape (len(rows), *shape[1:]) on the CPU, in the dtype that it is stored in.

    Raises:
        CheckpointError: If there is no such tensor or row, the rows take more than
            `MAX_ROWS_BYTES`, or the file cannot be read.
        UnsupportedError: If the installed torch lacks the dtype.
    """
    entry = _entry(files, name)
    dtype = torch_dtype(entry.dtype)
    count = entry.shape[0] if entry.shape else 0
    wrong = next((row for row in rows if not 0 <= row < count), None)
    if wrong is not None:
        raise CheckpointError(
            f"Tensor {name!r} of {files.store.label} has no row {wrong}: its shape is "
            f"{list(entry.shape)}."
        )
    shape = entry.shape[1:]
    row_bytes = math.prod(shape) * DTYPE_BITS[entry.dtype] // 8
    wanted = sorted(set(rows))
    if row_bytes * len(wanted) > MAX_ROWS_BYTES:
        raise CheckpointError(
            f"{len(wanted)} rows of tensor {name!r} of {files.store.label} take "
            f"{row_bytes * len(wanted)} bytes, more than the {MAX_ROWS_BYTES} that are read at "
            "once. Ask for fewer rows."
        )

    def read(run: tuple[int, int]) -> bytes:
        first, last = (entry.begin + row * row_bytes for row in run)
        return files.store.read(entry.name, first, last)

    data = b"".join(map_files(files.store, read, _runs(wanted)))
    if list(rows) != wanted:
        place = {row: index * row_bytes for index, row in enumerate(wanted)}
        data = b"".join(data[place[row] : place[row] + row_bytes] for row in rows)
    return _decode(data, dtype, (len(rows), *shape))


def torch_dtype(name: str) -> torch.dtype:
    """Returns torch's dtype for a name of the safetensors format.

    Raises:
        UnsupportedError: If the installed torch has none; packed 4- and 6-bit types among them.
    """
    dtype = getattr(torch, _TORCH_NAMES.get(name, ""), None)
    if not isinstance(dtype, torch.dtype):
        raise UnsupportedError(
            f"Tensors of dtype {name} cannot be read with torch {torch.__version__}; known: "
            f"{', '.join(_TORCH_NAMES)}."
        )
    return dtype


def _entry(files: CheckpointFiles, name: str) -> TensorEntry:
    entry = files.entries.get(name)
    if entry is None:
        close = nearest(name, files.entries)
        hint = f" Did you mean {close!r}?" if close else ""
        raise CheckpointError(f"{files.store.label} has no tensor {name!r}.{hint}")
    return entry


def _runs(rows: Sequence[int]) -> list[tuple[int, int]]:
    """Joins sorted row numbers to runs [first, last + 1)."""
    runs = []
    for _, group in groupby(enumerate(rows), key=lambda pair: pair[1] - pair[0]):
        members = [row for _, row in group]
        runs.append((members[0], members[-1] + 1))
    return runs


def _decode(data: bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    if not data:
        return torch.empty(shape, dtype=dtype)
    buffer = bytearray(data)  # a copy: torch must not write into bytes
    if dtype == torch.bool:
        return torch.frombuffer(buffer, dtype=torch.uint8).ne(0).reshape(shape)
    return torch.frombuffer(buffer, dtype=dtype).reshape(shape)
