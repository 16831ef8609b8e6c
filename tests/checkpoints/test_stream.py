# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from tensorrt_llm_ext.checkpoints import stream
from tensorrt_llm_ext.checkpoints.io import open_checkpoint
from tensorrt_llm_ext.checkpoints.names import TensorRef
from tensorrt_llm_ext.checkpoints.stream import (
    Held,
    Rows,
    Span,
    StreamTensor,
    digest,
    select_rows,
    stored_tensor,
    write_safetensors,
)
from tensorrt_llm_ext.errors import CheckpointError
from tests.support.header_only import write_header_only
from tests.support.tiny_checkpoints import draft_json, draft_shapes

ROOT = Path(__file__).parents[2]
MIB = 1 << 20


class Bytes:
    """A store of one file in memory that records what is read."""

    label = "bytes"
    folder = None

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.reads: list[tuple[int, int]] = []

    def names(self) -> tuple[str, ...]:
        return ("file",)

    def size(self, name: str) -> int:
        return len(self.data)

    def read(self, name: str, begin: int, end: int) -> bytes:
        self.reads.append((begin, end))
        return self.data[begin:end]


def whole(data: bytes, **span: int) -> Span:
    return Span(store=Bytes(data), file="file", **{"begin": 0, "end": len(data), **span})


def test_every_dtype_passes_through_unchanged(tmp_path: Path) -> None:
    tensors = {
        "a": torch.randn(5, 3).to(torch.bfloat16),
        "b": torch.randn(4, 2),
        "c": torch.arange(7, dtype=torch.int64),
        "d": torch.tensor([True, False, True]),
        "e": torch.randint(0, 256, (3, 5), dtype=torch.uint8),
        "f": torch.randn(3, 4).to(torch.float8_e4m3fn),
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 4),
    }
    (tmp_path / "in").mkdir()
    save_file(tensors, tmp_path / "in" / "model.safetensors")
    files = open_checkpoint(tmp_path / "in")
    copies = [stored_tensor(f"new.{name}", files, TensorRef(name)) for name in tensors]
    digests = write_safetensors(tmp_path / "out.safetensors", copies)
    again = load_file(tmp_path / "out.safetensors")
    for name, tensor in tensors.items():
        copy = again[f"new.{name}"]
        assert copy.dtype == tensor.dtype
        assert copy.shape == tensor.shape
        assert bytes(copy.untyped_storage()) == bytes(tensor.untyped_storage())
        assert digests[f"new.{name}"] == digest(stored_tensor("x", files, TensorRef(name)))
    other = tmp_path / "other.safetensors"
    write_safetensors(other, copies[::-1])
    assert other.read_bytes() == (tmp_path / "out.safetensors").read_bytes()


def test_a_range_of_rows_is_a_tensor(tmp_path: Path) -> None:
    tensor = torch.arange(24, dtype=torch.float32).reshape(6, 4)
    (tmp_path / "in").mkdir()
    save_file({"first": torch.ones(3), "x": tensor}, tmp_path / "in" / "model.safetensors")
    files = open_checkpoint(tmp_path / "in")
    part = stored_tensor("part", files, TensorRef("x", (2, 5)))
    write_safetensors(tmp_path / "out.safetensors", [part, select_rows(part_of(files), [0, 5])])
    again = load_file(tmp_path / "out.safetensors")
    assert torch.equal(again["part"], tensor[2:5])
    assert torch.equal(again["rows"], tensor[[0, 5]])


def part_of(files: object) -> StreamTensor:
    return stored_tensor("rows", files, TensorRef("x"))  # type: ignore[arg-type]


@given(
    rows=st.lists(st.integers(0, 199), unique=True).map(sorted),
    size=st.integers(1, 9),
    chunk=st.integers(1, 64),
)
def test_rows_are_gathered_in_bounded_reads(rows: list[int], size: int, chunk: int) -> None:
    data = bytes(i % 251 for i in range(200 * size))
    span = whole(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "CHUNK_BYTES", chunk)
        chunks = list(Rows(span=span, row_bytes=size, rows=rows).chunks())
    assert b"".join(chunks) == b"".join(data[r * size : (r + 1) * size] for r in rows)
    store = span.store
    assert isinstance(store, Bytes)
    assert all(end - begin <= max(chunk, size) for begin, end in store.reads)


@given(begin=st.integers(0, 50), length=st.integers(0, 200), chunk=st.integers(1, 64))
def test_spans_are_read_in_bounded_chunks(begin: int, length: int, chunk: int) -> None:
    data = bytes(i % 251 for i in range(250))
    span = whole(data, begin=begin, end=begin + length)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "CHUNK_BYTES", chunk)
        chunks = list(span.chunks())
    assert b"".join(chunks) == data[begin : begin + length]
    assert all(len(part) <= chunk for part in chunks)


def test_refusals(tmp_path: Path) -> None:
    short = StreamTensor(name="x", dtype="U8", shape=(4,), nbytes=4, data=Held(b"abc"))
    with pytest.raises(CheckpointError, match=r"'x' gave 3 bytes, its shape needs 4"):
        write_safetensors(tmp_path / "a.safetensors", [short])
    fine = StreamTensor(name="x", dtype="U8", shape=(3,), nbytes=3, data=Held(b"abc"))
    with pytest.raises(CheckpointError, match="Two tensors are to be written as 'x'"):
        write_safetensors(tmp_path / "b.safetensors", [fine, fine])
    with pytest.raises(CheckpointError, match="cannot be written"):
        write_safetensors(tmp_path / "no" / "c.safetensors", [fine])
    odd = StreamTensor(name="x", dtype="F4", shape=(2, 3), nbytes=3, data=whole(b"abc"))
    with pytest.raises(CheckpointError, match="end inside a byte"):
        select_rows(odd, [1])
    with pytest.raises(TypeError, match="stored tensors"):
        select_rows(fine, [0])


MEMORY_SCRIPT = """
import json, re, sys
from pathlib import Path
import numpy
from tensorrt_llm_ext.checkpoints.convert import convert_draft
from tensorrt_llm_ext.checkpoints.draft_vocabulary import DraftVocabulary
from tensorrt_llm_ext.checkpoints.normalize import open_draft

def peak():
    # Of this program alone: ru_maxrss also remembers the process that started it.
    return int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024

counts = numpy.arange(int(sys.argv[2]))
wish = DraftVocabulary(size=40_000, counts=counts, source="made up")
before = peak()
for number, vocabulary in enumerate((None, wish)):
    out = f"{sys.argv[1]}-{number}"
    report = convert_draft(open_draft(sys.argv[1]), out, to="trtllm", draft_vocab=vocabulary)
    print(json.dumps([peak() - before, report.nbytes]))
"""


def test_memory_does_not_grow_with_the_checkpoint(tmp_path: Path) -> None:
    vocab, hidden = 163_840, 256
    config = draft_json(
        vocab_size=vocab,
        draft_vocab_size=vocab,
        hidden_size=hidden,
        torch_dtype="bfloat16",
        trtllm_ext_aux_boundaries=[2, 4, 5],
    )
    shapes = draft_shapes(config, embedding=True)
    tensors = {name: ("BF16", shape) for name, shape in shapes.items()}
    folder = write_header_only(tmp_path / "in", config, tensors)
    result = subprocess.run(
        [sys.executable, "-c", MEMORY_SCRIPT, str(folder), str(vocab)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    (full, full_bytes), (pruned, pruned_bytes) = map(json.loads, result.stdout.splitlines())
    head = vocab * hidden * 2
    assert head >= 80 * MIB
    assert full_bytes > 2 * head > pruned_bytes > head
    # Below one tensor, so that the bound of 1.3 tensors and 1 GiB holds for any size.
    assert full < 48, f"peak memory grew by {full:.0f} MiB"
    assert pruned < 64, f"peak memory grew by {pruned:.0f} MiB"
