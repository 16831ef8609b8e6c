# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""A hub's repository is read by ranges, never as a whole; every refusal says what to do."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tensorrt_llm_ext.checkpoints import hub as hub_module
from tensorrt_llm_ext.checkpoints.hub import HubStore
from tensorrt_llm_ext.checkpoints.io import (
    INDEX_NAME,
    has_file,
    open_checkpoint,
    read_json,
)
from tensorrt_llm_ext.checkpoints.rows import read_rows, read_tensor
from tensorrt_llm_ext.checkpoints.source import SafetensorsSource
from tensorrt_llm_ext.checkpoints.store import open_store
from tensorrt_llm_ext.checkpoints.writer import save_checkpoint
from tensorrt_llm_ext.errors import CheckpointError
from tests.support.hub_stub import COMMIT, HubStub, serve

huggingface_hub = pytest.importorskip("huggingface_hub")

GENERATOR = torch.manual_seed(1)
TENSORS = {f"layer.{i}.weight": torch.randn(64, 32, generator=GENERATOR) for i in range(6)}
TENSORS["norm"] = torch.randn(32, generator=GENERATOR).bfloat16()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three shards, an index, config.json and a file in a folder."""
    path = tmp_path_factory.mktemp("hub") / "draft"
    save_checkpoint(path, {"model_type": "x"}, TENSORS, max_shard_bytes=20_000)
    (path / "original").mkdir()
    (path / "original" / "params.json").write_text("{}")
    return path


@pytest.fixture
def hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubStub]:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    stub = HubStub()
    stub.add_folder(folder)
    with serve(stub):
        yield stub


def store_of(hub: HubStub, **options: object) -> HubStore:
    return HubStore("org/name", endpoint=hub.endpoint, retry_wait=0.001, **options)


def test_same_answers_as_the_folder(hub: HubStub, folder: Path) -> None:
    store, local = store_of(hub), open_store(folder)
    assert store.label == "org/name@main"
    assert store.folder is None
    assert store.names() == local.names()
    assert "original/params.json" in store.names()
    assert read_json(store, "config.json") == {"model_type": "x"}
    assert read_json(store, "original/params.json") == {}
    assert has_file(store, INDEX_NAME)
    assert not has_file(store, "hf_quant_config.json")
    remote, here = open_checkpoint(store), open_checkpoint(folder)
    assert remote.folder == Path("org/name@main")
    assert remote.store is store
    assert remote.entries.keys() == here.entries.keys()
    for name, entry in here.entries.items():
        other = remote.entries[name]
        assert other.file == Path(entry.file.name)
        assert other[1:] == entry[1:]
        assert torch.equal(read_tensor(remote, name), TENSORS[name])
    assert torch.equal(
        read_rows(remote, "layer.2.weight", [63, 1, 2]), TENSORS["layer.2.weight"][[63, 1, 2]]
    )
    # Everything came from one commit, with the user's token.
    assert all(f"/resolve/{COMMIT}/" in request.path for request in hub.file_requests())
    assert {request.token for request in hub.requests} == {"Bearer hf_secret"}


def big_file(path: Path, headers: int) -> tuple[int, int]:
    """Writes a sparse file of 40 GB with `headers` tensors; returns header size and its offset."""
    entries, offset = {}, 0
    for index in range(headers):
        size = 40_000_000_000 // headers
        entries[f"layers.{index}.weight"] = {
            "dtype": "U8",
            "shape": [size // 1000, 1000],
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(entries).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + offset)
    return len(text), offset


@pytest.mark.parametrize("count", [10, 2000])
def test_only_headers_and_rows_travel(hub: HubStub, tmp_path: Path, count: int) -> None:
    hub.files.clear()
    header, data = big_file(tmp_path / "model.safetensors", count)
    hub.add_folder(tmp_path)
    store = store_of(hub)
    files = open_checkpoint(store)
    assert len(files.entries) == count
    assert sum(entry.nbytes for entry in files.entries.values()) == data == 40_000_000_000
    asked = hub.file_requests()
    assert len(asked) == (1 if header < 65_000 else 2)
    assert hub.sent == max(header + 8, 1 << 16)
    before = hub.sent
    assert read_rows(files, "layers.7.weight", [5, 6, 7, 900]).shape == (4, 1000)
    assert hub.sent - before == 4000
    assert len(hub.file_requests()) == len(asked) + 2
    with pytest.raises(CheckpointError, match="more than the 1048576"):
        read_tensor(files, "layers.7.weight")
    monstrous = 40_000_000_000 // count > hub_module.MAX_READ_BYTES
    if monstrous:
        with pytest.raises(CheckpointError, match="at most 67108864 are read over the network"):
            read_tensor(files, "layers.7.weight", allow_large=True)
    assert hub.sent - before == 4000


def test_many_shards_are_read_side_by_side(hub: HubStub, tmp_path: Path) -> None:
    for number in range(1, 65):
        name = f"model-{number:05d}-of-00064.safetensors"
        save_file({f"layer.{number}": torch.ones(2)}, tmp_path / name)
    hub.files.clear()
    hub.add_folder(tmp_path)
    files = open_checkpoint(store_of(hub))
    assert list(files.entries) == [f"layer.{number}" for number in range(1, 65)]
    assert len(hub.file_requests()) == 64
    hub.refuse_files = (404, "EntryNotFound", "Entry not found")
    with pytest.raises(CheckpointError, match="a listed file is gone"):
        open_checkpoint(store_of(hub))


def test_redirects_keep_the_range_and_drop_the_token(hub: HubStub, folder: Path) -> None:
    cdn = HubStub(files=dict(hub.files))
    with serve(cdn):
        hub.cdn = cdn.endpoint.replace("127.0.0.1", "localhost")
        files = open_checkpoint(store_of(hub))
        assert torch.equal(read_rows(files, "norm", [3]), TENSORS["norm"][[3]])
    assert hub.sent == 0
    assert cdn.requests
    assert all(request.range for request in cdn.requests)
    assert {request.token for request in cdn.requests} == {None}
    assert cdn.requests[-1].sent == 2


def test_servers_that_ignore_ranges(hub: HubStub, tmp_path: Path) -> None:
    hub.files.clear()
    header, _ = big_file(tmp_path / "model.safetensors", 2000)
    hub.add_folder(tmp_path)
    hub.files["config.json"] = b'{"a": 1}'
    hub.ranges = False
    store = store_of(hub)
    assert read_json(store, "config.json") == {"a": 1}
    files = open_checkpoint(store)  # its header lies at the start, and the rest is cut off
    assert len(files.entries) == 2000
    assert header > 1 << 16  # so a part of it was asked for from its middle
    assert hub.sent < 64 << 20  # what socket buffers hold, of twice 40 GB
    with pytest.raises(CheckpointError, match=r"ignores range requests.*hf download org/name"):
        read_rows(files, "layers.1999.weight", [0])


def test_transient_failures_are_tried_again(hub: HubStub) -> None:
    store = store_of(hub)
    hub.failures = 2
    assert read_json(store, "config.json") == {"model_type": "x"}
    hub.failures = 3
    with pytest.raises(CheckpointError, match=r"does not answer for org/name@main .*status 503"):
        read_json(store, "config.json")


@pytest.mark.parametrize("ranges", [True, False])
def test_truncated_answers(hub: HubStub, ranges: bool) -> None:
    store = store_of(hub)
    hub.truncate, hub.ranges = 3, ranges
    before = len(hub.requests)
    with pytest.raises(CheckpointError, match="does not answer for org/name@main"):
        read_json(store, "config.json")
    assert len(hub.requests) == before + 3


@pytest.mark.parametrize("sent", ["bytes 1-9/10", "bytes 00-1/2", "pages 0-1"])
def test_another_range_than_asked_for(hub: HubStub, sent: str) -> None:
    hub.content_range = sent
    with pytest.raises(CheckpointError, match=f"sends '{sent}' of org/name@main/config.json"):
        read_json(store_of(hub), "config.json")


def test_compressed_answers_are_refused(hub: HubStub) -> None:
    hub.extra_headers = {"Content-Encoding": "gzip"}
    with pytest.raises(CheckpointError, match="compressed"):
        read_json(store_of(hub), "config.json")


REFUSALS = [
    ((401, "RepoNotFound", "Repository not found"), r"does not exist .* private.*hf auth login"),
    ((404, "RepoNotFound", "Repository not found"), r"does not exist .* private.*hf auth login"),
    ((401, "", "Invalid username or password."), r"does not exist .* private.*hf auth login"),
    ((401, "GatedRepo", "Access is restricted"), r"is gated\. Accept its terms.*hf auth login"),
    ((403, "GatedRepo", "Access is restricted"), r"is gated\. Accept its terms.*hf auth login"),
    ((403, "", "forbidden"), r"status 403.*hf auth login"),
    ((404, "RevisionNotFound", "Invalid rev id"), "no such revision"),
    ((416, "", ""), r"shorter than the hub says"),
    ((418, "", "teapot"), r"answers status 418.*hf download org/name"),
    ((500, "", "oops"), r"does not answer .*status 500.*HF_ENDPOINT"),
]


@pytest.mark.parametrize(("refusal", "message"), REFUSALS)
def test_refusals(hub: HubStub, refusal: tuple[int, str, str], message: str) -> None:
    hub.refuse = refusal
    with pytest.raises(CheckpointError, match=message):
        store_of(hub)
    hub.refuse = None
    store = store_of(hub)
    hub.refuse_files = refusal
    with pytest.raises(CheckpointError, match=message):
        store.read("config.json", 0, 2)


def test_revisions(hub: HubStub) -> None:
    store = store_of(hub, revision="v1")
    assert store.label == "org/name@v1"
    assert store.commit == COMMIT
    with pytest.raises(CheckpointError, match="org/name@v2: the repository has no such revision"):
        store_of(hub, revision="v2")


def test_no_network() -> None:
    with socket.socket() as closed:  # bound but not listening: nobody else gets the port
        closed.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(CheckpointError, match=r"does not answer .*Check the network"):
            HubStore("org/name", endpoint=endpoint)


@pytest.mark.parametrize("endpoint", ["no-scheme", "http://[", "http://127.0.0.1:99999"])
def test_malformed_endpoints(endpoint: str) -> None:
    with pytest.raises(CheckpointError, match="HF_ENDPOINT"):
        HubStore("org/name", endpoint=endpoint)


def test_timeout() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(CheckpointError, match=r"does not answer .*Timeout"):
            HubStore("org/name", endpoint=endpoint, timeout=0.1)


def test_slow_answers_end(hub: HubStub, monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_of(hub)
    monkeypatch.setattr(hub_module, "_MAX_SECONDS", -1.0)
    monkeypatch.setattr(hub_module, "_CHUNK", 100)
    with pytest.raises(CheckpointError, match=r"only 100 of \d+ bytes came within"):
        store.read(INDEX_NAME, 0, 300)


@pytest.mark.parametrize("info", [b"<html>", b"[]", b'{"siblings": [{}]}', b"{}", b"[" * 99_999])
def test_something_else_answers(hub: HubStub, info: bytes) -> None:
    hub.info = info
    with pytest.raises(CheckpointError, match=r"is no hub.*HF_ENDPOINT"):
        store_of(hub)


def test_offline_mode(hub: HubStub, monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_of(hub)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    # Before 1.0 a session decided when it was made.
    getattr(huggingface_hub.utils, "reset_sessions", lambda: None)()
    for call in (lambda: store_of(hub), lambda: store.read("config.json", 0, 2)):
        with pytest.raises(CheckpointError, match=r"HF_HUB_OFFLINE.*hf download org/name"):
            call()
    getattr(huggingface_hub.utils, "reset_sessions", lambda: None)()


def test_without_huggingface_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(CheckpointError, match="needs huggingface_hub"):
        HubStore("org/name")


def test_names_and_ranges(hub: HubStub) -> None:
    hub.files["empty.json"] = b""
    store = store_of(hub)
    assert store.read("empty.json", 0, 0) == b""
    assert not hub.file_requests()
    for name in ("../config.json", "/config.json", "", "a\\b"):
        with pytest.raises(CheckpointError, match="not a plain file name"):
            store.size(name)
    with pytest.raises(CheckpointError, match=r"has no file 'other\.json'"):
        store.read("other.json", 0, 1)
    hub.info = b'{"id": "a/b", "sha": "1", "siblings": [{"rfilename": "x", "size": "big"}]}'
    with pytest.raises(CheckpointError, match="does not tell the size of org/name@main/x"):
        store_of(hub).size("x")
    for begin, end in ((-1, 2), (3, 2), (0, 10_000)):
        with pytest.raises(CheckpointError, match="are not all in it"):
            store.read("config.json", begin, end)


def test_weights_are_not_loaded_from_the_hub(hub: HubStub) -> None:
    source = SafetensorsSource(open_checkpoint(store_of(hub)), label="draft")
    with pytest.raises(CheckpointError, match=r"draft: org/name@main is on the hub.*hf download"):
        source.take("norm", (32,))


def test_endpoint_and_references(hub: HubStub, folder: Path, tmp_path: Path) -> None:
    """HF_ENDPOINT is read when huggingface_hub is imported, so this takes a fresh interpreter."""
    code = """
from tensorrt_llm_ext.checkpoints.io import open_checkpoint, read_json
from tensorrt_llm_ext.checkpoints.store import open_store
from tensorrt_llm_ext.errors import CheckpointError
for ref in ("org/name", "hf://org/name", "hf://org/name@v1"):
    print(open_store(ref).label, len(open_checkpoint(ref).entries), read_json(ref, "config.json"))
print(open_store("org/name", revision="v1").label)
for ref in ("org/other", "hf://org/name@v2", "hf://name", "hf://../x"):
    try:
        open_store(ref)
    except CheckpointError as error:
        print(error)
"""
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={
            **os.environ,
            "HF_ENDPOINT": hub.endpoint,
            "HF_HUB_OFFLINE": "0",
            "HF_HOME": str(tmp_path),
            "PYTHONPATH": str(Path(__file__).parents[2]),
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = result.stdout.splitlines()
    assert lines[:4] == [
        f"org/name@main {len(TENSORS)} {{'model_type': 'x'}}",
        f"org/name@main {len(TENSORS)} {{'model_type': 'x'}}",
        f"org/name@v1 {len(TENSORS)} {{'model_type': 'x'}}",
        "org/name@v1",
    ]
    assert lines[4].startswith("org/other is not a folder of this machine, so the hub was asked:")
    assert "hf auth login" in lines[4]
    assert "no such revision" in lines[5]
    assert all("is no repository of the hub" in line for line in lines[6:])
    assert len(lines) == 8
    assert not list(tmp_path.iterdir())  # nothing was cached
