# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Prometheus metrics in the names that people chart already, and the host's iteration statistics.

The names of speculation are vLLM's; the others are those of trtllm-serve, or begin with
`trtllm_ext_` where it has none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from tensorrt_llm_ext.engine.outputs import RequestOutput
from tensorrt_llm_ext.engine.snapshot import EngineSnapshot

_LABELS: Final = ("model_name", "engine")
_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class _EngineCollector(Collector):
    """Reads the engine when it is scraped."""

    def __init__(
        self,
        read: Callable[[], EngineSnapshot],
        inside: Callable[[], int],
        labels: tuple[str, str],
    ) -> None:
        self._read, self._inside, self._labels = read, inside, labels

    def collect(self) -> Iterator[Any]:
        """Yields the families."""
        now = self._read()
        acceptance = now.acceptance
        counters: tuple[tuple[str, str, float], ...] = (
            ("vllm:spec_decode_num_drafts", "Verify steps with drafts.", acceptance.num_steps),
            ("vllm:spec_decode_num_draft_tokens", "Drafted tokens.", acceptance.num_drafted),
            ("vllm:spec_decode_num_accepted_tokens", "Accepted tokens.", acceptance.num_accepted),
            ("trtllm_ext_engine_steps", "Steps of the engine.", now.num_steps),
            ("trtllm_ext_preemptions", "Requests that gave their blocks back.", now.preemptions),
            ("trtllm_ext_nan_rows", "Rows of logits that were NaN.", now.nan_rows),
        )
        for name, help_text, value in counters:
            yield self._one(CounterMetricFamily(name, help_text, labels=_LABELS), value)
        position = CounterMetricFamily(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Accepted tokens by draft position.",
            labels=(*_LABELS, "position"),
        )
        for index, count in enumerate(acceptance.accepted_per_position):
            position.add_metric((*self._labels, str(index)), count)
        yield position
        blocks = now.blocks_total or 1
        gauges: tuple[tuple[str, str, float], ...] = (
            ("trtllm_num_requests_running", "Requests in steps.", now.running),
            ("trtllm_num_requests_waiting", "Requests that wait.", now.waiting),
            ("trtllm_ext_requests_in_flight", "Requests that have no answer yet.", self._inside()),
            ("trtllm_kv_cache_utilization", "Used share of the blocks.", now.blocks_used / blocks),
            ("trtllm_ext_kv_cache_blocks_used", "Blocks in use.", now.blocks_used),
            ("trtllm_ext_kv_cache_blocks", "Blocks of the pool.", now.blocks_total),
            (
                "trtllm_ext_acceptance_length",
                "Tokens per verify step since the start; 0 without one.",
                acceptance.acceptance_length or 0.0,
            ),
            (
                "trtllm_ext_acceptance_rate",
                "Share of drafted tokens that were accepted since the start.",
                acceptance.acceptance_rate or 0.0,
            ),
            (
                "trtllm_ext_draft_overhead",
                "The draft's share of the time of steps; NaN where it is not timed.",
                float("nan") if now.draft_overhead is None else now.draft_overhead,
            ),
        )
        for name, help_text, value in gauges:
            yield self._one(GaugeMetricFamily(name, help_text, labels=_LABELS), value)

    def _one(self, family: Any, value: float) -> Any:
        family.add_metric(self._labels, value)
        return family


@dataclass
class RequestTimes:
    """When what of one request happened, in seconds of a monotonic clock."""

    begin: float = field(default_factory=time.monotonic)
    last: float | None = None
    num_tokens: int = 0


class Metrics:
    """All that one server counts.

    Args:
        model_name: Label of every metric.
        read: Returns the engine's counts.
        inside: Returns the number of requests without an answer.
    """

    def __init__(
        self, model_name: str, read: Callable[[], EngineSnapshot], inside: Callable[[], int]
    ) -> None:
        self.registry = CollectorRegistry()
        self._labels = (model_name, "0")
        self._read = read
        self._last_step = -1
        self.registry.register(_EngineCollector(read, inside, self._labels))

        def histogram(name: str, help_text: str) -> Any:
            made = Histogram(name, help_text, _LABELS, registry=self.registry, buckets=_SECONDS)
            return made.labels(*self._labels)

        self._ttft = histogram("trtllm_time_to_first_token_seconds", "Until the first token.")
        self._itl = histogram("trtllm_time_per_output_token_seconds", "Per token after the first.")
        self._e2e = histogram("trtllm_e2e_request_latency_seconds", "Of whole requests.")
        self._finished = Counter(
            "trtllm_request_success",
            "Finished requests.",
            (*_LABELS, "finished_reason"),
            registry=self.registry,
        )
        self._failed = Counter(
            "trtllm_ext_request_errors",
            "Requests that got an error.",
            (*_LABELS, "status"),
            registry=self.registry,
        )
        self._prompt_tokens = self._counter("trtllm_ext_prompt_tokens", "Tokens of prompts.")
        self._new_tokens = self._counter("trtllm_ext_generation_tokens", "Generated tokens.")

    def _counter(self, name: str, help_text: str) -> Any:
        return Counter(name, help_text, _LABELS, registry=self.registry).labels(*self._labels)

    def saw(self, times: RequestTimes, num_tokens: int) -> None:
        """Notes that a request has so many tokens now."""
        new = num_tokens - times.num_tokens
        if new <= 0:
            return
        now = time.monotonic()
        if times.last is None:
            self._ttft.observe(now - times.begin)
        else:
            for _ in range(new):  # several tokens of one step share its time
                self._itl.observe((now - times.last) / new)
        times.last, times.num_tokens = now, num_tokens

    def finished(self, times: RequestTimes, output: RequestOutput) -> None:
        """Notes the end of a request."""
        self._e2e.observe(time.monotonic() - times.begin)
        self._prompt_tokens.inc(len(output.prompt_token_ids))
        self._new_tokens.inc(sum(len(o.token_ids) for o in output.outputs))
        for choice in output.outputs:
            self._finished.labels(*self._labels, choice.finish_reason or "cancelled").inc()

    def failed(self, status: int) -> None:
        """Notes a request that got an error."""
        self._failed.labels(*self._labels, str(status)).inc()

    def render(self) -> bytes:
        """The text that Prometheus scrapes."""
        text: bytes = generate_latest(self.registry)
        return text

    def iterations(self) -> list[dict[str, Any]]:
        """The host's iteration statistics of the last step, once."""
        now = self._read()
        if now.num_steps == self._last_step:
            return []
        self._last_step = now.num_steps
        acceptance = now.acceptance
        return [
            {
                "iter": now.num_steps,
                "numActiveRequests": now.running,
                "numQueuedRequests": now.waiting,
                "kvCacheStats": {
                    "maxNumBlocks": now.blocks_total,
                    "usedNumBlocks": now.blocks_used,
                    "freeNumBlocks": now.blocks_total - now.blocks_used,
                    "tokensPerBlock": now.block_size,
                },
                "specDecodingStats": {
                    "numDraftTokens": acceptance.num_drafted,
                    "numAcceptedTokens": acceptance.num_accepted,
                    "acceptanceLength": acceptance.acceptance_length or 0.0,
                    "draftOverhead": now.draft_overhead or 0.0,
                },
            }
        ]


__all__ = ["CONTENT_TYPE", "Metrics", "RequestTimes"]
