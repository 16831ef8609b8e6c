# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Folders as stores: what they list, what they read, and which references mean what."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrt_llm_ext.checkpoints import hub, store
from tensorrt_llm_ext.checkpoints.io import has_file, open_checkpoint, read_json
from tensorrt_llm_ext.checkpoints.store import (
    FolderStore,
    is_repository,
    map_files,
    open_store,
    safe_file,
)
from tensorrt_llm_ext.errors import CheckpointError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "sub" / "deep").mkdir(parents=True)
    (root / "config.json").write_bytes(b'{"a": 1}')
    (root / "sub" / "deep" / "code.py").write_bytes(b"0123456789")
    (root / "empty").write_bytes(b"")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_bytes(b"secret")
    return root


def test_names_sizes_and_ranges(folder: Path) -> None:
    files = FolderStore(folder)
    assert files.names() == ("config.json", "empty", "sub/deep/code.py")
    assert files.label == str(folder)
    assert files.folder == folder
    assert files.size("sub/deep/code.py") == 10
    assert files.read("sub/deep/code.py", 2, 5) == b"234"
    assert files.read("config.json", 0, 8) == b'{"a": 1}'
    assert files.read("empty", 0, 0) == b""


@given(data=st.data())
def test_any_range(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    content = data.draw(st.binary(max_size=50))
    path = tmp_path_factory.mktemp("range")
    (path / "file").write_bytes(content)
    begin, end = data.draw(st.integers(-3, 60)), data.draw(st.integers(-3, 60))
    files = FolderStore(path)
    if 0 <= begin <= end <= len(content):
        assert files.read("file", begin, end) == content[begin:end]
    else:
        with pytest.raises(CheckpointError, match="are not all in it"):
            files.read("file", begin, end)


@pytest.mark.parametrize(
    "name",
    [
        "../outside/secret",
        "sub/../config.json",
        "/etc/hostname",
        "",
        "sub//deep",
        "a\\b",
        "\0",
        ".",
    ],
)
def test_names_that_leave_the_folder(folder: Path, name: str) -> None:
    files = FolderStore(folder)
    for call in (lambda: files.size(name), lambda: files.read(name, 0, 1)):
        with pytest.raises(CheckpointError, match="not a plain file name"):
            call()


def test_absent_files_and_folders(folder: Path) -> None:
    files = FolderStore(folder)
    with pytest.raises(CheckpointError, match="cannot be read"):
        files.size("absent")
    with pytest.raises(CheckpointError, match="is not a file"):
        files.size("sub")
    os.mkfifo(folder / "pipe")
    with pytest.raises(CheckpointError, match="is not a file"):
        files.read("pipe", 0, 1)  # and does not wait for a writer
    with pytest.raises(CheckpointError, match=r"is not a folder.*hf download"):
        FolderStore(folder / "absent")
    with pytest.raises(CheckpointError, match=r"'x+\.\.\. is not a plain file name"):
        files.size("x" * 5000)


@pytest.mark.parametrize("link", ["link", "sub/link", "sub/deep"])
def test_links_out_of_the_folder(folder: Path, link: str) -> None:
    outside = folder.parent / "outside"
    name = link
    if link == "sub/deep":  # a linked folder in the middle of a path
        (folder / link).rename(folder / "elsewhere")
        (folder / link).symlink_to(outside)
        name = "sub/deep/secret"
    else:
        (folder / link).symlink_to(outside / "secret")
    files = FolderStore(folder)
    with pytest.raises(CheckpointError, match=r"is a link to .*secret, outside the checkpoint"):
        files.read(name, 0, 1)
    assert "sub/deep/secret" not in files.names()  # a linked folder is not entered


def test_links_within_the_folder(folder: Path) -> None:
    (folder / "sub" / "config.json").symlink_to("../config.json")
    assert FolderStore(folder).read("sub/config.json", 0, 1) == b"{"
    assert safe_file(folder, "sub/config.json") == folder / "config.json"


def test_nested_files_of_a_hub_cache(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--org--name" / "snapshots" / "0123abc"
    blobs = tmp_path / "models--org--name" / "blobs"
    (snapshot / "original").mkdir(parents=True)
    blobs.mkdir()
    (blobs / "f00").write_bytes(b"{}")
    (snapshot / "original" / "params.json").symlink_to("../../../blobs/f00")
    assert read_json(snapshot, "original/params.json") == {}


def test_a_file_that_shrinks_while_it_is_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "check_range", lambda *args: None)
    with pytest.raises(CheckpointError, match="became shorter"):
        FolderStore(folder).read("config.json", 0, 100)


def test_unreadable_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(CheckpointError, match=r"cannot be read .*Permission denied"):
        FolderStore(folder).read("config.json", 0, 1)


def test_has_file(folder: Path) -> None:
    (folder / "dangling").symlink_to("nowhere")
    assert has_file(folder, "config.json")
    assert has_file(FolderStore(folder), "dangling")
    assert not has_file(folder, "absent")


class FakeHub:
    """Stands in for `HubStore`, which test_hub.py covers."""

    def __init__(self, repository: str, *, revision: str | None = None) -> None:
        self.repository, self.revision = repository, revision
        if repository == "org/absent":
            raise CheckpointError("org/absent@main does not exist on the hub.")


@pytest.fixture
def fake_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "HubStore", FakeHub)


@pytest.mark.usefixtures("fake_hub")
def test_references(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def meaning(ref: object, **options: object) -> object:
        found = open_store(ref, **options)
        if isinstance(found, FakeHub):
            return found.repository, found.revision
        return found.folder

    monkeypatch.chdir(folder)
    assert meaning(folder) == meaning(str(folder)) == meaning(".") == folder
    assert meaning("sub/deep") == meaning(Path("sub/deep")) == folder / "sub" / "deep"
    assert meaning("hf://sub/deep") == ("sub/deep", None)
    assert meaning("org/name") == ("org/name", None)
    assert meaning("org/name", revision="v1") == ("org/name", "v1")
    assert meaning("hf://org/name@refs/pr/1") == ("org/name", "refs/pr/1")
    assert meaning("hf://org/name@v1", revision="v1") == ("org/name", "v1")
    given_store = FolderStore(folder)
    assert open_store(given_store) is given_store


@pytest.mark.usefixtures("fake_hub")
def test_references_that_are_nothing(folder: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"org/absent is not a folder .* hub was asked: org/a"
    ):
        open_store("org/absent")
    for ref in ("absent", "./org/name", "/org/name", "org/name/more", "org/na me", "", "-o/name"):
        with pytest.raises(CheckpointError, match="is not a folder"):
            open_store(ref)
    for ref in ("hf://", "hf://name", "hf:///org/name", "hf://org/name/x", "hf://org/..@v1"):
        with pytest.raises(CheckpointError, match="is no repository of the hub"):
            open_store(ref)
    with pytest.raises(CheckpointError, match="with one revision"):
        open_store("hf://org/name@v1", revision="v2")
    with pytest.raises(CheckpointError, match="has no revision 'v1'"):
        open_store(folder, revision="v1")
    with pytest.raises(CheckpointError, match="is not a folder"):
        open_store(folder / "config.json")
    with pytest.raises(CheckpointError, match="holds no"):
        open_checkpoint(folder)


@given(st.text(max_size=12))
def test_repository_names_hold_no_path(text: str) -> None:
    if is_repository(text):
        assert text.count("/") == 1
        assert ".." not in text
        assert text.isascii()
        assert not text.startswith((".", "/", "-"))


class Remote(FolderStore):
    """A folder that pretends to be far away."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.folder = None


def test_remote_files_are_read_side_by_side(folder: Path) -> None:
    gate = threading.Barrier(4, timeout=5)

    def meet(item: int) -> int:
        gate.wait()  # passes only when four are here at once
        time.sleep(0.01 * (4 - item))
        return item

    assert map_files(Remote(folder), meet, range(4)) == [0, 1, 2, 3]
    calling = threading.get_ident()
    threads = map_files(FolderStore(folder), lambda _: threading.get_ident(), range(4))
    assert threads == [calling] * 4


def test_the_first_error_ends_the_rest(folder: Path) -> None:
    started = []

    def fail(item: int) -> None:
        started.append(item)
        time.sleep(0.01)
        raise CheckpointError(f"number {item}")

    with pytest.raises(CheckpointError, match="number 0"):
        map_files(Remote(folder), fail, range(500))
    assert len(started) < 100
