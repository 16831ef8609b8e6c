# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Drawn requests and engine histories."""

from __future__ import annotations

from hypothesis import strategies as st

from tensorrt_llm_ext.configs.sampling import SamplingParams
from tests.support.oracle_engine import Plan, Work

VOCAB_SIZES = (3, 5, 12)
MODEL_SEEDS = st.tuples(st.integers(0, 11), st.sampled_from(VOCAB_SIZES))


def samplings(vocab_size: int, *, rich: bool, max_output: int = 16) -> st.SearchStrategy:
    """Greedy and seeded parameters; `rich` draws every field that changes tokens."""
    tokens = st.integers(0, vocab_size - 1)
    fields = {
        "max_tokens": st.integers(1, max_output),
        "temperature": st.sampled_from((None, 0.0, 0.6, 1.0, 1.7)),
        "ignore_eos": st.booleans(),
    }
    if rich:
        fields |= {
            "top_k": st.sampled_from((None, 0, 1, 2, 3)),
            "top_p": st.sampled_from((None, 1.0, 0.9, 0.5)),
            "min_p": st.sampled_from((None, 0.0, 0.05, 0.3)),
            "presence_penalty": st.sampled_from((None, 0.4, -0.3)),
            "frequency_penalty": st.sampled_from((None, 0.25, -0.1)),
            "repetition_penalty": st.sampled_from((None, 1.3, 0.8)),
            "logit_bias": st.none() | st.dictionaries(tokens, st.sampled_from((-2.0, 0.7, 3.0))),
            "bad_token_ids": st.none() | st.lists(tokens, max_size=1),
            "stop_token_ids": st.none() | st.lists(tokens, max_size=1),
            "logprobs": st.sampled_from((None, 0, 2)),
            "min_tokens": st.none() | st.integers(0, 6),
        }

    def build(values: dict) -> SamplingParams:
        if values.get("min_tokens"):
            values = {**values, "max_tokens": values["max_tokens"] + values["min_tokens"]}
        return SamplingParams(**values)

    return st.fixed_dictionaries(fields).map(build)


@st.composite
def works(
    draw: st.DrawFn,
    vocab_size: int,
    *,
    rich: bool,
    max_requests: int = 4,
    max_prompt: int = 24,
    max_output: int = 16,
) -> list[Work]:
    """Requests of which some repeat, extend or branch off the prompt of an earlier one."""
    tokens = st.integers(0, vocab_size - 1)
    requests: list[Work] = []
    for _ in range(draw(st.integers(1, max_requests))):
        prompt = tuple(draw(st.lists(tokens, min_size=1, max_size=max_prompt)))
        if requests and draw(st.booleans()):
            stem = draw(st.sampled_from(requests)).prompt
            prompt = (stem[: draw(st.integers(1, len(stem)))] + prompt)[:max_prompt]
        requests.append(
            Work(
                prompt=prompt,
                sampling=draw(samplings(vocab_size, rich=rich, max_output=max_output)),
                seed=draw(st.integers(0, 2**40)),
                arrival=draw(st.integers(0, 12)),
            )
        )
    return requests


def plans(
    *, max_prompt: int = 24, max_output: int = 24, draft_lens: st.SearchStrategy | None = None
) -> st.SearchStrategy[Plan]:
    """Limits and histories. The smallest pool holds one request, so that others are preempted."""
    if draft_lens is None:
        draft_lens = st.one_of(
            st.integers(0, 8).map(lambda k: (k,)),
            st.lists(st.integers(0, 8), min_size=2, max_size=8).map(tuple),
            # Stretches of k = 0 with a resumption after them.
            st.tuples(st.integers(1, 6), st.integers(1, 8)).map(lambda p: (0,) * p[0] + (p[1],)),
            st.tuples(st.integers(1, 4), st.integers(1, 8)).map(
                lambda p: (p[1],) * 2 + (0,) * p[0] + (p[1],) * 2
            ),
        )

    def build(values: dict) -> Plan:
        tightness = values.pop("tightness")
        longest = max_prompt + max_output + 16
        if tightness is not None:
            values["num_blocks"] = -(-longest * tightness // (10 * values["block_size"]))
        return Plan(**values)

    fields = {
        "block_size": st.sampled_from((1, 2, 3, 4, 7, 16)),
        "chunk": st.sampled_from((9, 18, 36, 64)),
        "max_batch_size": st.integers(1, 4),
        "tightness": st.sampled_from((None, None, 10, 15, 25)),
        "max_seq_len": st.sampled_from((None, None, max_prompt + 6, max_prompt + 20)),
        "reuse": st.booleans(),
        "ring_size": st.sampled_from((256, 256, 6, 3)),
        "draft_lens": draft_lens,
        "preemptions": st.lists(
            st.sampled_from((None, None, None, 0, 1, 2)), min_size=1, max_size=9
        ).map(tuple),
    }
    return st.fixed_dictionaries(fields).map(build)
