# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""What is written is what is read back, here and by safetensors itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from tensorrt_llm_ext.checkpoints.io import INDEX_NAME, open_checkpoint, read_json
from tensorrt_llm_ext.checkpoints.source import SafetensorsSource
from tensorrt_llm_ext.checkpoints.writer import save_checkpoint
from tensorrt_llm_ext.errors import CheckpointError

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.bool]


@given(
    st.dictionaries(
        st.text("abc.", min_size=1, max_size=6),
        st.tuples(st.lists(st.integers(0, 4), max_size=3), st.sampled_from(DTYPES)),
        min_size=1,
        max_size=6,
    ),
    st.none() | st.integers(1, 200),
)
def test_round_trip(
    tmp_path_factory: pytest.TempPathFactory, layout: dict, limit: int | None
) -> None:
    folder = tmp_path_factory.mktemp("written")
    tensors = {
        name: torch.randint(0, 2, tuple(shape)).to(dtype) for name, (shape, dtype) in layout.items()
    }
    written = save_checkpoint(folder, {"a": 1}, tensors, max_shard_bytes=limit)
    assert all(path.exists() for path in written)
    assert read_json(folder, "config.json") == {"a": 1}
    files = open_checkpoint(folder)
    source = SafetensorsSource(files)
    for name, tensor in tensors.items():
        read = source.take(name, tuple(tensor.shape))
        assert read.dtype == tensor.dtype
        assert torch.equal(read, tensor)
    source.finish()
    if limit is not None:
        for path in {entry.file for entry in files.entries.values()}:
            held = load_file(path)
            size = sum(t.numel() * t.element_size() for t in held.values())
            assert len(held) == 1 or size <= limit


def test_index_of_shards(tmp_path: Path) -> None:
    tensors = {f"t{i}": torch.ones(8) for i in range(4)}
    save_checkpoint(tmp_path, {}, tensors, max_shard_bytes=64)
    index = json.loads((tmp_path / INDEX_NAME).read_text())
    assert index["metadata"]["total_size"] == 4 * 32
    assert set(index["weight_map"].values()) == {
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    }


def test_shared_and_strided_storage(tmp_path: Path) -> None:
    base = torch.arange(12.0).view(3, 4)
    tensors = {"whole": base, "column": base[:, 1], "turned": base.T, "row": base[1]}
    save_checkpoint(tmp_path, {}, tensors)
    read = load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(read[name], tensor) for name, tensor in tensors.items())


def test_weights_are_not_overwritten_by_accident(tmp_path: Path) -> None:
    tensors = {f"t{i}": torch.ones(8) for i in range(4)}
    save_checkpoint(tmp_path, {}, tensors, max_shard_bytes=32)
    with pytest.raises(CheckpointError, match="already holds weights"):
        save_checkpoint(tmp_path, {}, {"x": torch.ones(1)})
    save_checkpoint(tmp_path, {}, {"x": torch.ones(1)}, overwrite=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
    assert set(open_checkpoint(tmp_path).entries) == {"x"}


def test_further_documents(tmp_path: Path) -> None:
    save_checkpoint(
        tmp_path,
        {},
        {"x": torch.ones(1)},
        extra_json={"generation_config.json": {"eos_token_id": 3}},
    )
    assert read_json(tmp_path, "generation_config.json") == {"eos_token_id": 3}
    for name in ("../x.json", "x.py"):
        with pytest.raises(CheckpointError, match="plain name of a JSON file"):
            save_checkpoint(tmp_path / "other", {}, {"x": torch.ones(1)}, extra_json={name: {}})


def test_weights_are_as_readable_as_the_config(tmp_path: Path) -> None:
    files = save_checkpoint(tmp_path, {}, {"a": torch.ones(2)})
    assert len({file.stat().st_mode for file in files}) == 1
