# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

r"""The meaning of sampling and acceptance.

`uniform(seed, position)`: SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
generators", OOPSLA 2014). With `mix` its finaliser and gamma = 0x9E3779B97F4A7C15, modulo 2^64,

    state = mix(seed + gamma)
    u = (mix(state + (position + 1) * gamma) >> 11) * 2^-53

so a seed names a stream, and a position one output of that stream.

`process_logits`, in this order, on each row l with token counts c (output) and prompt set P:

    l += logit_bias
    l_v = l_v / r if l_v > 0 else l_v * r        where c_v > 0 or v in P (Keskar, 1909.05858)
    l_v -= presence * [c_v > 0] + frequency * c_v
    l_v = -inf                                   where banned
    temperature 0: only the largest l_v stays, the lowest id among equals
    else: l /= temperature, the largest l_v moved to 0 first
    top-k: l_v stays iff l_v >= the k-th largest
    top-p: in the order of (-l_v, v), a token stays iff the probabilities before it add up to < p;
           the first always stays (Holtzman et al., 1904.09751)
    min-p: a token stays iff its probability >= min_p * the largest (Nguyen et al., 2407.01082)

`sample`: the first id whose cumulative probability exceeds u times the total.

`verify_rejection`: Leviathan et al., 2211.17192, and Chen et al., 2302.01318; accept iff
`u * q(d) < p(d)`, else draw from `max(p - q, 0)`; emitted tokens are distributed as p.
`verify_greedy` counts leading matches.
"""

from __future__ import annotations

import math

import torch

from tensorrt_llm_ext.ops.nvfp4.reference import nvfp4_dequantize_reference
from tensorrt_llm_ext.ops.registry import Priority, register_kernel
from tensorrt_llm_ext.ops.sampling.rows import SamplingRows

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15


def _mix(x: int) -> int:
    """The finaliser of SplitMix64."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


@register_kernel("uniform", "reference", Priority.REFERENCE)
def uniform_reference(seeds: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Loops over rows, in Python integers."""
    numbers = []
    for seed, position in zip(seeds.tolist(), positions.tolist(), strict=True):
        state = _mix((seed + _GAMMA) & _MASK)
        bits = _mix((state + (position + 1) * _GAMMA) & _MASK) >> 11
        numbers.append(bits * 2.0**-53)
    return torch.tensor(numbers, dtype=torch.float64, device=seeds.device)


def _setting(values: torch.Tensor | None, row: int, off: float) -> float:
    return off if values is None else float(values[row])


def _penalised_row(logits: list[float], rows: SamplingRows, row: int) -> list[float]:
    """Applies everything that acts before the temperature."""
    repetition = _setting(rows.repetition_penalty, row, 1.0)
    presence = _setting(rows.presence_penalty, row, 0.0)
    frequency = _setting(rows.frequency_penalty, row, 0.0)
    out = []
    for v, logit in enumerate(logits):
        count = 0 if rows.output_counts is None else float(rows.output_counts[row, v])
        in_prompt = rows.prompt_mask is not None and bool(rows.prompt_mask[row, v])
        if rows.logit_bias is not None:
            logit += float(rows.logit_bias[row, v])
        if count > 0 or in_prompt:
            logit = logit / repetition if logit > 0 else logit * repetition
        if count > 0:
            logit -= presence + frequency * count
        if rows.banned is not None and bool(rows.banned[row, v]):
            logit = -math.inf
        out.append(logit)
    return out


def _top_k(logits: list[float], k: int) -> list[float]:
    if k <= 0 or k >= len(logits):
        return logits
    kth = sorted(logits, reverse=True)[k - 1]
    return [logit if logit >= kth else -math.inf for logit in logits]


def _softmax(logits: list[float]) -> list[float]:
    largest = max(logits)
    weights = [math.exp(logit - largest) for logit in logits]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def _top_p(logits: list[float], p: float) -> list[float]:
    if p >= 1:
        return logits
    probs = _softmax(logits)
    order = sorted(range(len(logits)), key=lambda v: (-logits[v], v))
    kept: list[int] = []
    before = 0.0
    for v in order:
        if kept and before >= p:
            break
        kept.append(v)
        before += probs[v]
    return [logit if v in set(kept) else -math.inf for v, logit in enumerate(logits)]


def _min_p(logits: list[float], min_p: float) -> list[float]:
    if min_p <= 0:
        return logits
    probs = _softmax(logits)
    floor = min_p * max(probs)
    return [
        logit if prob >= floor else -math.inf for logit, prob in zip(logits, probs, strict=True)
    ]


def _processed_row(logits: list[float], rows: SamplingRows, row: int) -> list[float]:
    """Returns one row of `process_logits`."""
    logits = _penalised_row(logits, rows, row)
    largest = max(logits)
    temperature = _setting(rows.temperature, row, 0.0)
    if temperature <= 0:
        best = logits.index(largest)
        return [0.0 if v == best else -math.inf for v in range(len(logits))]
    logits = [(logit - largest) / temperature for logit in logits]
    logits = _top_k(logits, int(_setting(rows.top_k, row, 0)))
    logits = _top_p(logits, _setting(rows.top_p, row, 1.0))
    return _min_p(logits, _setting(rows.min_p, row, 0.0))


def _draw(weights: list[float], uniform: float) -> int:
    """Returns the first id whose cumulative weight exceeds `uniform * total`."""
    threshold = uniform * sum(weights)
    cumulative = 0.0
    for v, weight in enumerate(weights):
        cumulative += weight
        if cumulative > threshold:
            return v
    return max(v for v, weight in enumerate(weights) if weight > 0)


@register_kernel("process_logits", "reference", Priority.REFERENCE)
def process_logits_reference(logits: torch.Tensor, rows: SamplingRows) -> torch.Tensor:
    """Loops over rows and tokens, in Python floats."""
    processed = [
        _processed_row(values, rows, row) for row, values in enumerate(logits.double().tolist())
    ]
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    return torch.tensor(processed, dtype=dtype, device=logits.device).view(logits.shape)


@register_kernel("sample", "reference", Priority.REFERENCE)
def sample_reference(
    logits: torch.Tensor, rows: SamplingRows, uniforms: torch.Tensor | None
) -> torch.Tensor:
    """Loops over rows and tokens, in Python floats."""
    ids = []
    for row, values in enumerate(logits.double().tolist()):
        probs = _softmax(_processed_row(values, rows, row))
        ids.append(_draw(probs, 0.0 if uniforms is None else float(uniforms[row])))
    return torch.tensor(ids, dtype=torch.int64, device=logits.device)


@register_kernel("verify_greedy", "reference", Priority.REFERENCE)
def verify_greedy_reference(
    sampled: torch.Tensor, drafts: torch.Tensor, num_drafts: torch.Tensor
) -> torch.Tensor:
    """Loops over rows."""
    counts = []
    for row, proposed, limit in zip(
        sampled.tolist(), drafts.tolist(), num_drafts.tolist(), strict=True
    ):
        count = 0
        while count < limit and row[count] == proposed[count]:
            count += 1
        counts.append(count)
    return torch.tensor(counts, dtype=torch.int64, device=sampled.device)


@register_kernel("verify_rejection", "reference", Priority.REFERENCE)
def verify_rejection_reference(
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor,
    drafts: torch.Tensor,
    num_drafts: torch.Tensor,
    accept_uniforms: torch.Tensor,
    sample_uniforms: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Loops over rows, in Python floats."""
    batch_size, k = drafts.shape
    tokens = torch.full((batch_size, k + 1), -1, dtype=torch.int64, device=drafts.device)
    num_accepted = torch.zeros(batch_size, dtype=torch.int64, device=drafts.device)
    for b in range(batch_size):
        count, limit = 0, int(num_drafts[b])
        while count < limit:
            draft = int(drafts[b, count])
            q = float(draft_probs[b, count, draft])
            if float(accept_uniforms[b, count]) * q >= float(target_probs[b, count, draft]):
                break
            tokens[b, count] = draft
            count += 1
        weights = target_probs[b, count].double().tolist()
        if count < limit:
            proposal = draft_probs[b, count].double().tolist()
            residual = [max(p - q, 0.0) for p, q in zip(weights, proposal, strict=True)]
            weights = residual if sum(residual) > 0 else weights
        tokens[b, count] = _draw(weights, float(sample_uniforms[b]))
        num_accepted[b] = count
    return tokens, num_accepted


def _head(
    weight: torch.Tensor,
    dtype: torch.dtype,
    block_scale: torch.Tensor | None,
    global_scale: torch.Tensor | None,
) -> torch.Tensor:
    if block_scale is None or global_scale is None:
        return weight
    return nvfp4_dequantize_reference(weight, block_scale, global_scale, dtype)


@register_kernel("lm_head_max", "reference", Priority.REFERENCE)
def lm_head_max_reference(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    block_scale: torch.Tensor | None = None,
    global_scale: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Loops over rows; logits in float64."""
    head = _head(weight, hidden.dtype, block_scale, global_scale).double()
    rows = [(head @ row.double()).tolist() for row in hidden]
    best = [max(row) for row in rows]
    ids = [row.index(value) for row, value in zip(rows, best, strict=True)]
    wide = torch.promote_types(hidden.dtype, torch.float32)
    values = torch.tensor(best, dtype=wide, device=hidden.device)
    return values, torch.tensor(ids, dtype=torch.int64, device=hidden.device)


@register_kernel("lm_head_argmax", "reference", Priority.REFERENCE)
def lm_head_argmax_reference(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    d2t: torch.Tensor | None,
    block_scale: torch.Tensor | None = None,
    global_scale: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Looks up what `lm_head_max` finds."""
    _, draft_ids = lm_head_max_reference(hidden, weight, block_scale, global_scale)
    offsets = torch.zeros_like(draft_ids) if d2t is None else d2t[draft_ids]
    return draft_ids, draft_ids + offsets
