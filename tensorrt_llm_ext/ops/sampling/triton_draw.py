# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
# mypy: ignore-errors

"""Sampling by inverse CDF in two launches, and the count of accepted drafts.

The vocabulary of a row is cut into chunks of fixed size, so that what is drawn depends on the row
alone: not on the batch, nor on the GPU.
"""

from __future__ import annotations

from tensorrt_llm_ext._triton import tl, triton


@triton.jit
def _mix(x):
    """The finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), on uint64."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def uniform_kernel(seeds, positions, out, size, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < size
    seed = tl.load(seeds + at, mask=mask, other=0).to(tl.uint64, bitcast=True)
    position = tl.load(positions + at, mask=mask, other=0).to(tl.uint64, bitcast=True)
    state = _mix(seed + 0x9E3779B97F4A7C15)
    bits = _mix(state + (position + 1) * 0x9E3779B97F4A7C15) >> 11
    tl.store(out + at, bits.to(tl.int64).to(tl.float64) * 1.1102230246251565e-16, mask=mask)


@triton.jit
def _penalised(
    logits,
    counts,
    prompt,
    bias,
    banned,
    repetition,
    presence,
    frequency,
    row,
    ids,
    mask,
    logits_stride,
    counts_stride,
    prompt_stride,
    bias_stride,
    banned_stride,
    HAS_COUNTS: tl.constexpr,
    HAS_PROMPT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_BANNED: tl.constexpr,
    HAS_REPETITION: tl.constexpr,
    HAS_PRESENCE: tl.constexpr,
    HAS_FREQUENCY: tl.constexpr,
):
    """Logits in float32 after everything that acts before the temperature; -inf outside."""
    x = tl.load(logits + row * logits_stride + ids, mask=mask, other=float("-inf")).to(tl.float32)
    if HAS_BIAS:
        x += tl.load(bias + row * bias_stride + ids, mask=mask, other=0.0).to(tl.float32)
    if HAS_COUNTS:
        count = tl.load(counts + row * counts_stride + ids, mask=mask, other=0).to(tl.float32)
    if HAS_REPETITION:
        seen = tl.zeros_like(x) > 1.0
        if HAS_COUNTS:
            seen = seen | (count > 0)
        if HAS_PROMPT:
            seen = seen | (tl.load(prompt + row * prompt_stride + ids, mask=mask, other=0) != 0)
        by = tl.load(repetition + row).to(tl.float32)
        x = tl.where(seen, tl.where(x > 0, x / by, x * by), x)
    if HAS_COUNTS:
        if HAS_PRESENCE:
            x -= tl.where(count > 0, tl.load(presence + row).to(tl.float32), 0.0)
        if HAS_FREQUENCY:
            x -= tl.load(frequency + row).to(tl.float32) * count
    if HAS_BANNED:
        gone = tl.load(banned + row * banned_stride + ids, mask=mask, other=0) != 0
        x = tl.where(gone, float("-inf"), x)
    return tl.where(x != x, float("-inf"), x)  # NaN is never drawn, and orders nothing


@triton.jit
def chunk_kernel(
    logits,
    counts,
    prompt,
    bias,
    banned,
    repetition,
    presence,
    frequency,
    temperature,
    maxima,
    best,
    sums,
    vocab_size,
    logits_stride,
    counts_stride,
    prompt_stride,
    bias_stride,
    banned_stride,
    CHUNK: tl.constexpr,
    HAS_TEMPERATURE: tl.constexpr,
    HAS_COUNTS: tl.constexpr,
    HAS_PROMPT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_BANNED: tl.constexpr,
    HAS_REPETITION: tl.constexpr,
    HAS_PRESENCE: tl.constexpr,
    HAS_FREQUENCY: tl.constexpr,
):
    """Per row and chunk: the largest logit, its id, and the sum of exp((x - largest) / T)."""
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    ids = chunk * CHUNK + tl.arange(0, CHUNK)
    mask = ids < vocab_size
    x = _penalised(
        logits,
        counts,
        prompt,
        bias,
        banned,
        repetition,
        presence,
        frequency,
        row,
        ids,
        mask,
        logits_stride,
        counts_stride,
        prompt_stride,
        bias_stride,
        banned_stride,
        HAS_COUNTS,
        HAS_PROMPT,
        HAS_BIAS,
        HAS_BANNED,
        HAS_REPETITION,
        HAS_PRESENCE,
        HAS_FREQUENCY,
    )
    largest = tl.max(x, 0)
    at = row * tl.num_programs(1) + chunk
    tl.store(maxima + at, largest)
    tl.store(best + at, chunk * CHUNK + tl.argmax(x, 0))
    if HAS_TEMPERATURE:
        t = tl.load(temperature + row).to(tl.float32)
        shift = tl.where(largest == float("-inf"), 0.0, largest)
        weights = tl.exp((x - shift) / tl.where(t > 0, t, 1.0))
        tl.store(sums + at, tl.sum(weights.to(tl.float64), 0))


@triton.jit
def draw_kernel(
    logits,
    counts,
    prompt,
    bias,
    banned,
    repetition,
    presence,
    frequency,
    temperature,
    uniforms,
    maxima,
    best,
    sums,
    out,
    vocab_size,
    num_chunks,
    logits_stride,
    counts_stride,
    prompt_stride,
    bias_stride,
    banned_stride,
    CHUNK: tl.constexpr,
    CHUNKS_BLOCK: tl.constexpr,
    HAS_TEMPERATURE: tl.constexpr,
    HAS_COUNTS: tl.constexpr,
    HAS_PROMPT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_BANNED: tl.constexpr,
    HAS_REPETITION: tl.constexpr,
    HAS_PRESENCE: tl.constexpr,
    HAS_FREQUENCY: tl.constexpr,
):
    """Per row: the first chunk, then the first id in it, whose cumulative weight is enough."""
    row = tl.program_id(0).to(tl.int64)
    chunks = tl.arange(0, CHUNKS_BLOCK)
    is_chunk = chunks < num_chunks
    largest = tl.load(maxima + row * num_chunks + chunks, mask=is_chunk, other=float("-inf"))
    top = tl.max(largest, 0)
    winner = tl.argmax(largest, 0)
    chosen = tl.load(best + row * num_chunks + winner).to(tl.int64)
    if HAS_TEMPERATURE:
        t = tl.load(temperature + row).to(tl.float32)
        if t > 0:
            total = tl.load(sums + row * num_chunks + chunks, mask=is_chunk, other=0.0)
            away = (largest - tl.where(top == float("-inf"), 0.0, top)).to(tl.float64)
            total = total * tl.exp(away / t.to(tl.float64))
            cumulative = tl.cumsum(total, 0)
            threshold = tl.load(uniforms + row) * tl.sum(total, 0)
            # Rounding may leave the end of the last sum at the threshold: never past the weight.
            positive = tl.max(tl.where(total > 0, chunks, 0), 0)
            first = tl.min(tl.where(cumulative > threshold, chunks, CHUNKS_BLOCK), 0)
            chunk = tl.minimum(first, positive)
            is_it = chunks == chunk
            before = tl.sum(tl.where(chunks < chunk, total, 0.0), 0)
            shift = tl.max(tl.where(is_it, largest, float("-inf")), 0)
            scale = tl.exp((shift - top).to(tl.float64) / t.to(tl.float64))
            places = tl.arange(0, CHUNK)
            ids = chunk * CHUNK + places
            x = _penalised(
                logits,
                counts,
                prompt,
                bias,
                banned,
                repetition,
                presence,
                frequency,
                row,
                ids,
                ids < vocab_size,
                logits_stride,
                counts_stride,
                prompt_stride,
                bias_stride,
                banned_stride,
                HAS_COUNTS,
                HAS_PROMPT,
                HAS_BIAS,
                HAS_BANNED,
                HAS_REPETITION,
                HAS_PRESENCE,
                HAS_FREQUENCY,
            )
            weights = tl.exp((x - shift) / t).to(tl.float64) * scale
            inside = before + tl.cumsum(weights, 0)
            last = tl.max(tl.where(weights > 0, places, 0), 0)
            place = tl.minimum(tl.min(tl.where(inside > threshold, places, CHUNK), 0), last)
            chosen = (chunk * CHUNK + place).to(tl.int64)
    # Only rows of NaN come out past the end; they must still be ids that can be looked up.
    tl.store(out + row, tl.minimum(chosen, vocab_size - 1))


@triton.jit
def count_kernel(sampled, drafts, num_drafts, out, k, BLOCK: tl.constexpr):
    """Per request: the leading drafts that equal what was chosen at their row."""
    request = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    is_draft = at < tl.load(num_drafts + request)
    is_draft = is_draft & (at < k)
    chosen = tl.load(sampled + request * (k + 1) + at, mask=at < k, other=0)
    draft = tl.load(drafts + request * k + at, mask=at < k, other=0)
    is_match = (chosen == draft) & is_draft
    tl.store(out + request, tl.min(tl.where(is_match, BLOCK, at), 0).to(tl.int64))
