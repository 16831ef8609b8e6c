# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""What makes a measured acceptance meaningless."""

from __future__ import annotations

import itertools
import os
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tensorrt_llm_ext.benchmarking.acceptance.measurement import (
    Answer,
    Measurement,
    step_variance,
)

_FORCED = "TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS"
_MIN_STEPS = 64
_LOOP_BIGRAMS = 0.3
_LOOP_SHARE = 0.2
_MIN_WORDS = 24
# Text compresses to half its size or less; letters drawn at random to two thirds or more.
_RANDOM_RATIO = 0.62
_RANDOM_BYTES = 400


@dataclass(frozen=True, kw_only=True)
class Mark:
    """One doubt.

    Attributes:
        name: Short and stable.
        message: What was seen, and what to do.
        is_suspect: Whether the number means nothing; otherwise it is a warning.
    """

    name: str
    message: str
    is_suspect: bool = True


def judge(
    measurement: Measurement, draft_len: int | None, environ: Mapping[str, str] | None = None
) -> tuple[Mark, ...]:
    """Looks for what makes acceptance meaningless.

    Args:
        measurement: The run.
        draft_len: Drafts per step, if known; counts per position say it themselves.
        environ: Environment to look into; the process's when None.
    """
    return tuple(_marks(measurement, draft_len, os.environ if environ is None else environ))


def _marks(
    measurement: Measurement, draft_len: int | None, environ: Mapping[str, str]
) -> Iterator[Mark]:
    if environ.get(_FORCED):
        yield Mark(
            name="forced",
            message=f"{_FORCED} is {environ[_FORCED]!r} in this environment: a host that sees it "
            "accepts that many drafts, whatever they are. Unset it.",
        )
    yield from _counts(measurement, draft_len)
    if not measurement.has_template:
        yield Mark(
            name="raw prompts",
            message="Prompts went without a chat template. Drafts are trained on chats: measure "
            "with --chat, unless the model is served with raw prompts.",
            is_suspect=False,
        )
    texts = [answer.text for answer in measurement.answers]
    looping = sum(map(is_looping, texts))
    if texts and looping > _LOOP_SHARE * len(texts):
        yield Mark(
            name="looping",
            message=f"{looping} of {len(texts)} answers repeat themselves. A draft accepts loops "
            "easily: use prompts that the model answers.",
        )
    if looks_random(measurement.answers):
        yield Mark(
            name="random tokens",
            message="The answers look like random tokens. The prompts, the template or the weights "
            "are wrong.",
        )


def _counts(measurement: Measurement, draft_len: int | None) -> Iterator[Mark]:
    stats = measurement.stats
    if stats is None or not stats.num_steps:
        return
    length = stats.acceptance_length
    most = len(stats.accepted_per_position) or draft_len
    has_positions = bool(stats.accepted_per_position)
    if has_positions and stats.num_steps >= _MIN_STEPS and step_variance(stats) == 0.0:
        yield Mark(
            name="no variance",
            message=f"All {stats.num_steps} steps accepted the same number of drafts: acceptance "
            "looks forced.",
        )
    if length == 1.0:
        yield Mark(
            name="nothing accepted",
            message="The length is exactly 1: no draft was ever accepted. Run trtllm-ext doctor "
            "and canary on the pair.",
        )
    elif most is not None and length == most + 1:
        yield Mark(
            name="everything accepted",
            message=f"The length is exactly {most + 1}: every draft was accepted. Look at the "
            "answers; logits of NaN do this, too.",
        )


def is_looping(text: str) -> bool:
    """Whether few pairs of words make up most of a text."""
    words = text.split()
    if len(words) < _MIN_WORDS:
        return False
    pairs = Counter(itertools.pairwise(words))
    return len(pairs) < _LOOP_BIGRAMS * (len(words) - 1)


def looks_random(answers: Sequence[Answer]) -> bool:
    """Whether the answers together compress worse than any language does."""
    joined = "\n".join(answer.text for answer in answers).encode("utf-8", "replace")[:65536]
    if len(joined) < _RANDOM_BYTES:
        return False
    return len(zlib.compress(joined, 9)) > _RANDOM_RATIO * len(joined)


__all__ = ["Mark", "is_looping", "judge", "looks_random"]
