# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""`process_logits` and `sample` against their references on drawn settings."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from tensorrt_llm_ext.ops.sampling import SamplingRows, process_logits, sample
from tensorrt_llm_ext.ops.testing import assert_close

VOCAB = 7
# Values at which no sum of a few equal probabilities ends, so that rounding decides nothing.
TOP_P = st.sampled_from([1.0, 1e-9, 0.1379, 0.3341, 0.5123, 0.7077, 0.9012])
MIN_P = st.sampled_from([0.0, 1.0, 0.0117, 0.0731, 0.3319])
TEMPERATURE = st.sampled_from([0.0, 1.0, 0.731, 1.9, 1e-3])
PENALTY = st.sampled_from([0.0, 0.5, -0.25, 2.0])
REPETITION = st.sampled_from([1.0, 0.5, 1.25, 2.0])
LOGIT = st.integers(-6, 6).map(lambda value: value / 2)  # ties are common


@st.composite
def rows_of_logits(draw: st.DrawFn) -> tuple[torch.Tensor, SamplingRows, torch.Tensor]:
    num_rows = draw(st.integers(1, 4))

    def column(values: st.SearchStrategy, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        numbers = draw(st.lists(values, min_size=num_rows, max_size=num_rows))
        return torch.tensor(numbers, dtype=dtype)

    def table(values: st.SearchStrategy, dtype: torch.dtype) -> torch.Tensor:
        size = num_rows * VOCAB
        numbers = draw(st.lists(values, min_size=size, max_size=size))
        return torch.tensor(numbers, dtype=dtype).view(num_rows, VOCAB)

    def maybe(build) -> torch.Tensor | None:
        return build() if draw(st.booleans()) else None

    def bans() -> torch.Tensor:
        banned = table(st.booleans(), torch.bool)
        banned[:, draw(st.integers(0, VOCAB - 1))] = False
        return banned

    rows = SamplingRows(
        temperature=maybe(lambda: column(TEMPERATURE)),
        top_k=maybe(lambda: column(st.integers(0, VOCAB + 1), torch.int64)),
        top_p=maybe(lambda: column(TOP_P)),
        min_p=maybe(lambda: column(MIN_P)),
        presence_penalty=maybe(lambda: column(PENALTY)),
        frequency_penalty=maybe(lambda: column(PENALTY)),
        repetition_penalty=maybe(lambda: column(REPETITION)),
        output_counts=maybe(lambda: table(st.integers(0, 3), torch.int64)),
        prompt_mask=maybe(lambda: table(st.booleans(), torch.bool)),
        logit_bias=maybe(lambda: table(LOGIT, torch.float32)),
        banned=maybe(bans),
    )
    uniforms = column(st.floats(0.0, 0.999999), torch.float64)
    return table(LOGIT, torch.float64), rows, uniforms


@given(rows_of_logits())
def test_process_logits_properties(drawn) -> None:
    logits, rows, _ = drawn
    processed = process_logits(logits, rows)
    want = process_logits(logits, rows, kernel="reference")
    assert_close("processed", want, processed)
    assert (processed.amax(dim=-1) == 0).all()
    if rows.banned is not None:
        assert (processed[rows.banned] == float("-inf")).all()
    if rows.temperature is not None:
        num_kept = processed.isfinite().sum(dim=-1)
        assert (num_kept[rows.temperature == 0] == 1).all()


@given(rows_of_logits())
def test_sample_properties(drawn) -> None:
    logits, rows, uniforms = drawn
    ids = sample(logits, rows, uniforms)
    probs = process_logits(logits, rows, kernel="reference").softmax(-1)
    assert (probs.gather(1, ids.unsqueeze(1)) > 0).all()
    # The drawn id's interval of the cumulative distribution holds the uniform.
    upper = probs.cumsum(-1).gather(1, ids.unsqueeze(1)).squeeze(1)
    lower = upper - probs.gather(1, ids.unsqueeze(1)).squeeze(1)
    assert (lower - 1e-12 <= uniforms).all()
    assert (uniforms <= upper + 1e-12).all()
