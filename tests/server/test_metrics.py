# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Metrics have the names that people chart, count what happened, and feed the dashboard."""

from __future__ import annotations

import json
import re
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.server.running import NAME, PROMPT, Running, make_llm, serving

DASHBOARD = Path(__file__).parents[2] / "dashboards" / "trtllm_ext.json"
LABELS = {"model_name": NAME, "engine": "0"}
CHARTED = (
    "vllm:spec_decode_num_drafts_total",
    "vllm:spec_decode_num_draft_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_per_pos_total",
    "trtllm_num_requests_running",
    "trtllm_num_requests_waiting",
    "trtllm_kv_cache_utilization",
    "trtllm_time_to_first_token_seconds_bucket",
    "trtllm_time_per_output_token_seconds_bucket",
    "trtllm_e2e_request_latency_seconds_bucket",
    "trtllm_request_success_total",
)


def samples(url: str) -> dict[str, list]:
    text = httpx.get(f"{url}/prometheus/metrics").text
    found: dict[str, list] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample)
    return found


def value(found: dict[str, list], name: str, **labels: str) -> float:
    (sample,) = [s for s in found[name] if labels.items() <= s.labels.items()]
    return sample.value


def test_they_count_what_happened() -> None:
    with make_llm() as llm, serving(llm) as live:
        body = {"prompt": PROMPT, "max_tokens": 40, "temperature": 0, "return_spec_stats": True}
        answer = httpx.post(f"{live.url}/v1/completions", json=body, timeout=30).json()
        httpx.post(f"{live.url}/v1/completions", json={"prompt": "x", "zzz": 1})
        live.wait_idle()
        found, stats, usage = samples(live.url), answer["spec_stats"], answer["usage"]
        prefix = "vllm:spec_decode_num"
        assert value(found, f"{prefix}_drafts_total") == stats["num_drafts"] > 0
        assert value(found, f"{prefix}_draft_tokens_total") == stats["num_draft_tokens"]
        assert value(found, f"{prefix}_accepted_tokens_total") == stats["num_accepted_tokens"]
        for position, count in enumerate(stats["num_accepted_tokens_per_pos"]):
            name = f"{prefix}_accepted_tokens_per_pos_total"
            assert value(found, name, position=str(position)) == count
        assert value(found, "trtllm_ext_acceptance_length") == stats["acceptance_length"]
        assert value(found, "trtllm_ext_prompt_tokens_total") == usage["prompt_tokens"]
        assert value(found, "trtllm_ext_generation_tokens_total") == usage["completion_tokens"]
        assert value(found, "trtllm_time_to_first_token_seconds_count") == 1
        later = value(found, "trtllm_time_per_output_token_seconds_count")
        assert 0 < later < usage["completion_tokens"]
        assert value(found, "trtllm_request_success_total", finished_reason="stop") == 1
        assert value(found, "trtllm_ext_request_errors_total", status="400") == 1
        assert value(found, "trtllm_num_requests_running") == 0
        assert value(found, "trtllm_ext_nan_rows_total") == 0
        assert 0.05 < value(found, "trtllm_ext_draft_overhead") < 0.9
        for family in found.values():
            assert all(LABELS.items() <= sample.labels.items() for sample in family)


def exported(live: Running) -> set[str]:
    httpx.post(f"{live.url}/v1/completions", json={"prompt": PROMPT, "max_tokens": 8}, timeout=30)
    httpx.post(f"{live.url}/v1/completions", content=b"{")
    return set(samples(live.url))


def test_names_that_people_chart(live: Running) -> None:
    assert set(CHARTED) <= exported(live)


def test_the_dashboard_asks_for_nothing_else(live: Running) -> None:
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    asked = {name for query in queries for name in re.findall(r"(?:vllm:|trtllm_)\w+", query)}
    assert asked <= exported(live)
    own = {name for name in exported(live) if name.startswith(("vllm:", "trtllm_"))}
    shown = {re.sub(r"_(bucket|count|sum|created)$", "", name) for name in own}
    unseen = {name for name in shown if not any(a.startswith(name) for a in asked)}
    assert not unseen, "export less, or chart it"


def test_nan_is_counted_and_said_once(caplog) -> None:
    with make_llm() as llm, serving(llm) as live:
        weight = llm._models.target.norm.weight
        kept = weight.detach().clone()
        weight.data.fill_(float("nan"))
        body = {"prompt": PROMPT, "max_tokens": 4, "ignore_eos": True, "temperature": 0}
        for _ in range(2):
            assert (
                httpx.post(f"{live.url}/v1/completions", json=body, timeout=30).status_code == 200
            )
        weight.data.copy_(kept)
        live.wait_idle()
        assert value(samples(live.url), "trtllm_ext_nan_rows_total") > 0
    said = [r for r in caplog.records if "logits are NaN" in r.getMessage()]
    assert len(said) == 1
