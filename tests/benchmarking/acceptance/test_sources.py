# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Acceptance from every kind of server: ours, vLLM's and SGLang's metrics, pieces, nothing."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tensorrt_llm_ext import SamplingParams
from tensorrt_llm_ext.benchmarking.acceptance import sglang
from tensorrt_llm_ext.benchmarking.acceptance.dataset import (
    Question,
    as_conversations,
    read_questions,
)
from tensorrt_llm_ext.benchmarking.acceptance.embedded import measure_embedded
from tensorrt_llm_ext.benchmarking.acceptance.measurement import Answer, Measurement
from tensorrt_llm_ext.benchmarking.acceptance.remote import Remote, measure_remote
from tensorrt_llm_ext.errors import ConfigError
from tensorrt_llm_ext.speculative.stats import AcceptanceStats

QUESTIONS = [Question(text=f"question {i}", category="ab"[i % 2]) for i in range(6)]
LATE = 0.4
OPTIONS = {"max_tokens": 16, "temperature": 0.0, "seed": 0}


class Fake(BaseHTTPRequestHandler):
    """A server that tells what its `kind` tells. Each answer has 9 tokens in 4 steps."""

    kind = "silent"
    requests = 0
    stray = 0
    folder: Path | None = None

    def log_message(self, *args: object) -> None:
        pass

    def _send(self, body: str, status: int = 200) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body.encode())

    def do_GET(self) -> None:
        cls = type(self)
        steps, accepted = 3 * cls.requests, 5 * cls.requests
        if self.path == "/v1/models":
            self._send(json.dumps({"data": [{"id": "m"}]}))
        elif self.path == "/metrics" and cls.kind == "vllm":
            lines = [
                "# TYPE vllm:spec_decode_num_drafts_total counter",
                f'vllm:spec_decode_num_drafts_total{{engine="0",model_name="m"}} {steps}.0',
                f'vllm:spec_decode_num_draft_tokens_total{{engine="0"}} {3 * steps}.0',
                f'vllm:spec_decode_num_accepted_tokens_total{{engine="0"}} {accepted}.0',
                f'vllm:request_success_total{{finished_reason="stop"}} {cls.requests}.0',
                f'vllm:request_success_total{{finished_reason="length"}} {cls.stray}.0',
            ]
            name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
            for position, share in enumerate((3, 2, 0)):
                lines.append(f'{name}{{position="{position}"}} {share * cls.requests}.0')
            self._send("\n".join(lines) + "\n")
        elif self.path == "/metrics" and cls.kind == "sglang":
            self._send('sglang:spec_accept_length{model_name="m"} 2.71\n')
        else:
            self._send("{}", 404)

    def do_POST(self) -> None:
        cls = type(self)
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if "return_spec_stats" in body:
            self._send('{"error": {"message": "Unknown field"}}', 400)
            return
        if self.path == "/generate" and cls.kind != "meta_info":
            self._send("{}", 404)
            return
        if cls.kind == "meta_info" and (self.path == "/generate" or "return_meta_info" in body):
            self._send(json.dumps(of_sglang(body)))
            return
        cls.requests += 1
        if cls.kind == "busy":
            cls.stray += 1
        usage = {"prompt_tokens": 5, "completion_tokens": 9}
        if body.get("stream"):
            sizes = (1, 4, 2, 2) if cls.kind == "pieces" else (1,) * 9
            pieces = [{"choices": [{"text": "x" * size}]} for size in sizes]
            pieces.append({"choices": [], "usage": usage})
            text = "".join(f"data: {json.dumps(piece)}\n\n" for piece in pieces)
            self._send(text + "data: [DONE]\n\n")
            return
        if cls.folder is not None:
            line = {"attention_dp": False, "steps_per_position": [4 * cls.requests] * 3}
            line["accepted_per_position"] = [3 * cls.requests, 2 * cls.requests, 0]
            # As the hook does: not in the pass, but by a thread at its interval.
            threading.Timer(LATE, tell, (cls.folder, {**line, "interval": LATE})).start()
        self._send(json.dumps({"choices": [{"text": "an answer"}], "usage": usage}))


def of_sglang(body: dict) -> dict:
    """An answer with 9 tokens in 4 steps, which accepted 3, 1, 0 and 0 drafts."""
    meta = {"prompt_tokens": 5, "completion_tokens": 9, "spec_verify_ct": 4}
    meta |= {"spec_accept_token_num": 4, "spec_draft_token_num": 12}
    meta["spec_accept_histogram"] = [2, 1, 0, 1]
    if "messages" in body:
        message = {"role": "assistant", "content": "an answer"}
        return {"choices": [{"index": 0, "message": message, "meta_info": meta}]}
    assert body["sampling_params"]["temperature"] == 0.0
    return {"text": "an answer", "meta_info": meta}


def tell(folder: Path, line: dict) -> None:
    for rank in (0, 1):
        with (folder / f"acceptance-rank{rank}.jsonl").open("a") as file:
            file.write(json.dumps({**line, "rank": rank}) + "\n")


@contextmanager
def fake(kind: str, folder: Path | None = None) -> Iterator[str]:
    handler = type("Handler", (Fake,), {"kind": kind, "requests": 0, "folder": folder})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def test_vllm_metrics_are_differences() -> None:
    with fake("vllm") as url:
        for _ in range(2):  # the second run starts where the first ended
            run = measure_remote(Remote(base_url=url), QUESTIONS, **OPTIONS)
            assert run.source == "vLLM's metrics at /metrics"
            assert run.stats is not None
            assert (run.stats.num_steps, run.stats.num_accepted) == (18, 30)
            assert run.stats.per_position == [1.0, 2 / 3, 0.0]
            assert run.length is not None
            assert run.length.value == 1 + 30 / 18
            assert run.length.low < run.length.value < run.length.high


def test_other_traffic_is_refused() -> None:
    class Busy(Fake):
        kind = "vllm"

        def do_POST(self) -> None:
            type(self).stray += 1
            super().do_POST()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Busy)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    with pytest.raises(ConfigError, match="finished 12 requests while 6 were asked"):
        measure_remote(Remote(base_url=url), QUESTIONS, **OPTIONS)
    server.shutdown()
    server.server_close()


def test_sglang_tells_a_gauge_without_counts() -> None:
    with fake("sglang") as url:
        run = measure_remote(Remote(base_url=url), QUESTIONS, **OPTIONS)
    assert run.stats is None
    assert run.length is None
    assert "2.710" in run.notes[0]


@pytest.mark.parametrize("is_chat", [False, True])
def test_sglang_tells_every_request(is_chat: bool) -> None:
    questions = as_conversations(QUESTIONS) if is_chat else QUESTIONS
    with fake("meta_info") as url:
        run = measure_remote(Remote(base_url=url), questions, **OPTIONS)
    assert run.source == "SGLang's meta_info in each response"
    assert run.stats is not None
    assert (run.stats.num_steps, run.stats.num_accepted, run.stats.num_drafted) == (24, 24, 72)
    assert run.stats.accepted_per_position == [12, 6, 6]
    assert run.stats.acceptance_length == 2.0
    assert set(run.by_category()) == {"a", "b"}
    assert run.by_context()


@pytest.mark.parametrize(
    ("meta", "want"),
    [
        ({"spec_verify_ct": 3, "completion_tokens": 9}, (3, 5, [])),
        ({"spec_verify_ct": 3, "spec_accepted_drafts": 4, "spec_proposed_drafts": 9}, (3, 4, [])),
        (
            {
                "spec_verify_ct": 3,
                "spec_num_correct_drafts": 4,
                "spec_num_proposed_drafts": 15,
                "spec_correct_drafts_histogram": [1, 0, 2],
            },
            (3, 4, [2, 2, 0, 0, 0]),
        ),
        ({"spec_verify_ct": 0, "completion_tokens": 1}, (0, 0, [])),
    ],
)
def test_every_version_of_sglangs_counts(meta: dict, want: tuple) -> None:
    stats = sglang.stats_of(meta)
    assert stats is not None
    assert (stats.num_steps, stats.num_accepted, stats.accepted_per_position) == want
    assert sglang.stats_of({"completion_tokens": 3}) is None
    assert sglang.stats_of(None) is None


def test_pieces_are_an_estimate() -> None:
    with fake("pieces") as url:
        run = measure_remote(Remote(base_url=url), QUESTIONS, **OPTIONS)
    assert run.is_estimate
    assert run.source == "sizes of stream pieces"
    assert run.stats is not None
    # The first piece is the prompt's token; 8 tokens in 3 steps.
    assert run.stats.acceptance_length == pytest.approx(8 / 3)


def test_a_server_that_tells_nothing() -> None:
    with fake("silent") as url:
        run = measure_remote(Remote(base_url=url), QUESTIONS, **OPTIONS)
    assert run.source == "not reported by this server"
    assert run.length is None


def test_counters_of_the_hook_are_waited_for_and_not_counted_per_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRTLLM_EXT_ACCEPT_STATS_INTERVAL", str(LATE))
    with fake("silent", tmp_path) as url:
        remote = Remote(base_url=url, stats_dir=tmp_path, concurrency=1)
        for _ in range(2):
            run = measure_remote(remote, QUESTIONS, **OPTIONS)
            assert run.stats is not None
            assert (run.stats.num_steps, run.stats.num_accepted) == (24, 30)


def test_a_folder_that_nobody_writes_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRTLLM_EXT_ACCEPT_STATS_INTERVAL", "0.1")
    with fake("silent") as url, pytest.raises(ConfigError, match="counted no verify step"):
        measure_remote(Remote(base_url=url, stats_dir=tmp_path), QUESTIONS, **OPTIONS)


def test_a_server_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match="cannot be reached"):
        measure_remote(Remote(base_url="http://127.0.0.1:9"), QUESTIONS, **OPTIONS)


def test_our_server_tells_what_the_engine_counts() -> None:
    pytest.importorskip("fastapi")
    from tests.server.running import EXAMPLE, make_llm, serving

    questions = read_questions(EXAMPLE / "heldout.jsonl", 12)
    sampling = SamplingParams(max_tokens=40, temperature=0.0)
    with make_llm(max_seq_len=256) as llm:
        for asked in (questions, as_conversations(questions)):
            here = measure_embedded(llm, asked, sampling)
            with serving(llm) as live:
                there = measure_remote(
                    Remote(base_url=live.url), asked, max_tokens=40, temperature=0.0, seed=0
                )
            assert there.source == "counts in each response"
            assert there.has_template == here.has_template == bool(asked[0].messages)
            assert there.stats == here.stats
            assert [a.text for a in there.answers] == [a.text for a in here.answers]
            assert there.length == here.length
            assert there.by_context() == here.by_context()


def stats_of(accepted: list[int]) -> AcceptanceStats:
    stats = AcceptanceStats()
    for count in accepted:
        stats.record(3, count)
    return stats


def test_intervals_resample_whole_requests() -> None:
    """Requests that agree within themselves make a wide interval, steps that are mixed a narrow."""

    def measured(per_request: list[list[int]]) -> Measurement:
        answers, total = [], AcceptanceStats()
        for accepted in per_request:
            stats = stats_of(accepted)
            total.merge(stats)
            answers.append(
                Answer(category="a", num_prompt_tokens=9, num_tokens=9, text="", stats=stats)
            )
        return Measurement(source="test", stats=total, answers=tuple(answers))

    clustered = measured([[3] * 20, [0] * 20] * 6).length
    mixed = measured([[3, 0] * 10] * 12).length
    assert clustered is not None
    assert mixed is not None
    assert clustered.value == mixed.value == 2.5
    assert mixed.high - mixed.low < 1e-9
    assert clustered.high - clustered.low > 0.5


def test_categories_and_contexts() -> None:
    answers = tuple(
        Answer(
            category=category,
            num_prompt_tokens=length,
            num_tokens=10,
            text="",
            stats=stats_of([accepted] * 4),
        )
        for category, length, accepted in (("a", 50, 3), ("b", 1000, 1), ("a", 60, 1))
    )
    run = Measurement(source="test", stats=stats_of([1]), answers=answers)
    assert {n: s.acceptance_length for n, s in run.by_category().items()} == {"a": 3.0, "b": 2.0}
    context = {n: s.acceptance_length for n, s in run.by_context().items()}
    assert context == {"0 to 127": 3.0, "512 to 2047": 2.0}


def test_datasets(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    rows = [{"prompt": "a"}, {"messages": [{"role": "user", "content": "b"}], "category": "c"}]
    rows.append({"question": "How many?"})
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    first, second, third = read_questions(path)
    assert (first.text, second.category, third.text) == ("a", "c", "Question: How many?\nAnswer:")
    assert as_conversations([first])[0].messages == ({"role": "user", "content": "a"},)
    for text, message in (("", "no question"), ("{}", "line 1, has no"), ("{", "is not JSON")):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match=message):
            read_questions(path)
