# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Header-only checkpoints are what the public library takes for the real thing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from tensorrt_llm_ext.checkpoints.io import open_checkpoint
from tests.support.catalogue import expand
from tests.support.header_only import num_bytes, spec_of, write_header_only

VALUES = {
    "ids": torch.arange(7),
    "mask": torch.tensor([True, False, True]),
    "scale": torch.tensor(0.25),
    "blocks": torch.tensor([[1.0, 2.0], [0.5, 4.0]]).to(torch.float8_e4m3fn),
}
EMPTY = {"large": ("BF16", (163840, 7168)), "packed": ("U8", (7168, 1024)), "none": ("F32", (0, 4))}
TENSORS = {**EMPTY, **{name: spec_of(value) for name, value in VALUES.items()}}


@pytest.mark.parametrize("shards", [1, 2, 5, 7])
def test_sizes_are_true_and_values_real(tmp_path: Path, shards: int) -> None:
    write_header_only(tmp_path, {"a": 1}, TENSORS, values=VALUES, shards=shards)
    files = open_checkpoint(tmp_path)
    assert {name: (e.dtype, e.shape) for name, e in files.entries.items()} == TENSORS
    assert len({entry.file for entry in files.entries.values()}) == shards
    for name, value in VALUES.items():
        with safe_open(files.entries[name].file, framework="pt") as file:
            stored = file.get_tensor(name)
        assert stored.dtype == value.dtype
        assert torch.equal(stored.float(), value.float())
    paths = list(tmp_path.glob("*.safetensors"))
    payload = sum(map(num_bytes, TENSORS.values()))
    assert payload <= sum(path.stat().st_size for path in paths) <= payload + 4096
    # Sparse: 2.3 GB take next to nothing.
    assert sum(path.stat().st_blocks for path in paths) * 512 < 1 << 20


def test_the_index_covers_every_tensor(tmp_path: Path) -> None:
    write_header_only(tmp_path, {}, TENSORS, shards=3)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text(encoding="utf-8"))
    assert set(index["weight_map"]) == set(TENSORS)
    assert index["metadata"]["total_size"] == sum(map(num_bytes, TENSORS.values()))


def test_values_must_be_what_was_declared(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="declared"):
        write_header_only(tmp_path, {}, {"ids": ("I64", (8,))}, values={"ids": torch.arange(7)})


def test_names_expand() -> None:
    assert list(expand("a.{0..2}.{x,y}")) == ["a.0.x", "a.0.y", "a.1.x", "a.1.y", "a.2.x", "a.2.y"]
    assert list(expand("plain")) == ["plain"]
