# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Tensors and rows by offset equal what safetensors' own reader returns, for every dtype."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

from tensorrt_llm_ext.checkpoints import rows as rows_module
from tensorrt_llm_ext.checkpoints.headers import DTYPE_BITS
from tensorrt_llm_ext.checkpoints.io import CheckpointFiles, open_checkpoint
from tensorrt_llm_ext.checkpoints.rows import read_rows, read_tensor, torch_dtype
from tensorrt_llm_ext.checkpoints.store import FolderStore
from tensorrt_llm_ext.checkpoints.writer import save_checkpoint
from tensorrt_llm_ext.errors import CheckpointError, UnsupportedError

ROWS, WIDTH = 12, 6


def random_bytes(*shape: int) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.manual_seed(3))


def known_dtypes() -> list[str]:
    found = []
    for name in DTYPE_BITS:
        try:
            torch_dtype(name)
        except UnsupportedError:
            continue
        found.append(name)
    return found


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Bit equality, NaN included, for dtypes that cannot compare."""
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    flat = (t.contiguous().reshape(-1).view(torch.uint8) for t in (left, right))
    return torch.equal(*flat)


def stored(path: Path, name: str) -> torch.Tensor:
    with safe_open(path, framework="pt") as file:
        return file.get_tensor(name)


@pytest.fixture(scope="module")
def every_dtype(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dtypes") / "model.safetensors"
    tensors = {}
    for name in known_dtypes():
        data = random_bytes(ROWS, WIDTH * DTYPE_BITS[name] // 8)
        tensors[name] = data.view(torch_dtype(name)) if name != "BOOL" else data > 127
    save_file(tensors, path)
    return path


def test_every_dtype_that_torch_has_is_covered() -> None:
    expected = {"F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL", "C64"}
    assert expected | {"U64", "U32", "U16", "F8_E4M3", "F8_E5M2"} <= set(known_dtypes())


@pytest.mark.parametrize("dtype", known_dtypes())
def test_dtype_against_safetensors(every_dtype: Path, dtype: str) -> None:
    files = open_checkpoint(every_dtype)
    assert files.entries[dtype].dtype == dtype
    assert files.entries[dtype].nbytes == ROWS * WIDTH * DTYPE_BITS[dtype] // 8
    whole = stored(every_dtype, dtype)
    assert whole.dtype == torch_dtype(dtype)
    assert same(read_tensor(files, dtype), whole)
    for rows in ([0], [3, 4, 5, 9], [11, 0, 5, 5], list(range(ROWS))):
        expected = torch.stack([whole[row] for row in rows])
        assert same(read_rows(files, dtype, rows), expected)
    assert read_rows(files, dtype, []).shape == (0, WIDTH)


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, torch.Tensor]]:
    folder = tmp_path_factory.mktemp("sharded")
    generator = torch.manual_seed(0)
    tensors = {
        "scalar": torch.tensor(2.5),
        "vector": torch.randn(40, generator=generator),
        "matrix": torch.randn(40, 16, generator=generator).bfloat16(),
        "cube": torch.randn(8, 4, 16, generator=generator),
        "empty": torch.empty(0, 3),
        "thin": torch.empty(5, 0),
    }
    save_checkpoint(folder, {}, tensors, max_shard_bytes=1300)
    return folder, tensors


def test_sharded(sharded: tuple[Path, dict[str, torch.Tensor]]) -> None:
    folder, tensors = sharded
    files = open_checkpoint(folder)
    assert len({entry.name for entry in files.entries.values()}) > 1
    for name, tensor in tensors.items():
        assert same(read_tensor(files, name), tensor)
    assert read_tensor(files, "scalar").shape == ()
    assert read_rows(files, "thin", [4, 0]).shape == (2, 0)


@given(name=st.sampled_from(["vector", "matrix", "cube"]), data=st.data())
def test_any_rows(
    sharded: tuple[Path, dict[str, torch.Tensor]], name: str, data: st.DataObject
) -> None:
    folder, tensors = sharded
    count = len(tensors[name])
    rows = data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=20))
    assert same(read_rows(open_checkpoint(folder), name, rows), tensors[name][rows])


class CountingStore(FolderStore):
    """Remembers what was read."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.reads: list[tuple[str, int, int]] = []

    def read(self, name: str, begin: int, end: int) -> bytes:
        self.reads.append((name, begin, end))
        return super().read(name, begin, end)


def test_adjacent_rows_are_one_read_and_nothing_else_is_read(
    sharded: tuple[Path, dict[str, torch.Tensor]],
) -> None:
    folder, tensors = sharded
    store = CountingStore(folder)
    files = open_checkpoint(store)
    store.reads.clear()
    rows = [7, 6, 5, 20, 21, 30]
    assert same(read_rows(files, "matrix", rows), tensors["matrix"][rows])
    entry = files.entries["matrix"]
    row = 16 * 2
    assert store.reads == [
        (entry.name, entry.begin + first * row, entry.begin + last * row)
        for first, last in ((5, 8), (20, 22), (30, 31))
    ]


@pytest.mark.parametrize("row", [-1, 40, 1 << 70])
def test_rows_that_are_not_there(sharded: tuple[Path, dict[str, torch.Tensor]], row: int) -> None:
    files = open_checkpoint(sharded[0])
    with pytest.raises(CheckpointError, match=rf"has no row {row}: its shape is \[40, 16\]"):
        read_rows(files, "matrix", [0, row])
    for name in ("scalar", "empty"):
        with pytest.raises(CheckpointError, match="has no row 0"):
            read_rows(files, name, [0])


def test_unknown_tensor_names_the_nearest(sharded: tuple[Path, dict[str, torch.Tensor]]) -> None:
    files = open_checkpoint(sharded[0])
    for read in (lambda: read_tensor(files, "matrx"), lambda: read_rows(files, "matrx", [0])):
        with pytest.raises(CheckpointError, match=r"no tensor 'matrx'\. Did you mean 'matrix'"):
            read()


def test_large_tensors_only_on_request(
    sharded: tuple[Path, dict[str, torch.Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, tensors = sharded
    files = open_checkpoint(folder)
    monkeypatch.setattr(rows_module, "MAX_SMALL_BYTES", 1000)
    with pytest.raises(CheckpointError, match="has 1280 bytes, more than the 1000"):
        read_tensor(files, "matrix")
    assert same(read_tensor(files, "matrix", allow_large=True), tensors["matrix"])
    monkeypatch.setattr(rows_module, "MAX_ROWS_BYTES", 64)
    assert len(read_rows(files, "matrix", [1, 1, 1, 2])) == 4
    with pytest.raises(CheckpointError, match=r"3 rows of tensor 'matrix' .* take 96 bytes"):
        read_rows(files, "matrix", [1, 2, 3])


@pytest.mark.parametrize("dtype", ["F4", "F6_E2M3", "Q9_NEW"])
def test_dtypes_without_a_torch_name(tmp_path: Path, dtype: str) -> None:
    header = json.dumps({"a": {"dtype": dtype, "shape": [8], "data_offsets": [0, 6]}})
    if dtype == "F4":
        header = header.replace("[8]", "[12]")
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header.encode() + b"x" * 6)
    files: CheckpointFiles = open_checkpoint(path)
    assert files.entries["a"].nbytes == 6
    for read in (lambda: read_tensor(files, "a"), lambda: read_rows(files, "a", [0])):
        with pytest.raises(UnsupportedError, match=f"dtype {dtype} cannot be read"):
            read()


def test_result_may_be_written_to(sharded: tuple[Path, dict[str, torch.Tensor]]) -> None:
    files = open_checkpoint(sharded[0])
    for tensor in (read_tensor(files, "vector"), read_rows(files, "vector", [3, 1])):
        tensor.zero_()
        assert not tensor.any()
    assert read_tensor(files, "vector").any()
