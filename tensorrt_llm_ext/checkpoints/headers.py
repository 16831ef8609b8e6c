# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""JSON and safetensors headers, parsed with suspicion; free of torch.

What safetensors' own reader refuses is refused here too, and some more that no writer produces:
doubled keys, names that are not printable ASCII, numbers beyond 64 bits, headers that would take
gigabytes to parse.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias

from tensorrt_llm_ext.checkpoints.store import shorten
from tensorrt_llm_ext.errors import CheckpointError

MAX_HEADER_BYTES: Final = 100_000_000  # the format's own limit
# A parsed value takes up to 200 bytes, however few it had: 4 million of them are half a million
# tensors in one file, where the largest public checkpoints have 5,000.
MAX_JSON_VALUES: Final = 4_000_000

_FIRST_READ: Final = 1 << 16  # one request covers the headers of most files
_MAX_NAME: Final = 1024
_MAX_DIMS: Final = 32
_LIMIT: Final = (1 << 63) - 1
_INTS: Final = frozenset((int,))
_DTYPE: Final = re.compile(r"[A-Z][A-Z0-9_]{0,31}", re.ASCII)
DTYPE_BITS: Final[Mapping[str, int]] = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
    **{"F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6},
}
_DTYPE_NAMES: Final = {name: name for name in DTYPE_BITS}  # one object per name


class TensorEntry(NamedTuple):
    """One tensor of a safetensors file; a tuple, because there may be 280,000 of them.

    Attributes:
        file: Path of its file, links resolved; for a remote store the name as a path.
        dtype: As the format calls it, for instance "BF16".
        shape: Its sizes.
        begin: Absolute offset of its data in the file, in bytes.
        end: Where its data end; 0 when the entry was not read from a file.
        stored_in: Name of the file in its store; "" when it is `file.name`.
    """

    file: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int = 0
    end: int = 0
    stored_in: str = ""

    @property
    def name(self) -> str:
        """Name of its file relative to the store, as `CheckpointStore.read` takes it."""
        return self.stored_in or self.file.name

    @property
    def nbytes(self) -> int:
        """Size of its data in bytes."""
        if self.end:
            return self.end - self.begin
        return math.prod(self.shape) * DTYPE_BITS.get(self.dtype, 0) // 8


class _Kind(NamedTuple):
    """What tensors have in common by the thousand: one object for all of them."""

    dtype: str
    shape: tuple[int, ...]
    bits: int | None  # of all elements; None when the dtype is unknown


_Kinds: TypeAlias = dict[tuple[Any, ...], _Kind]


def parse_json(data: bytes, where: object, *, strict: bool = False) -> dict[str, Any]:
    """Parses a JSON object; CheckpointError when it is anything else.

    Args:
        data: UTF-8.
        where: What errors call it.
        strict: Refuse doubled keys, NaN and Infinity too, which readers understand differently.
    """
    if sum(map(data.count, (b",", b"[", b"{"))) > MAX_JSON_VALUES:
        raise CheckpointError(
            f"{where} holds more than {MAX_JSON_VALUES} values in {len(data)} bytes. It is not "
            "what its name says."
        )
    try:
        if strict:
            value = json.loads(
                data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant
            )
        else:
            value = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{where} is not valid JSON: {error}.") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{where} must hold a JSON object, got {type(value).__name__}.")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {shorten(twice)} appears twice")
    return result


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def parse_header(
    read: Callable[[int, int], bytes],
    size: int,
    *,
    where: object,
    file: Path,
    name: str,
    max_bytes: int = MAX_HEADER_BYTES,
) -> dict[str, TensorEntry]:
    """Reads the header of a safetensors file, without its data.

    Args:
        read: Returns the bytes [begin, end) of the file.
        size: Its size in bytes.
        where: What errors call it.
        file: `TensorEntry.file` of its tensors.
        name: `TensorEntry.stored_in` of its tensors.
        max_bytes: Largest header that is parsed.

    Raises:
        CheckpointError: If the header is too large or malformed, tensors overlap or leave gaps, or
            the file is truncated.
    """
    data = read(0, min(size, _FIRST_READ))
    length = struct.unpack_from("<Q", data)[0] if len(data) >= 8 else 0
    if length > max_bytes:
        raise CheckpointError(
            f"{where} declares a header of {length} bytes, more than {max_bytes}. It is damaged, "
            "or no safetensors file."
        )
    if not 2 <= length <= size - 8:
        raise CheckpointError(
            f"{where} ({size} bytes) is truncated, or no safetensors file. Download it again."
        )
    start = 8 + length
    text = data[8:start] if len(data) >= start else data[8:] + read(len(data), start)
    header = parse_json(text, f"the header of {where}", strict=True)
    _check_metadata(header.pop("__metadata__", None), where)
    known: _Kinds = {}
    entries = {}
    reached = start
    for tensor, value in header.items():
        kind, begin, end = _checked(where, tensor, value, known)
        begin += start
        end += start
        entries[tensor] = TensorEntry(file, kind.dtype, kind.shape, begin, end, name)
        # Writers list tensors as they lie; then nothing has to be sorted.
        reached = end if begin == reached else -1
    if reached != size:
        _check_layout(where, start, size, entries)
    return entries


def _check_metadata(value: Any, where: object) -> None:
    if value is None:
        return
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise CheckpointError(
            f"{where}: __metadata__ in the header must hold strings only. The file is damaged."
        )


def _checked(where: object, name: str, value: Any, known: _Kinds) -> tuple[_Kind, int, int]:
    """Returns kind and relative offsets of a header entry; `known` spares most of the tests."""
    if not (name.isascii() and name.isprintable() and 0 < len(name) <= _MAX_NAME):
        raise CheckpointError(
            f"{where}: the tensor name {shorten(name)} is not printable ASCII of at most "
            f"{_MAX_NAME} characters. Do not use this file."
        )
    try:
        dtype, shape, (begin, end) = value["dtype"], value["shape"], value["data_offsets"]
        key = (dtype, *shape)
        # JSON's true and 1.0 are equal to 1 as keys, so types come before the look-up.
        typed = (
            type(dtype) is str
            and type(shape) is list
            and _INTS.issuperset(map(type, (begin, end, *shape)))
        )
        kind = (known.get(key) or _new_kind(key)) if typed and 0 <= begin <= _LIMIT else None
    except (TypeError, ValueError, KeyError):
        kind = None
    if kind is None or not 0 <= end <= _LIMIT:
        raise CheckpointError(
            f"{where}: the header entry of {name!r} is malformed: {shorten(value)}."
        )
    if begin > end or (kind.bits is not None and (end - begin) * 8 != kind.bits):
        raise CheckpointError(
            f"{where}: tensor {name!r} of shape {list(kind.shape)} and dtype {kind.dtype} does "
            f"not fill its {end - begin} bytes. The file is damaged."
        )
    known[key] = kind
    return kind, begin, end


def _new_kind(key: tuple[Any, ...]) -> _Kind | None:
    """Checks a dtype and sizes that are integers; None when they cannot be true."""
    dtype, *shape = key
    if dtype not in DTYPE_BITS and not _DTYPE.fullmatch(dtype):
        return None
    if len(shape) > _MAX_DIMS or any(size < 0 for size in shape):
        return None
    # A zero hides what the other sizes multiply to, and other readers would overflow.
    if math.prod(size for size in shape if size) > _LIMIT:
        return None
    bits = DTYPE_BITS.get(dtype)
    return _Kind(
        _DTYPE_NAMES.get(dtype, dtype),
        tuple(shape),
        None if bits is None else bits * math.prod(shape),
    )


def _check_layout(where: object, start: int, size: int, entries: dict[str, TensorEntry]) -> None:
    """Refuses tensors that overlap, gaps between them, and a file of another size."""
    spans = sorted((entry.begin, entry.end, name) for name, entry in entries.items())
    reached, before = start, ""
    for begin, end, name in spans:
        if begin < reached:
            raise CheckpointError(
                f"{where}: tensors {before!r} and {name!r} overlap. The file is damaged."
            )
        if begin > reached:
            raise CheckpointError(
                f"{where}: {begin - reached} bytes before tensor {name!r} belong to no tensor. The "
                "file is damaged."
            )
        reached, before = end, name
    if reached > size:
        raise CheckpointError(
            f"{where} has {size} bytes, but its header needs {reached}: the file is truncated. "
            "Download it again."
        )
    if reached < size:
        raise CheckpointError(
            f"{where} has {size} bytes, but its header accounts for {reached}: it is not the file "
            "that was written. Download it again."
        )
