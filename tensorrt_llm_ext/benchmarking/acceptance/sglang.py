# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""What SGLang tells of one request's speculation, in the `meta_info` of its answer.

Its native route always sends it, its chat route when asked with `return_meta_info`. The names of
the counts changed over versions; the histogram counts verify steps by how many drafts they accepted
(read from public clients of SGLang, not run). SGLang's own acceptance length is tokens per verify
step, the prompt's token included; here it is 1 + accepted / steps as everywhere.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, Final

from tensorrt_llm_ext.speculative.stats import AcceptanceStats

CHAT_FIELD: Final = "return_meta_info"
NATIVE_ROUTE: Final = "/generate"
_STEPS: Final = "spec_verify_ct"
_COUNTS: Final = (
    ("spec_num_correct_drafts", "spec_num_proposed_drafts"),
    ("spec_accepted_drafts", "spec_proposed_drafts"),
    ("spec_accept_token_num", "spec_draft_token_num"),
)
_HISTOGRAMS: Final = ("spec_correct_drafts_histogram", "spec_accept_histogram")


def stats_of(meta: object) -> AcceptanceStats | None:
    """Reads a `meta_info`; None if it says nothing of speculation."""
    if not isinstance(meta, Mapping) or _STEPS not in meta:
        return None
    steps = int(meta[_STEPS] or 0)
    histogram = next((meta[name] for name in _HISTOGRAMS if meta.get(name)), None)
    pair = next((pair for pair in _COUNTS if all(name in meta for name in pair)), None)
    accepted, drafted = (int(meta[name] or 0) for name in pair) if pair else (0, 0)
    if histogram is None:
        if pair is None:  # of the tokens, one is the prompt's and one of each step the target's
            accepted = max(int(meta.get("completion_tokens", 0)) - 1 - steps, 0)
        return AcceptanceStats(num_steps=steps, num_drafted=drafted, num_accepted=accepted)
    counts = [int(count) for count in histogram]
    steps = sum(counts)
    # From the back: steps that accepted at least i drafts.
    at_least = list(itertools.accumulate(reversed(counts[1:])))[::-1]
    at_least += [0] * (round(drafted / steps) - len(at_least) if steps else 0)
    return AcceptanceStats(
        num_steps=steps,
        num_drafted=drafted or steps * len(at_least),
        num_accepted=sum(at_least),
        steps_per_position=[steps] * len(at_least),
        accepted_per_position=at_least,
    )


def native_body(prompt: str, max_tokens: int, temperature: float) -> dict[str, Any]:
    """The body of `POST /generate`."""
    sampling = {"max_new_tokens": max_tokens, "temperature": temperature}
    return {"text": prompt, "sampling_params": sampling}


__all__ = ["CHAT_FIELD", "NATIVE_ROUTE", "native_body", "stats_of"]
