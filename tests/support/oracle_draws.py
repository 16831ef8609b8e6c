# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Random requests and engine histories.

They come from one seed each rather than from nested strategies: hypothesis prefers small examples,
in which nothing is reused, preempted, accepted or resumed.
"""

from __future__ import annotations

import random
from typing import Any

from tensorrt_llm_ext.configs.sampling import SamplingParams
from tests.support.oracle_engine import Plan, Work

# A vocabulary of three makes an untrained draft right in every third case.
VOCAB_SIZES = (3, 3, 3, 5, 12)
NUM_MODELS = 12
MAX_PROMPT = 24
MAX_OUTPUT = 16


def draw_key(rng: random.Random) -> tuple[int, int]:
    """Seed and vocabulary of `tiny_models`."""
    return rng.randrange(NUM_MODELS), rng.choice(VOCAB_SIZES)


def draw_sampling(rng: random.Random, vocab_size: int, *, rich: bool) -> SamplingParams:
    """Greedy or seeded parameters; `rich` draws every field that changes tokens."""
    fields: dict[str, Any] = {
        "max_tokens": rng.randint(1, MAX_OUTPUT),
        "temperature": rng.choice((None, 0.0, 0.6, 1.0, 1.7)),
        "ignore_eos": rng.random() < 0.8,
    }
    if rich:
        fields |= {
            "top_k": rng.choice((None, 0, 2, 3, None)),
            "top_p": rng.choice((None, 1.0, 0.9, 0.5)),
            "min_p": rng.choice((None, 0.0, 0.05, 0.3)),
            "presence_penalty": rng.choice((None, None, 0.4, -0.3)),
            "frequency_penalty": rng.choice((None, None, 0.25, -0.1)),
            "repetition_penalty": rng.choice((None, None, 1.3, 0.8)),
            "logprobs": rng.choice((None, 0, 2)),
        }
        if rng.random() < 0.3:
            fields["logit_bias"] = {rng.randrange(vocab_size): rng.choice((-2.0, 0.7, 3.0))}
        if rng.random() < 0.2:
            fields["bad_token_ids"] = [rng.randrange(vocab_size)]
        elif rng.random() < 0.4:
            fields["stop_token_ids"] = [rng.randrange(vocab_size)]
            fields["min_tokens"] = rng.randint(0, 8)
            fields["max_tokens"] += fields["min_tokens"]
    return SamplingParams(**fields)


def draw_works(
    rng: random.Random, vocab_size: int, *, rich: bool = False, max_requests: int = 4
) -> list[Work]:
    """Requests of which some repeat, extend or branch off the prompt of an earlier one."""
    works: list[Work] = []
    for _ in range(rng.randint(2, max_requests)):
        length = rng.choice((1, 2, rng.randint(3, MAX_PROMPT), rng.randint(10, MAX_PROMPT)))
        prompt = tuple(rng.choices(range(vocab_size), k=length))
        if works and rng.random() < 0.6:
            stem = rng.choice(works).prompt
            prompt = (stem[: rng.randint(1, len(stem))] + prompt)[:MAX_PROMPT]
            if rng.random() < 0.3:
                prompt = stem
        works.append(
            Work(
                prompt=prompt,
                sampling=draw_sampling(rng, vocab_size, rich=rich),
                seed=rng.getrandbits(60),
                arrival=rng.choice((0, 0, rng.randint(1, 20))),
            )
        )
    return works


def draw_plan(rng: random.Random) -> Plan:
    """Limits and a history. The smallest pools hold one request, so that others are preempted."""
    block_size = rng.choice((1, 2, 3, 4, 7, 16))
    max_batch_size = rng.randint(1, 4)
    tightness = rng.choice((None, None, 1.0, 1.5, 2.5))
    chunk = rng.choice((9, 12, 18, 36, 64))
    longest = MAX_PROMPT + MAX_OUTPUT + 24
    return Plan(
        block_size=block_size,
        chunk=chunk,
        chunked=chunk < MAX_PROMPT or rng.random() < 0.6,
        max_batch_size=max_batch_size,
        num_blocks=None if tightness is None else int(longest * tightness / block_size) + 1,
        max_seq_len=rng.choice((None, None, None, MAX_PROMPT + 6, MAX_PROMPT + 16)),
        reuse=rng.random() < 0.75,
        ring_size=rng.choice((256, 256, 8, 3)),
        draft_lens=_draft_lens(rng),
        preemptions=rng.choice(
            ((None,), tuple(rng.choices((None, None, None, None, 0, 1, 2), k=rng.randint(3, 9))))
        ),
    )


def _draft_lens(rng: random.Random) -> tuple[int, ...]:
    """Constant, changing all the time, or stretches of drafts and of none."""
    kind = rng.randrange(4)
    if kind == 0:
        return (rng.randint(1, 8),)
    if kind == 1:
        return tuple(rng.choices(range(9), k=rng.randint(2, 9)))
    drafts, pause = rng.randint(1, 8), rng.randint(1, 5)
    stretch = (drafts,) * rng.randint(1, 4)
    return (0,) * pause + stretch if kind == 2 else stretch + (0,) * pause
