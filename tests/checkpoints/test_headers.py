# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Headers of strangers: what safetensors refuses is refused, quickly, in little memory."""

from __future__ import annotations

import json
import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open

from tensorrt_llm_ext.checkpoints import headers
from tensorrt_llm_ext.checkpoints.headers import TensorEntry, parse_json
from tensorrt_llm_ext.checkpoints.io import INDEX_NAME, open_checkpoint, read_header
from tensorrt_llm_ext.errors import CheckpointError


def write(path: Path, header: Any, size: int) -> Path:
    """Writes a file with `size` bytes of data behind a header (JSON as text or a value)."""
    text = header if isinstance(header, str) else json.dumps(header)
    data = text.encode("utf-8", "surrogatepass")
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(data)) + data)
        file.truncate(8 + len(data) + size)
    return path


def entry(begin: int, end: int, **changes: Any) -> dict[str, Any]:
    return {"dtype": "U8", "shape": [end - begin], "data_offsets": [begin, end], **changes}


def deep(levels: int) -> str:
    return '{"a":' * levels + "1" + "}" * levels


GOOD = json.dumps(entry(0, 8))
HOSTILE = [
    ("doubled tensor", f'{{"a": {GOOD}, "a": {GOOD}}}', "the key 'a' appears twice"),
    ("doubled key", GOOD.replace("{", '{"a": {"dtype": "U8", ', 1) + "}", "'dtype' appears twice"),
    ("escaped double", f'{{"a": {GOOD}, "\\u0061": {GOOD}}}', "appears twice"),
    ("4301 digits", '{"a": {"dtype": "U8", "shape": [' + "9" * 5000 + "]}}", "not valid JSON"),
    ("4000 digits", {"a": entry(0, 8, shape=[10**3999])}, "malformed"),
    ("64 bits", {"a": entry(0, 8, shape=[1 << 64, 0])}, "malformed"),
    ("negative size", {"a": entry(0, 8, shape=[-2, -4])}, "malformed"),
    ("negative offset", {"a": entry(-8, 0, shape=[8])}, "malformed"),
    ("negative end", {"a": entry(0, -8, shape=[8])}, "malformed"),
    ("huge offset", {"a": entry(1 << 63, (1 << 63) + 8, shape=[8])}, "malformed"),
    ("overflow", {"a": entry(0, 8, shape=[1 << 40, 1 << 40])}, "malformed"),
    ("overflow to 0", {"a": entry(0, 0, shape=[1 << 40, 1 << 40, 0])}, "malformed"),
    ("many sizes", {"a": entry(0, 8, shape=[1] * 100_000)}, "malformed"),
    ("true", {"b": entry(8, 9), "a": entry(0, 8, shape=[True, 8])}, "malformed"),
    ("float", {"b": entry(8, 16), "a": entry(0, 8, shape=[8.0])}, "malformed"),
    ("float offset", {"a": entry(0, 8, data_offsets=[0.0, 8])}, "malformed"),
    ("exponent", '{"a": {"dtype": "U8", "shape": [1e999], "data_offsets": [0, 8]}}', "malformed"),
    ("NaN", '{"a": {"dtype": "U8", "shape": [NaN], "data_offsets": [0, 8]}}', "NaN is no JSON"),
    ("Infinity", '{"__metadata__": {"a": -Infinity}}', "-Infinity is no JSON"),
    ("shape is text", {"a": entry(0, 1, shape="")}, "malformed"),
    ("shape is a map", {"a": entry(0, 1, shape={})}, "malformed"),
    ("offsets are a map", {"a": entry(0, 8, data_offsets={"0": 0, "8": 8})}, "malformed"),
    ("three offsets", {"a": entry(0, 8, data_offsets=[0, 4, 8])}, "malformed"),
    ("lists in shape", {"a": entry(0, 8, shape=[[8]])}, "malformed"),
    ("dtype is a list", {"a": entry(0, 8, dtype=["U8"])}, "malformed"),
    ("dtype of control", {"a": entry(0, 8, dtype="\x1b[2J")}, "malformed"),
    ("long dtype", {"a": entry(0, 8, dtype="U" * 1000)}, "malformed"),
    ("entry is a list", {"a": ["U8", [8], [0, 8]]}, "malformed"),
    ("overlap", {"a": entry(0, 5), "b": entry(4, 8)}, "tensors 'a' and 'b' overlap"),
    ("twice the same", {"a": entry(0, 8), "b": entry(0, 8)}, "tensors 'a' and 'b' overlap"),
    ("nested", {"a": entry(0, 8), "b": entry(2, 3)}, "tensors 'a' and 'b' overlap"),
    ("gap", {"a": entry(0, 3), "b": entry(5, 8)}, "2 bytes before tensor 'b' belong to no"),
    ("gap at the start", {"a": entry(1, 8)}, "1 bytes before tensor 'a'"),
    ("beyond the end", {"a": entry(0, 9)}, "needs .*: the file is truncated"),
    ("rest", {"a": entry(0, 7)}, "accounts for .*: it is not the file"),
    ("no tensors", {}, "accounts for"),
    ("umlaut", {"\xe4": entry(0, 8)}, r"name '\\xe4' is not printable ASCII"),
    ("surrogate", '{"\\ud800": ' + GOOD + "}", r"name '\\ud800' is not printable ASCII"),
    ("raw surrogate", f'{{"\ud800": {GOOD}}}', "not valid JSON"),
    ("right to left", {"a\u202eb": entry(0, 8)}, "is not printable ASCII"),
    ("control", {"a\x1b[2J": entry(0, 8)}, "is not printable ASCII"),
    ("new line", {"a\nb": entry(0, 8)}, "is not printable ASCII"),
    ("no name", {"": entry(0, 8)}, "is not printable ASCII"),
    ("long name", {"a" * 5000: entry(0, 8)}, "at most 1024 characters"),
    ("deep map", deep(100_000), "not valid JSON"),
    ("deep list", "[" * 100_000, "not valid JSON"),
    ("metadata of numbers", {"__metadata__": {"a": 1}, "a": entry(0, 8)}, "must hold strings"),
    ("metadata is a list", {"__metadata__": ["a"], "a": entry(0, 8)}, "must hold strings"),
    ("byte order mark", "\ufeff" + json.dumps({"a": entry(0, 8)}), "not valid JSON"),
]


@pytest.mark.parametrize(
    ("header", "message"), [h[1:] for h in HOSTILE], ids=[h[0] for h in HOSTILE]
)
def test_hostile_headers(tmp_path: Path, header: Any, message: str) -> None:
    path = write(tmp_path / "model.safetensors", header, 8)
    with pytest.raises(CheckpointError, match=message) as caught:
        open_checkpoint(path)
    assert len(str(caught.value)) < 1000 + len(str(path))
    assert str(caught.value).isascii()


@pytest.mark.parametrize(
    "header",
    [
        {"b": entry(4, 8), "a": entry(0, 4)},
        {"__metadata__": {"format": "pt", "note": "\xe4 [{,"}, "a": entry(0, 8)},
        {"__metadata__": None, "a": entry(0, 8)},
        {"a": entry(0, 0, shape=[0, 1 << 20]), "b": entry(0, 8), "c": entry(8, 8, shape=[3, 0])},
        {"a": entry(0, 8, shape=[2, 1, 4], later="ignored")},
        {"a": entry(0, 8, shape=[], dtype="F64")},
        {"a": entry(0, 8, shape=[3], dtype="NEW_5")},
    ],
)
def test_unusual_but_sound_headers(tmp_path: Path, header: dict[str, Any]) -> None:
    path = write(tmp_path / "model.safetensors", header, 8)
    entries = read_header(path)
    assert entries.keys() == header.keys() - {"__metadata__"}
    start = path.stat().st_size - 8
    for name, found in entries.items():
        begin, end = header[name]["data_offsets"]
        assert (found.begin, found.end, found.nbytes) == (start + begin, start + end, end - begin)
        assert found.shape == tuple(header[name]["shape"])
        assert (found.file, found.name) == (path, "model.safetensors")


SIZES = st.integers(-1, 9)
ENTRIES = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["U8", "F16", "I32"]),
        "shape": st.lists(SIZES, max_size=2),
        "data_offsets": st.lists(SIZES, min_size=2, max_size=2),
    }
)


@given(st.dictionaries(st.sampled_from("abc"), ENTRIES, max_size=3), st.integers(0, 9))
def test_whatever_is_accepted_safetensors_accepts(
    tmp_path_factory: pytest.TempPathFactory, header: dict[str, Any], size: int
) -> None:
    path = write(tmp_path_factory.mktemp("fuzz") / "model.safetensors", header, size)
    try:
        ours = {name: entry.shape for name, entry in read_header(path).items()}
    except CheckpointError:
        ours = None
    try:
        with safe_open(path, framework="pt") as file:
            theirs = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OverflowError):
        theirs = None
    assert ours == theirs


JUNK: dict[str, Callable[[], bytes]] = {
    "lists": lambda: b"[" + b"[]," * 5_000_000 + b"[]]",
    "numbers": lambda: b'{"a":[' + b"1," * 5_000_000 + b"1]}",
    "maps": lambda: b'{"a":' + b"{" * 5_000_000,
    "keys": lambda: b"{" + b'"a":0,' * 4_100_000 + b'"a":0}',
}


@pytest.mark.parametrize("kind", JUNK)
def test_junk_is_refused_before_it_is_parsed(kind: str) -> None:
    junk = JUNK[kind]()
    tracemalloc.start()
    started = time.perf_counter()
    try:
        with pytest.raises(CheckpointError, match="holds more than 4000000 values"):
            parse_json(junk, "the header")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20
    assert time.perf_counter() - started < 2


def test_configs_may_hold_what_python_writes(tmp_path: Path) -> None:
    data = b'{"a": [0.0, Infinity], "b": 1, "b": 2}'
    assert parse_json(data, "config.json") == {"a": [0.0, float("inf")], "b": 2}
    with pytest.raises(CheckpointError, match="appears twice"):
        parse_json(data.replace(b"Infinity", b"1"), "index", strict=True)
    (tmp_path / INDEX_NAME).write_text(
        '{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}'
    )
    with pytest.raises(CheckpointError, match="'a' appears twice"):
        open_checkpoint(tmp_path)


def test_one_request_for_small_headers_two_for_large_ones(tmp_path: Path) -> None:
    for count, expected in ((3, 1), (3000, 2)):
        header = {f"t{i}": entry(i, i + 1) for i in range(count)}
        path = write(tmp_path / "model.safetensors", header, count + 100_000)
        header["rest"] = entry(count, count + 100_000)
        write(path, header, count + 100_000)
        data = path.read_bytes()
        reads: list[tuple[int, int]] = []

        def read(begin: int, end: int) -> bytes:
            reads.append((begin, end))  # noqa: B023 - called at once
            return data[begin:end]  # noqa: B023

        found = headers.parse_header(read, len(data), where="x", file=path, name="n")
        assert found.keys() == header.keys()
        assert len(reads) == expected
        assert reads[0] == (0, 1 << 16)


def test_entries_without_a_file() -> None:
    made = TensorEntry(Path("folder/x.safetensors"), "BF16", (3, 5))
    assert (made.name, made.nbytes, made.begin) == ("x.safetensors", 30, 0)
    assert TensorEntry(Path("x"), "F4", (3, 4)).nbytes == 6


def test_entries_share_what_they_have_in_common(tmp_path: Path) -> None:
    header = {f"t{i}": entry(300 * i, 300 * i + 300) for i in range(50)}
    path = write(tmp_path / "model.safetensors", header, 300 * 50)
    entries = list(open_checkpoint(tmp_path).entries.values())
    for attribute in ("dtype", "shape", "file", "stored_in"):
        assert len({id(getattr(found, attribute)) for found in entries}) == 1
    assert entries[0].file == path


def test_a_large_checkpoint_opens_fast(tmp_path: Path) -> None:
    """A sixteenth of Kimi-K2's tensors, of which only headers exist."""
    weight_map = {}
    for number in range(4):
        name = f"model-{number + 1:05d}-of-00004.safetensors"
        header = {}
        for i in range(4375):
            begin = i * 2_097_152
            tensor = f"model.layers.{number}.mlp.experts.{i // 3}.proj_{i % 3}.weight"
            header[tensor] = entry(begin, begin + 2_097_152, shape=[2048, 1024])
            weight_map[tensor] = name
        write(tmp_path / name, header, 4375 * 2_097_152)
    (tmp_path / INDEX_NAME).write_text(json.dumps({"weight_map": weight_map}))
    started = time.process_time()
    files = open_checkpoint(tmp_path)
    spent = time.process_time() - started
    assert files.entries.keys() == weight_map.keys()
    assert spent < 1.5  # about 0.2 s; quadratic work would take a minute
