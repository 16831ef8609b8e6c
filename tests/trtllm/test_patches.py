# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The ledger: every row is accounted for, applies once, and goes where it says."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from tensorrt_llm_ext.trtllm.patches import PATCHES, Patch
from tensorrt_llm_ext.trtllm.versions import SYMBOLS
from tests.trtllm.host import ERAS, use_host

EXPECTED = {
    "e1": ("draft builder", "captured layers", "rows that count"),
    "e2": ("draft builder", "captured layers", "rows that count"),
    "e3": ("captured layers", "rows that count"),
}


def faults(patch: Patch) -> list[str]:
    """What a row of the ledger lacks."""
    found = [f.name for f in fields(patch) if not getattr(patch, f.name)]
    found += [] if patch.upstream.startswith("https://github.com/") else ["upstream"]
    found += [n for n in ("why", "remove_when") if len(getattr(patch, n).split()) < 4]
    return sorted({*found, *(() if patch.target in {s.name for s in SYMBOLS} else ("target",))})


def test_every_row_is_accounted_for() -> None:
    assert {patch.name: faults(patch) for patch in PATCHES if faults(patch)} == {}
    assert len({patch.name for patch in PATCHES}) == len(PATCHES)


@pytest.mark.parametrize("name", ["why", "upstream", "remove_when"])
def test_a_row_without_its_reasons_is_refused(name: str) -> None:
    assert name in faults(replace(PATCHES[0], **{name: ""}))


@pytest.mark.parametrize("era", ERAS)
def test_patches_apply_once(era: str) -> None:
    with use_host(era):
        from tensorrt_llm_ext.trtllm import patches
        from tensorrt_llm_ext.trtllm.host import host

        before = {p.name: host().symbol(p.target) for p in patches.needed_patches(host())}
        assert patches.apply_patches(host()) == EXPECTED[era]
        assert patches.apply_patches(host()) == EXPECTED[era]
        for patch in patches.needed_patches(host()):
            after = host().symbol(patch.target)
            assert after is not before[patch.name]
            assert patches.original(after) is before[patch.name]
            assert after.__wrapped__ is before[patch.name]


def test_a_missing_target_is_an_error_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with use_host("e1"):
        from tensorrt_llm_ext.errors import HostError
        from tensorrt_llm_ext.trtllm import patches
        from tensorrt_llm_ext.trtllm.host import host

        found = host().find("get_draft_model")
        monkeypatch.delattr(found.owner, found.attribute)
        with pytest.raises(HostError, match="'draft builder' finds no get_draft_model"):
            patches.apply_patches(host())
