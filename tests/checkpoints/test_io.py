# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Files of strangers: paths, links, JSON, headers; every attack and accident on a real folder."""

from __future__ import annotations

import json
import os
import pickle
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from tensorrt_llm_ext.checkpoints import io
from tensorrt_llm_ext.checkpoints.io import (
    INDEX_NAME,
    is_plain_name,
    open_checkpoint,
    read_header,
    read_json,
    safe_file,
)
from tensorrt_llm_ext.checkpoints.writer import save_checkpoint
from tensorrt_llm_ext.errors import CheckpointError

TENSORS = {f"layer.{i}.weight": torch.full((4, 8), float(i)) for i in range(6)}
BYTES = 4 * 8 * 4  # of one tensor


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """Three shards of two tensors each, with an index."""
    folder = tmp_path / "sharded"
    save_checkpoint(folder, {"model_type": "x"}, TENSORS, max_shard_bytes=2 * BYTES)
    return folder


def edit_index(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = folder / INDEX_NAME
    index = json.loads(path.read_text())
    change(index)
    path.write_text(json.dumps(index))


def shard(folder: Path, number: int) -> Path:
    return folder / f"model-{number:05d}-of-00003.safetensors"


def test_sharded_single_and_file(sharded: Path, tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "single", {}, TENSORS)
    (tmp_path / "link").symlink_to(sharded)  # the folder itself may be a link
    for path in (
        sharded,
        tmp_path / "single",
        tmp_path / "single" / "model.safetensors",
        tmp_path / "link",
        str(sharded),
    ):
        files = open_checkpoint(path)
        assert files.shapes == dict.fromkeys(TENSORS, (4, 8))
        assert {entry.dtype for entry in files.entries.values()} == {"F32"}
        assert files.extra_files == ()


def test_shards_without_an_index(sharded: Path) -> None:
    (sharded / INDEX_NAME).unlink()
    assert set(open_checkpoint(sharded).entries) == set(TENSORS)


def test_files_the_index_leaves_out_are_reported(sharded: Path) -> None:
    save_file({"other": torch.ones(1)}, sharded / "consolidated.safetensors")
    files = open_checkpoint(sharded)
    assert files.extra_files == ("consolidated.safetensors",)
    assert "other" not in files.entries


@pytest.mark.parametrize("with_index", [True, False])
def test_missing_shard(sharded: Path, with_index: bool) -> None:
    shard(sharded, 2).unlink()
    if not with_index:
        (sharded / INDEX_NAME).unlink()
    with pytest.raises(CheckpointError, match=r"1 of 3 shards are missing: model-00002.*again"):
        open_checkpoint(sharded)


@pytest.mark.parametrize(
    "name",
    [
        "../outside.safetensors",
        "/etc/passwd",
        "sub/model.safetensors",
        "..\\outside.safetensors",
        "C:model.safetensors",
        "..",
        "",
        7,
        None,
        "model.bin",
    ],
)
def test_index_entries_must_be_plain_safetensors_names(sharded: Path, name: Any) -> None:
    save_file({"layer.0.weight": torch.ones(4, 8)}, sharded.parent / "outside.safetensors")
    edit_index(sharded, lambda index: index["weight_map"].update({"layer.0.weight": name}))
    with pytest.raises(CheckpointError, match=r"index\.json puts 'layer\.0\.weight' into"):
        open_checkpoint(sharded)


@given(st.text(max_size=20))
def test_plain_names_stay_in_their_folder(name: str) -> None:
    if is_plain_name(name):
        joined = os.path.normpath(os.path.join("/folder", name))
        assert os.path.dirname(joined) == "/folder"
        assert "\\" not in name
        assert "\0" not in name


def test_links_out_of_the_folder_are_refused(sharded: Path) -> None:
    outside = sharded.parent / "outside.safetensors"
    shard(sharded, 1).rename(outside)
    shard(sharded, 1).symlink_to(outside)
    with pytest.raises(CheckpointError, match=r"is a link to .*outside\.safetensors, outside the"):
        open_checkpoint(sharded)


@pytest.mark.parametrize("name", ["config.json", INDEX_NAME])
def test_linked_json_is_refused(sharded: Path, name: str) -> None:
    outside = sharded.parent / "secret.json"
    (sharded / name).rename(outside)
    (sharded / name).symlink_to(outside)
    with pytest.raises(CheckpointError, match="outside the checkpoint's folder"):
        read_json(sharded, name)
    if name == INDEX_NAME:
        with pytest.raises(CheckpointError, match="outside the checkpoint's folder"):
            open_checkpoint(sharded)


def test_links_inside_the_folder_are_fine(sharded: Path) -> None:
    shard(sharded, 1).rename(sharded / "renamed.safetensors")
    shard(sharded, 1).symlink_to("renamed.safetensors")
    assert set(open_checkpoint(sharded).entries) == set(TENSORS)


def hub_cache(folder: Path, root: Path) -> Path:
    """Lays a checkpoint out as a hub cache does: snapshots of links to blobs."""
    repo = root / "models--org--name"
    snapshot = repo / "snapshots" / "0123abc"
    blobs = repo / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for number, file in enumerate(sorted(folder.iterdir())):
        blob = blobs / f"{number:064x}"
        file.rename(blob)
        (snapshot / file.name).symlink_to(Path("../../blobs") / blob.name)
    return snapshot


def test_hub_caches_may_link(sharded: Path, tmp_path: Path) -> None:
    snapshot = hub_cache(sharded, tmp_path)
    assert set(open_checkpoint(snapshot).entries) == set(TENSORS)
    assert read_json(snapshot, "config.json") == {"model_type": "x"}


def test_hub_caches_may_link_to_their_blobs_only(sharded: Path, tmp_path: Path) -> None:
    snapshot = hub_cache(sharded, tmp_path)
    (tmp_path / "stolen.json").write_text("{}")
    (snapshot / "config.json").unlink()
    (snapshot / "config.json").symlink_to(tmp_path / "stolen.json")
    with pytest.raises(CheckpointError, match="Only a hub cache may link"):
        read_json(snapshot, "config.json")


@pytest.mark.parametrize("target", ["missing", "."])
def test_dangling_links_and_folders(sharded: Path, target: str) -> None:
    (sharded / "config.json").unlink()
    (sharded / "config.json").symlink_to(target)
    with pytest.raises(CheckpointError, match=r"config\.json (cannot be read|is not a file)"):
        read_json(sharded, "config.json")
    with pytest.raises(CheckpointError, match="not a plain file name"):
        safe_file(sharded, "../sharded/config.json")


_opened: list[str] | None = None


def _record(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and _opened is not None:
        _opened.append(str(arguments[0]))


sys.addaudithook(_record)  # cannot be removed, so it idles outside the block below


@contextmanager
def recorded_opens() -> Iterator[list[str]]:
    global _opened
    _opened = []
    try:
        yield _opened
    finally:
        _opened = None


class Bomb:
    """Creates a file when unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.marker),)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "x.ckpt", "x.pkl"])
@pytest.mark.parametrize("as_file", [False, True])
def test_pickles_are_never_opened(tmp_path: Path, name: str, as_file: bool) -> None:
    folder = tmp_path / "pickled"
    folder.mkdir()
    (folder / name).write_bytes(pickle.dumps(Bomb(tmp_path / "marker")))
    with recorded_opens() as opened, pytest.raises(CheckpointError, match="Convert them to safet"):
        open_checkpoint(folder / name if as_file else folder)
    assert not any(name in path for path in opened)
    assert not (tmp_path / "marker").exists()


def test_pickles_beside_safetensors_are_ignored(sharded: Path) -> None:
    (sharded / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb(sharded.parent / "marker")))
    with recorded_opens() as opened:
        open_checkpoint(sharded)
    assert opened
    assert not any("pytorch_model" in path for path in opened)


def test_no_checkpoint_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # tests ask nobody
    with pytest.raises(CheckpointError, match=r"is not a folder.*hf download"):
        open_checkpoint("moonshotai/Kimi-K2.5")
    with pytest.raises(CheckpointError, match=r"holds no \.safetensors file"):
        open_checkpoint(tmp_path)


def test_duplicate_tensor(tmp_path: Path) -> None:
    save_file(dict(TENSORS), tmp_path / "a.safetensors")
    save_file({"layer.3.weight": torch.ones(4, 8)}, tmp_path / "b.safetensors")
    with pytest.raises(CheckpointError, match=r"'layer\.3\.weight' is in two files, a.* and b\."):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(ghost=m["layer.0.weight"]), "1 tensors are listed .* in no shard"),
        (lambda m: m.pop("layer.0.weight"), r"in a shard but not listed .*'layer\.0\.weight'"),
        (
            lambda m: m.update({"layer.0.weight": m["layer.5.weight"]}),
            r"puts 'layer\.0\.weight' into model-00003-of-00003",
        ),
    ],
    ids=["ghost", "unlisted", "moved"],
)
def test_index_and_shards_must_agree(
    sharded: Path, change: Callable[[dict[str, str]], Any], message: str
) -> None:
    edit_index(sharded, lambda index: change(index["weight_map"]))
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(sharded)


@pytest.mark.parametrize(
    "content", [b"", b"[1]", b"{", b"\xff\xfe", b"null", b"[" * 100_000], ids=lambda c: repr(c[:4])
)
def test_malformed_json(sharded: Path, content: bytes) -> None:
    (sharded / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"config\.json (is not valid JSON|must hold)"):
        read_json(sharded, "config.json")


@pytest.mark.parametrize("content", [b"{}", b'{"weight_map": {}}', b'{"weight_map": [1]}'])
def test_index_without_a_map(sharded: Path, content: bytes) -> None:
    (sharded / INDEX_NAME).write_bytes(content)
    with pytest.raises(CheckpointError, match="no weight_map"):
        open_checkpoint(sharded)


def test_json_size_is_bounded(sharded: Path) -> None:
    (sharded / "config.json").write_text(json.dumps({"a": "x" * 100}))
    with pytest.raises(CheckpointError, match=r"has 109 bytes, more than the 50"):
        read_json(sharded, "config.json", max_bytes=50)
    assert read_json(sharded, "config.json", max_bytes=109)


def write_raw(path: Path, header: Any, data: bytes = b"", *, length: int | None = None) -> Path:
    """Writes a safetensors file by hand."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


GOOD = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("header", "data", "length", "message"),
    [
        ({"a": GOOD}, b"x" * 8, 1 << 60, "declares a header of"),
        ({"a": GOOD}, b"x" * 8, 5000, "truncated, or no safetensors"),
        ({"a": GOOD}, b"x" * 8, 0, "truncated, or no safetensors"),
        ({"a": GOOD}, b"x" * 7, None, "the file is truncated"),
        (b"not json", b"", None, "not valid JSON"),
        (b"[]", b"", None, "must hold a JSON object"),
        ({"a": 3}, b"", None, "entry of 'a' is malformed"),
        ({"a": {**GOOD, "shape": [-2]}}, b"x" * 8, None, "malformed"),
        ({"a": {**GOOD, "shape": [True, 2]}}, b"x" * 8, None, "malformed"),
        ({"a": {**GOOD, "data_offsets": [0]}}, b"x" * 8, None, "malformed"),
        ({"a": {**GOOD, "data_offsets": [8, 0]}}, b"x" * 8, None, "does not fill"),
        ({"a": {**GOOD, "shape": [3]}}, b"x" * 8, None, "does not fill its 8 bytes"),
        ({"a": {"dtype": "F32", "shape": [2]}}, b"x" * 8, None, "malformed"),
    ],
)
def test_malformed_headers(
    tmp_path: Path, header: Any, data: bytes, length: int | None, message: str
) -> None:
    path = write_raw(tmp_path / "model.safetensors", header, data, length=length)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(path)


def test_header_cap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_raw(tmp_path / "model.safetensors", {"a": GOOD}, b"x" * 8)
    assert read_header(path)["a"].shape == (2,)
    monkeypatch.setattr(io, "MAX_HEADER_BYTES", 10)
    with pytest.raises(CheckpointError, match="more than 10"):
        read_header(path)


def test_text_file_with_the_right_name(tmp_path: Path) -> None:
    # What a git checkout without LFS leaves behind.
    (tmp_path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(CheckpointError, match="no safetensors file"):
        open_checkpoint(tmp_path)


@given(st.binary(max_size=200))
def test_no_bytes_crash_the_header_reader(tmp_path_factory: Any, data: bytes) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "model.safetensors"
    path.write_bytes(data)
    try:
        read_header(path)
    except CheckpointError as error:
        assert str(path) in str(error)  # noqa: PT017 - other bytes are fine


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["dtype", "shape", "data_offsets", "__metadata__", "a"]),
                inner,
                max_size=4,
            )
        ),
        max_leaves=8,
    )
)
def test_no_json_crashes_the_header_reader(tmp_path_factory: Any, value: Any) -> None:
    path = write_raw(tmp_path_factory.mktemp("fuzz") / "model.safetensors", {"t": value}, b"x" * 64)
    try:
        entries = read_header(path)
    except CheckpointError as error:
        assert str(path) in str(error)  # noqa: PT017 - other bytes are fine
    else:
        assert entries["t"].shape is not None
