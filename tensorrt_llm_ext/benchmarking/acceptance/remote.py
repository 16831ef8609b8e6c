# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Acceptance on any server with OpenAI's API, by what it tells of it."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorrt_llm_ext.benchmarking.acceptance import sglang
from tensorrt_llm_ext.benchmarking.acceptance.dataset import Question
from tensorrt_llm_ext.benchmarking.acceptance.measurement import Answer, Measurement
from tensorrt_llm_ext.errors import ConfigError
from tensorrt_llm_ext.speculative.stats import AcceptanceStats
from tensorrt_llm_ext.trtllm.stats import read_settled

_VLLM = "vllm:spec_decode_num"
_SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{([^}]*)\})? (\S+)", re.MULTILINE)
_POSITION = re.compile(r'position="(\d+)"')


@dataclass(frozen=True, kw_only=True)
class Remote:
    """A server and how it is asked.

    Attributes:
        base_url: Without /v1.
        model: Name; asked for when None.
        api_key: Bearer token.
        stats_dir: Folder that this package's hook in trtllm-serve writes to.
        concurrency: Requests at once.
        seconds: Limit of one request.
    """

    base_url: str
    model: str | None = None
    api_key: str | None = None
    stats_dir: Path | None = None
    concurrency: int = 8
    seconds: float = 600.0

    def get(self, path: str) -> str:
        """Reads a route."""
        return self._send(urllib.request.Request(self._url(path), headers=self._headers()))

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Sends a request and reads the answer."""
        answer: dict[str, Any] = json.loads(self._send(self._request(path, body)))
        return answer

    def pieces(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """Sends a request that streams, and reads all pieces."""
        text = self._send(self._request(path, {**body, "stream": True}))
        lines = [line[5:].strip() for line in text.splitlines() if line.startswith("data:")]
        return [json.loads(line) for line in lines if line != "[DONE]"]

    def model_name(self) -> str:
        """The model that is asked."""
        if self.model is not None:
            return self.model
        models = json.loads(self.get("/v1/models"))["data"]
        if len(models) != 1:
            names = ", ".join(model["id"] for model in models)
            raise ConfigError(f"The server has several models: {names}. Say which with --model.")
        name: str = models[0]["id"]
        return name

    def _url(self, path: str) -> str:
        return self.base_url.rstrip("/").removesuffix("/v1") + path

    def _headers(self) -> dict[str, str]:
        key = {} if self.api_key is None else {"Authorization": f"Bearer {self.api_key}"}
        return {"Content-Type": "application/json", **key}

    def _request(self, path: str, body: dict[str, Any]) -> urllib.request.Request:
        data = json.dumps(body).encode()
        return urllib.request.Request(self._url(path), data=data, headers=self._headers())

    def _send(self, request: urllib.request.Request) -> str:
        try:
            with urllib.request.urlopen(request, timeout=self.seconds) as answer:
                text: str = answer.read().decode("utf-8")
                return text
        except urllib.error.HTTPError as error:
            detail = error.read().decode("utf-8", "replace")[:300]
            raise ConfigError(f"{request.full_url} answers {error.code}: {detail}") from error
        except OSError as error:
            raise ConfigError(f"{request.full_url} cannot be reached: {error}") from error


def measure_remote(
    remote: Remote,
    questions: Sequence[Question],
    *,
    max_tokens: int,
    temperature: float,
    seed: int,
    progress: Callable[[int], None] = lambda _: None,
) -> Measurement:
    """Asks all questions and takes acceptance from the best source that the server has.

    In this order: the folder of this package's hook, counts in each response (trtllm-ext serve,
    then SGLang), vLLM's metrics, SGLang's gauge, sizes of stream pieces one request at a time (an
    estimate), nothing.

    Raises:
        ConfigError: If the server cannot be asked, or other traffic ran meanwhile.
    """
    sampling = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed}
    client = _Client(remote, remote.model_name(), sampling)
    has_template = all(q.messages for q in questions)
    if remote.stats_dir is not None:
        before = read_settled(remote.stats_dir)
        answers = client.all(questions, progress)
        stats = _difference(read_settled(remote.stats_dir), before)
        if not stats.num_steps:
            raise ConfigError(
                f"{remote.stats_dir} counted no verify step of {len(questions)} requests. Set "
                "TRTLLM_EXT_ACCEPT_STATS_DIR to this folder in env_overrides of the server's YAML, "
                "and see that trtllm-ext doctor --trtllm finds the hook."
            )
        return Measurement(
            source=f"counters of trtllm-serve in {remote.stats_dir}",
            stats=stats,
            answers=answers,
            has_template=has_template,
            notes=(
                "The overlap scheduler runs one more step for each request that ended; its drafts "
                "count as refused.",
            ),
        )
    if client.tells_spec_stats(questions[0]):
        answers = client.all(questions, progress, extra={"return_spec_stats": True})
        total = AcceptanceStats()
        for answer in answers:
            total.merge(answer.stats or AcceptanceStats())
        return Measurement(
            source="counts in each response",
            stats=total,
            answers=answers,
            has_template=has_template,
        )
    if client.is_sglang(questions[0]):
        return _by_meta_info(client, questions, progress, has_template)
    path = metrics_path(remote)
    if path is not None:
        return _by_metrics(client, questions, path, progress, has_template)
    return _by_pieces(client, questions, progress, has_template)


class _Client:
    def __init__(self, remote: Remote, model: str, sampling: dict[str, Any]) -> None:
        self.remote, self.model, self.sampling = remote, model, sampling

    def body(self, question: Question) -> tuple[str, dict[str, Any]]:
        common = {"model": self.model, **self.sampling}
        if question.messages:
            return "/v1/chat/completions", {**common, "messages": list(question.messages)}
        return "/v1/completions", {**common, "prompt": question.text}

    def ask(self, question: Question, extra: dict[str, Any] | None = None) -> Answer:
        path, body = self.body(question)
        answer = self.remote.post(path, {**body, **(extra or {})})
        choice, usage = answer["choices"][0], answer.get("usage") or {}
        text = choice["message"]["content"] if question.messages else choice["text"]
        return Answer(
            category=question.category,
            num_prompt_tokens=int(usage.get("prompt_tokens", 0)),
            num_tokens=int(usage.get("completion_tokens", 0)),
            text=text or "",
            stats=_told(answer.get("spec_stats")),
        )

    def all(
        self,
        questions: Sequence[Question],
        progress: Callable[[int], None],
        extra: dict[str, Any] | None = None,
        ask: Callable[[Question], Answer] | None = None,
    ) -> tuple[Answer, ...]:
        with ThreadPoolExecutor(self.remote.concurrency) as pool:
            answers = []
            for answer in pool.map(ask or (lambda q: self.ask(q, extra)), questions):
                answers.append(answer)
                progress(1)
            return tuple(answers)

    def tells_spec_stats(self, question: Question) -> bool:
        path, body = self.body(question)
        try:
            answer = self.remote.post(path, {**body, "max_tokens": 2, "return_spec_stats": True})
        except ConfigError:
            return False
        return isinstance(answer.get("spec_stats"), dict)

    def is_sglang(self, question: Question) -> bool:
        """Whether answers carry SGLang's counts."""
        try:
            return self.ask_sglang(question, max_tokens=2).stats is not None
        except (ConfigError, LookupError, TypeError):  # another server, with answers of its own
            return False

    def ask_sglang(self, question: Question, max_tokens: int | None = None) -> Answer:
        """Asks the chat route, or the native one for a raw prompt: it alone tells counts then."""
        path, body = self.body(question)
        length = max_tokens or self.sampling["max_tokens"]
        if question.messages:
            asked = {**body, "max_tokens": length, sglang.CHAT_FIELD: True}
            (choice,) = self.remote.post(path, asked)["choices"]
            text, meta = choice["message"]["content"], choice["meta_info"]
        else:
            native = sglang.native_body(question.text or "", length, self.sampling["temperature"])
            answer = self.remote.post(sglang.NATIVE_ROUTE, native)
            text, meta = answer["text"], answer["meta_info"]
        return Answer(
            category=question.category,
            num_prompt_tokens=int(meta.get("prompt_tokens", 0)),
            num_tokens=int(meta.get("completion_tokens", 0)),
            text=text or "",
            stats=sglang.stats_of(meta),
        )


def _by_meta_info(
    client: _Client,
    questions: Sequence[Question],
    progress: Callable[[int], None],
    has_template: bool,
) -> Measurement:
    total, answers = AcceptanceStats(), client.all(questions, progress, ask=client.ask_sglang)
    for answer in answers:
        total.merge(answer.stats or AcceptanceStats())
    return Measurement(
        source="SGLang's meta_info in each response",
        stats=total,
        answers=answers,
        has_template=has_template,
        notes=("SGLang's own length is tokens per verify step, which is a little higher.",),
    )


def _told(stats: dict[str, Any] | None) -> AcceptanceStats | None:
    if not stats:
        return None
    accepted = [int(count) for count in stats["num_accepted_tokens_per_pos"]]
    steps = int(stats["num_drafts"])
    return AcceptanceStats(
        num_steps=steps,
        num_drafted=int(stats["num_draft_tokens"]),
        num_accepted=int(stats["num_accepted_tokens"]),
        steps_per_position=[steps] * len(accepted),
        accepted_per_position=accepted,
    )


def metrics_path(remote: Remote) -> str | None:
    """Where the server tells its metrics of speculation, or None."""
    for path in ("/metrics", "/prometheus/metrics"):
        try:
            text = remote.get(path)
        except ConfigError:
            continue
        if _VLLM in text or "spec_accept_length" in text:
            return path
    return None


def _by_metrics(
    client: _Client,
    questions: Sequence[Question],
    path: str,
    progress: Callable[[int], None],
    has_template: bool,
) -> Measurement:
    remote = client.remote
    before = remote.get(path)
    answers = client.all(questions, progress)
    after = remote.get(path)
    if _VLLM in after:
        _check_alone(before, after, len(questions))
        stats = _difference(read_vllm(after), read_vllm(before))
        return Measurement(
            source=f"vLLM's metrics at {path}",
            stats=stats,
            answers=answers,
            has_template=has_template,
        )
    gauge = [float(v) for name, _, v in _SAMPLE.findall(after) if "spec_accept_length" in name]
    return Measurement(
        source=f"SGLang's gauge at {path}",
        answers=answers,
        has_template=has_template,
        notes=(f"spec_accept_length is {gauge[0]:.3f} over its last window; no counts are told.",),
    )


def read_vllm(text: str) -> AcceptanceStats:
    """Reads vLLM's counters of speculation from a page of metrics."""
    sums: dict[str, float] = {}
    positions: dict[int, float] = {}
    for name, labels, value in _SAMPLE.findall(text):
        if not name.startswith(_VLLM) or not name.endswith(("_total", "_per_pos")):
            continue
        found = _POSITION.search(labels)
        if found:
            positions[int(found[1])] = positions.get(int(found[1]), 0.0) + float(value)
        else:
            sums[name] = sums.get(name, 0.0) + float(value)
    steps = int(sums.get(f"{_VLLM}_drafts_total", 0))
    accepted = [int(positions[index]) for index in sorted(positions)]
    return AcceptanceStats(
        num_steps=steps,
        num_drafted=int(sums.get(f"{_VLLM}_draft_tokens_total", 0)),
        num_accepted=int(sums.get(f"{_VLLM}_accepted_tokens_total", 0)),
        steps_per_position=[steps] * len(accepted),
        accepted_per_position=accepted,
    )


def _check_alone(before: str, after: str, num_requests: int) -> None:
    """Refuses counts in which other requests had a part."""

    def finished(text: str) -> float | None:
        found = [
            float(value)
            for name, _, value in _SAMPLE.findall(text)
            if name in ("vllm:request_success_total", "trtllm_request_success_total")
        ]
        return sum(found) if found else None

    then, now = finished(before) or 0.0, finished(after)
    if now is not None and now - then != num_requests:
        raise ConfigError(
            f"The server finished {now - then:.0f} requests while {num_requests} were asked: other "
            "traffic is in its counters. Measure on a server that nobody else uses."
        )


def _difference(after: AcceptanceStats, before: AcceptanceStats) -> AcceptanceStats:
    def minus(a: list[int], b: list[int]) -> list[int]:
        return [x - (b[i] if i < len(b) else 0) for i, x in enumerate(a)]

    return AcceptanceStats(
        num_steps=after.num_steps - before.num_steps,
        num_drafted=after.num_drafted - before.num_drafted,
        num_accepted=after.num_accepted - before.num_accepted,
        steps_per_position=minus(after.steps_per_position, before.steps_per_position),
        accepted_per_position=minus(after.accepted_per_position, before.accepted_per_position),
    )


def _by_pieces(
    client: _Client,
    questions: Sequence[Question],
    progress: Callable[[int], None],
    has_template: bool,
) -> Measurement:
    """One request at a time: the tokens of a step are the tokens of a piece, if all is well."""
    answers, total = [], AcceptanceStats()
    for question in questions:
        path, body = client.body(question)
        options = {"stream_options": {"include_usage": True}}
        pieces = client.remote.pieces(path, {**body, **options})
        usage = next((p["usage"] for p in reversed(pieces) if p.get("usage")), None)
        texts = [_delta(piece) for piece in pieces if piece.get("choices")]
        steps = sum(bool(text) for text in texts) - 1  # the first piece is the prompt's token
        tokens = int(usage["completion_tokens"]) if usage else 0
        stats = None
        if usage and steps > 0:
            accepted = max(tokens - 1 - steps, 0)
            stats = AcceptanceStats(num_steps=steps, num_accepted=accepted)
            total.merge(stats)
        answers.append(
            Answer(
                category=question.category,
                num_prompt_tokens=int(usage["prompt_tokens"]) if usage else 0,
                num_tokens=tokens,
                text="".join(texts),
                stats=stats,
            )
        )
        progress(1)
    if not total.num_accepted:
        return Measurement(
            source="not reported by this server", answers=tuple(answers), has_template=has_template
        )
    return Measurement(
        source="sizes of stream pieces",
        is_estimate=True,
        stats=total,
        answers=tuple(answers),
        has_template=has_template,
        notes=("Pieces that end inside a character or a stop string make it a little too high.",),
    )


def _delta(piece: dict[str, Any]) -> str:
    choice = piece["choices"][0]
    delta = choice.get("delta")
    text = delta.get("content") if isinstance(delta, dict) else choice.get("text")
    return text or ""


__all__ = ["Remote", "measure_remote", "metrics_path", "read_vllm"]
