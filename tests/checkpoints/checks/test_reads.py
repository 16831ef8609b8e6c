# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""What is read of large checkpoints and of remote ones: headers, small tensors, sampled rows."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tensorrt_llm_ext.checkpoints.checks import run_checks
from tensorrt_llm_ext.checkpoints.checks.base import CheckContext, Finding, Status
from tensorrt_llm_ext.checkpoints.normalize import open_draft, open_target
from tensorrt_llm_ext.checkpoints.store import FolderStore
from tests.checkpoints.checks.cases import OFFSETS, PRUNED, SAME_EMBEDDING, WITH_EMBEDDING, Pair
from tests.support import catalogue
from tests.support.header_only import write_header_only
from tests.support.tiny_checkpoints import model_config

DRAFT, TARGET = "lightseekorg/kimi-k2.5-eagle3-mla", "moonshotai/Kimi-K2.5"
MIB = 1 << 20


class WatchedStore:
    """A folder that notes what is read of it, and may pretend to be on another machine."""

    def __init__(self, path: Path, *, remote: bool = False) -> None:
        self._store = FolderStore(path)
        self.folder = None if remote else self._store.folder
        self.label = "org/name@main" if remote else self._store.label
        self.reads: list[int] = []

    def names(self) -> tuple[str, ...]:
        return self._store.names()

    def size(self, name: str) -> int:
        return self._store.size(name)

    def read(self, name: str, begin: int, end: int) -> bytes:
        self.reads.append(end - begin)
        return self._store.read(name, begin, end)


def watched(folder: Path, *, remote: bool) -> tuple[CheckContext, list[WatchedStore]]:
    """The pair below a folder, opened through stores whose notes are empty."""
    stores = [WatchedStore(folder / name, remote=remote) for name in ("draft", "target")]
    ctx = CheckContext(draft=open_draft(stores[0]), target=open_target(stores[1]))
    for store in stores:
        store.reads.clear()
    return ctx, stores


def of(findings: tuple[Finding, ...], check_id: str) -> list[Finding]:
    return [finding for finding in findings if finding.check_id == check_id]


@pytest.mark.parametrize(("remote", "rows"), [(False, 64), (True, 16)])
def test_fewer_rows_are_asked_of_a_hub(remote: bool, rows: int, tmp_path: Path) -> None:
    Pair(shapes=WITH_EMBEDDING, change=SAME_EMBEDDING)(tmp_path)
    ctx, _ = watched(tmp_path, remote=remote)
    found = of(run_checks(ctx), "V22")
    assert f"equals the target's in {rows} sampled rows" in found[0].message


def test_remote_weights_are_not_loaded(tmp_path: Path) -> None:
    Pair()(tmp_path)
    ctx, _ = watched(tmp_path, remote=True)
    findings = run_checks(dataclasses.replace(ctx, deep=True))
    assert of(findings, "V30")[-1].message == (
        "not checked: weights: org/name@main is remote; download it to have its weights loaded"
    )
    assert not [f for f in findings if f.status in (Status.WARNING, Status.ERROR)]


def test_a_true_size_pair_is_judged_from_a_few_rows(tmp_path: Path) -> None:
    catalogue.build(DRAFT, tmp_path / "draft")
    embedding = {"language_model.model.embed_tokens.weight": ("BF16", (163840, 7168))}
    write_header_only(tmp_path / "target", model_config(TARGET), embedding)
    ctx, stores = watched(tmp_path, remote=False)
    findings = run_checks(ctx)
    assert not [f for f in findings if f.status is Status.ERROR]
    assert "frees 2.19 GiB" in of(findings, "V22")[0].message
    assert "boundaries [2, 30, 58]" in of(findings, "V11")[0].message
    assert "(9-19), most at pair 19 by a factor of 10.240" in of(findings, "V16")[0].message
    assert "softmax scale 0.14468" in of(findings, "V16")[0].message
    reads = [size for store in stores for size in store.reads]
    assert max(reads) <= MIB
    assert sum(reads) < 4 * MIB


def test_a_large_vocabulary_map_waits_for_deep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx = Pair(draft=PRUNED, change={"d2t": OFFSETS})(tmp_path)
    monkeypatch.setattr("tensorrt_llm_ext.checkpoints.checks.vocabulary.MAX_SMALL_BYTES", 100)
    assert of(run_checks(ctx), "V21")[0].message == "not checked: d2t has 384 bytes (doctor --deep)"
    assert of(run_checks(dataclasses.replace(ctx, deep=True)), "V21")[0].status is Status.PASSED
