# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Acceptance counters: which rows count, and what is written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tensorrt_llm_ext.speculative.stats import AcceptanceStats
from tensorrt_llm_ext.trtllm import stats
from tests.trtllm.host import use_host
from tests.trtllm.serving import EXAMPLE, environ, prompts, target_for

PADDING = (1 << 64) - 1
SPEC = SimpleNamespace(max_draft_len=3)
ONE = SimpleNamespace(rank=0, world_size=1, enable_attention_dp=False)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TRTLLM_EXT_ACCEPT_STATS_DIR", str(tmp_path))
    yield tmp_path
    stats.stop()


def a_pass(ids: list[int], lengths: list[int], num_contexts: int, **metadata: Any) -> None:
    """One pass as the host makes it: prepare, forward."""
    spec = SimpleNamespace(request_ids=ids, max_num_requests=8, **metadata)
    stats.mark_rows(spec)
    result = {"new_tokens_lens": torch.tensor(lengths)}
    with stats.outermost() as counts, stats.outermost() as inner:
        assert counts
        assert not inner
        stats.count(result, num_contexts, len(ids), spec)


def last(folder: Path) -> dict[str, Any]:
    (file,) = folder.glob("acceptance-rank*.jsonl")
    return json.loads(file.read_text(encoding="utf-8").splitlines()[-1])


def test_nothing_is_counted_unless_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRTLLM_EXT_ACCEPT_STATS_DIR", raising=False)
    stats.start(SPEC, ONE)
    assert not stats.is_on()
    with stats.outermost() as counts:
        assert not counts


def test_contexts_and_padding_do_not_count(folder: Path) -> None:
    stats.start(SPEC, ONE)
    a_pass([5, 6, 7, PADDING], [1, 4, 2, 4], num_contexts=1)
    stats.stop()
    line = last(folder)
    assert (line["verify_steps"], line["drafted"], line["accepted"]) == (2, 6, 4)
    assert line["steps_per_position"] == [2, 2, 2]
    assert line["accepted_per_position"] == [2, 1, 1]
    assert line["acceptance_length"] == 3.0


def test_shorter_drafts_count_for_their_positions(folder: Path) -> None:
    stats.start(SPEC, ONE)
    a_pass([1], [2], 0, runtime_draft_len=1)
    a_pass([1], [1], 0, runtime_draft_len=0)
    a_pass([1], [3], 0, runtime_draft_len=3)
    stats.stop()
    line = last(folder)
    assert line["steps_per_position"] == [2, 1, 1]
    assert line["accepted_per_position"] == [2, 1, 0]


@given(
    st.lists(
        st.lists(st.tuples(st.booleans(), st.integers(1, 4)), min_size=1, max_size=8),
        min_size=1,
        max_size=4,
    )
)
def test_counters_are_those_of_the_definition(passes: list[list[tuple[bool, int]]]) -> None:
    """Against `speculative.stats`, row by row."""
    wanted = AcceptanceStats()
    recorder = stats.Recorder(file=Path("none"), rank=stats.Rank(), max_draft_len=3, interval=9.0)
    for rows in passes:
        mask = torch.tensor([is_real for is_real, _ in rows])
        recorder.add(torch.tensor([length for _, length in rows]), mask, 3)
        for is_real, length in rows:
            if is_real:
                wanted.record(3, length - 1)
    line = recorder._line(recorder._counters.tolist())
    assert line["verify_steps"] == wanted.num_steps
    assert line["accepted"] == wanted.num_accepted
    if wanted.num_steps:
        assert line["accepted_per_position"] == wanted.accepted_per_position


def test_the_mask_is_one_static_tensor(folder: Path) -> None:
    """A captured graph keeps reading it."""
    stats.start(SPEC, ONE)
    spec = SimpleNamespace(request_ids=[1, 2], max_num_requests=4)
    stats.mark_rows(spec)
    rows = getattr(spec, "_trtllm_ext_counted_rows")  # noqa: B009
    assert rows.tolist() == [True, True, False, False]
    spec.request_ids = [PADDING, 2, 3]
    stats.mark_rows(spec)
    assert rows.tolist() == [False, True, True, False]


@pytest.mark.gpu
def test_a_captured_graph_counts_each_replay(folder: Path) -> None:
    """Counters, mask and lengths are static; only the host side runs before a replay."""
    stats.start(SPEC, ONE)
    lengths = torch.tensor([1, 3, 4], device="cuda")
    states = torch.zeros(1, device="cuda")
    spec = SimpleNamespace(request_ids=[1, 2, PADDING], max_num_requests=4, hidden_states=states)
    stats.mark_rows(spec)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        stats.count({"new_tokens_lens": lengths}, 0, 3, spec)
    for ids in ([1, 2, PADDING], [1, 2, 3], [PADDING, PADDING, PADDING]):
        spec.request_ids = ids
        stats.mark_rows(spec)
        graph.replay()
    lengths.fill_(2)
    stats.mark_rows(spec)
    spec.request_ids = [7, PADDING, PADDING]
    stats.mark_rows(spec)
    graph.replay()
    stats.stop()
    line = last(folder)
    # [1, 3], then [1, 3, 4], then nothing, then [2]
    assert line["verify_steps"] == 6
    assert line["accepted_per_position"] == [4, 3, 1]


def test_lines_are_cumulative_and_written_in_the_background(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRTLLM_EXT_ACCEPT_STATS_INTERVAL", "0.05")
    stats.start(SPEC, ONE)
    for total in (1, 2):
        a_pass([1], [2], 0)
        deadline = time.monotonic() + 5
        # The file is there before its first line is.
        while not any(f.read_text(encoding="utf-8").endswith("\n") for f in folder.iterdir()) or (
            last(folder)["verify_steps"] < total
        ):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    (file,) = folder.iterdir()
    lines = [json.loads(text) for text in file.read_text(encoding="utf-8").splitlines()]
    assert [line["verify_steps"] for line in lines] == [1, 2]


def test_the_last_line_is_written_at_exit(tmp_path: Path) -> None:
    code = """
import torch
from types import SimpleNamespace
from tensorrt_llm_ext.trtllm import stats
stats.start(SimpleNamespace(max_draft_len=2), None)
stats.count({"new_tokens_lens": torch.tensor([3])}, 0, 1, SimpleNamespace())
"""
    variables = {"TRTLLM_EXT_ACCEPT_STATS_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], env={**os.environ, **variables}, check=True)
    assert last(tmp_path)["accepted_per_position"] == [1, 1]


def test_a_folder_that_cannot_be_written_stops_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "file").touch()
    monkeypatch.setenv("TRTLLM_EXT_ACCEPT_STATS_DIR", str(folder / "file"))
    stats.start(SPEC, ONE)
    a_pass([1], [2], 0)
    stats.stop()
    assert "cannot be written" in caplog.text


def test_ranks_are_added_up_under_attention_dp_only(tmp_path: Path) -> None:
    for attention_dp, wanted in ((False, 2), (True, 5)):
        for rank, steps in ((0, 2), (1, 3)):
            line = {
                "rank": rank,
                "attention_dp": attention_dp,
                "steps_per_position": [steps],
                "accepted_per_position": [1],
            }
            path = tmp_path / f"acceptance-rank{rank}-1.jsonl"
            path.write_text("{}\n" + json.dumps(line) + "\n", encoding="utf-8")
        assert stats.read_folder(tmp_path).num_steps == wanted


@pytest.mark.parametrize("era", ["e1", "e3"])
def test_a_double_counts_the_same(era: str, folder: Path, unwrapped: Path) -> None:
    """The double reads results on the host side; without overlap both see the same steps."""
    with use_host(era), environ(TLLM_WORKER_USE_SINGLE_PROCESS="1"):
        from tensorrt_llm import LLM, SamplingParams
        from tensorrt_llm.llmapi.llm_args import EagleDecodingConfig

        from tensorrt_llm_ext.trtllm import stats as in_host
        from tensorrt_llm_ext.trtllm.plugin import register

        register()
        draft = EagleDecodingConfig(max_draft_len=3, speculative_model=str(EXAMPLE / "draft"))
        options = {"disable_overlap_scheduler": True, "speculative_config": draft}
        with LLM(str(target_for(era, unwrapped)), dtype="float32", **options) as llm:
            llm.generate(prompts(4), SamplingParams(max_tokens=24))
            wanted = llm.spec_stats()
        in_host.stop()
    found = stats.read_folder(folder)
    assert found.num_steps == wanted["verify_steps"] > 0
    assert found.num_accepted == wanted["accepted"] > 0
    assert found.accepted_per_position == wanted["per_position"]
