# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""What goes wrong on the wire: malformed bodies, clients that leave, limits, keys, shutdown."""

from __future__ import annotations

import json
import random
import threading
import time

import httpx
import pytest

from tensorrt_llm_ext import __version__
from tests.server.running import NAME, PROMPT, Running, make_llm, serving

LONG = {"prompt": PROMPT, "max_tokens": 400, "ignore_eos": True, "temperature": 0}


def malformed(count: int) -> list[bytes]:
    """Bodies that are no request, or nearly one."""
    rng = random.Random(4)
    base = {"model": NAME, "prompt": "Hi", "max_tokens": 1}
    odd = [
        None,
        True,
        -1,
        0,
        1.5,
        1e400,
        "",
        "x",
        [],
        [[]],
        [1, "a"],
        {},
        {"a": 1},
        "\ud800",
        -(2**70),
    ]
    names = [
        "prompt",
        "max_tokens",
        "temperature",
        "n",
        "stop",
        "logprobs",
        "seed",
        "stream",
        "top_p",
    ]
    names += ["logit_bias", "messages", "model", "echo", "stream_options", "stop_token_ids", "zzz"]
    out = [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b"\xff\xfe",
        b"{" * 5000,
        b"[" * 100000,
        b'{"prompt":',
    ]
    while len(out) < count:
        body = dict(base)
        for name in rng.sample(names, rng.randint(1, 4)):
            body[name] = rng.choice(odd)
        text = json.dumps(body).encode()
        if rng.random() < 0.2:
            text = text[: rng.randrange(len(text))]
        out.append(text)
    return out[:count]


@pytest.mark.parametrize("count", [200, pytest.param(10_000, marks=pytest.mark.slow)])
def test_malformed_bodies_get_4xx(live: Running, count: int) -> None:
    statuses: dict[int, int] = {}
    with httpx.Client(base_url=live.url, timeout=30) as client:
        for index, body in enumerate(malformed(count)):
            path = ("/v1/completions", "/v1/chat/completions")[index % 2]
            done = client.post(path, content=body)
            statuses[done.status_code] = statuses.get(done.status_code, 0) + 1
            assert done.status_code == 200 or 400 <= done.status_code < 500, (body, done.text)
            if done.status_code != 200:
                error = done.json()["error"]
                assert error["message"]
                assert error["type"]
    assert statuses[400] > count / 2
    live.wait_idle()


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_blocks(live: Running, stream: bool) -> None:
    def leave() -> None:
        with httpx.Client(base_url=live.url, timeout=5) as client:
            if not stream:
                with pytest.raises(httpx.ReadTimeout):
                    client.post("/v1/completions", json=LONG, timeout=0.3)
                return
            with client.stream("POST", "/v1/completions", json={**LONG, "stream": True}) as got:
                next(got.iter_lines())

    steps = live.llm.snapshot.num_steps
    leave()
    live.wait_idle()
    # Far from the 400 tokens that were asked for.
    assert live.llm.snapshot.num_steps - steps < 100


def test_characters_of_several_bytes_are_not_split(live: Running) -> None:
    body = {"prompt": "naïve 你好 🎉", "max_tokens": 60, "seed": 1, "temperature": 2.0}
    with httpx.Client(base_url=live.url, timeout=30) as client:
        whole = client.post("/v1/completions", json=body).json()["choices"][0]["text"]
        got = ""
        with client.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    got += json.loads(line[6:])["choices"][0]["text"]
    assert got == whole


def test_other_routes(live: Running) -> None:
    with httpx.Client(base_url=live.url, timeout=30) as client:
        assert client.get("/health").status_code == 200
        assert client.get("/health_generate").status_code == 200
        assert client.get("/version").json() == {"version": __version__}
        rows = client.get("/metrics").json()
        assert rows[0]["kvCacheStats"]["maxNumBlocks"] > 0
        assert client.get("/metrics").json() == []  # nothing ran since
        missing = client.get("/v1/nothing")
        assert (missing.status_code, missing.json()["error"]["type"]) == (
            404,
            "invalid_request_error",
        )
        assert client.get("/v1/completions").status_code == 405
        given = client.get("/health", headers={"x-request-id": "mine"})
        assert given.headers["x-request-id"] == "mine"


def test_limits_and_key() -> None:
    limits = {"max_body_bytes": 2000, "max_concurrent": 1, "request_seconds": 0.5}
    with make_llm() as llm, serving(llm, api_key="secret", **limits) as live:
        client = httpx.Client(base_url=live.url, timeout=30)
        assert client.get("/v1/models").status_code == 401
        refused = client.post("/v1/completions", json={"prompt": "x"})
        assert refused.json()["error"]["code"] == "invalid_api_key"
        assert client.get("/health").status_code == 200
        client.headers["authorization"] = "Bearer secret"
        assert client.get("/v1/models").status_code == 200
        long = client.post("/v1/completions", json={"prompt": "x" * 5000})
        assert (long.status_code, "2000 bytes" in long.text) == (413, True)
        late = client.post("/v1/completions", json=LONG)
        assert (late.status_code, late.json()["error"]["type"]) == (408, "timeout")
        with client.stream("POST", "/v1/completions", json={**LONG, "stream": True}) as answer:
            lines = [line for line in answer.iter_lines() if line]
            busy = httpx.post(
                f"{live.url}/v1/completions", json={"prompt": "x"}, headers=client.headers
            )
        assert lines[-1] == "data: [DONE]"
        assert json.loads(lines[-2][6:])["error"]["type"] == "timeout"
        assert busy.status_code == 200  # the stream had ended
        live.wait_idle()

        done: list[httpx.Response] = []
        thread = threading.Thread(
            target=lambda: done.append(client.post("/v1/completions", json=LONG))
        )
        thread.start()
        while not live.state.gate.num_inside:
            time.sleep(0.005)
        full = httpx.post(
            f"{live.url}/v1/completions", json={"prompt": "x"}, headers=client.headers
        )
        assert (full.status_code, full.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        thread.join()
        client.close()


@pytest.mark.parametrize("seconds", [0.2, 30.0])
def test_shutdown_finishes_or_fails_every_request(seconds: float) -> None:
    """With time, requests finish; without, they get an error. None is left without an answer."""
    answers: list[httpx.Response] = []
    tokens = 60 if seconds > 1 else 400
    with make_llm() as llm:
        with serving(llm, shutdown_seconds=seconds) as live:

            def ask(stream: bool) -> None:
                body = {**LONG, "max_tokens": tokens, "stream": stream}
                answers.append(httpx.post(f"{live.url}/v1/completions", json=body, timeout=60))

            threads = [threading.Thread(target=ask, args=(i % 2 == 0,)) for i in range(6)]
            for thread in threads:
                thread.start()
            while live.state.gate.num_inside < 6:
                time.sleep(0.01)
        for thread in threads:
            thread.join(30)
        assert len(answers) == 6
        for answer in answers:
            if seconds > 1:
                assert answer.status_code == 200
                assert "error" not in answer.text
            elif answer.status_code == 200:  # a stream tells its error at its end
                assert "shutting down" in answer.text
                assert answer.text.rstrip().endswith("data: [DONE]")
            else:
                assert answer.status_code == 503
                assert "shutting down" in answer.text


def test_the_schema_finds_no_server_error(live: Running) -> None:
    schemathesis = pytest.importorskip("schemathesis")
    from hypothesis import HealthCheck, Phase, given, settings

    schema = schemathesis.openapi.from_url(f"{live.url}/openapi.json")
    for operation in schema.get_all_operations():
        strategy = operation.ok().as_strategy()

        @given(case=strategy)
        @settings(
            max_examples=12,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def check(case) -> None:
            if isinstance(case.body, dict):
                case.body["max_tokens"] = min(case.body.get("max_tokens") or 1, 2)
                case.body.pop("max_completion_tokens", None)
                case.body.pop("n", None)
            response = case.call()
            assert response.status_code < 500, response.text

        check()
    live.wait_idle()
