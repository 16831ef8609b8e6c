# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Sampling and acceptance in plain torch: static shapes, no reads by the host."""

from __future__ import annotations

import torch
from torch.nn import functional

from tensorrt_llm_ext.ops.nvfp4 import nvfp4_linear
from tensorrt_llm_ext.ops.registry import Priority, register_kernel
from tensorrt_llm_ext.ops.sampling.rows import SamplingRows

# SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), as signed 64-bit numbers: int64 products and sums
# wrap modulo 2^64, which is what the algorithm asks for.
_GAMMA = 0x9E3779B97F4A7C15 - (1 << 64)
_MIX_1 = 0xBF58476D1CE4E5B9 - (1 << 64)
_MIX_2 = 0x94D049BB133111EB - (1 << 64)


def _shift_right(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical shift; torch's own shift keeps the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: torch.Tensor) -> torch.Tensor:
    x = (x ^ _shift_right(x, 30)) * _MIX_1
    x = (x ^ _shift_right(x, 27)) * _MIX_2
    return x ^ _shift_right(x, 31)


@register_kernel("uniform", "torch", Priority.PORTABLE)
def uniform_torch(seeds: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """SplitMix64 in int64 tensors."""
    state = _mix(seeds + _GAMMA)
    bits = _shift_right(_mix(state + (positions + 1) * _GAMMA), 11)
    return bits.double() * 2.0**-53


def _penalised(logits: torch.Tensor, rows: SamplingRows) -> torch.Tensor:
    """Applies everything that acts before the temperature."""
    if logits.dtype != torch.float64:
        logits = logits.float()
    if rows.logit_bias is not None:
        logits = logits + rows.logit_bias
    counts = rows.output_counts
    if rows.repetition_penalty is not None:
        logits = _repetition_penalised(logits, rows.repetition_penalty, rows)
    if counts is not None and rows.presence_penalty is not None:
        logits = logits - rows.presence_penalty.unsqueeze(1) * (counts > 0)
    if counts is not None and rows.frequency_penalty is not None:
        logits = logits - rows.frequency_penalty.unsqueeze(1) * counts
    if rows.banned is not None:
        logits = logits.masked_fill(rows.banned, float("-inf"))
    return logits


def _repetition_penalised(
    logits: torch.Tensor, penalty: torch.Tensor, rows: SamplingRows
) -> torch.Tensor:
    counts, seen = rows.output_counts, rows.prompt_mask
    if counts is not None:
        seen = counts > 0 if seen is None else seen | (counts > 0)
    if seen is None:
        return logits
    penalty = penalty.to(logits.dtype).unsqueeze(1)
    changed = torch.where(logits > 0, logits / penalty, logits * penalty)
    return torch.where(seen, changed, logits)


def _truncated(logits: torch.Tensor, rows: SamplingRows) -> torch.Tensor:
    """Applies top-k and top-p to tempered logits, on one stable sort (ties by token id)."""
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    if rows.top_k is not None:
        vocab_size = logits.shape[1]
        k = torch.where(rows.top_k > 0, rows.top_k, vocab_size).clamp_max(vocab_size)
        kth = ordered.gather(1, k.unsqueeze(1) - 1)
        ordered = ordered.masked_fill(ordered < kth, float("-inf"))
    if rows.top_p is not None:
        top_p = rows.top_p.double().unsqueeze(1)
        total = torch.softmax(ordered.double(), dim=-1).cumsum(dim=-1)
        before = functional.pad(total[:, :-1], (1, 0))
        beyond = (before >= top_p) & (before > 0) & (top_p < 1)
        ordered = ordered.masked_fill(beyond, float("-inf"))
    return torch.empty_like(logits).scatter_(1, order, ordered)


def _processed(logits: torch.Tensor, rows: SamplingRows) -> torch.Tensor:
    """`process_logits` after the penalties."""
    best = logits.argmax(dim=-1, keepdim=True)
    one_hot = torch.full_like(logits, float("-inf")).scatter_(1, best, 0.0)
    if rows.temperature is None:
        return one_hot
    temperature = rows.temperature.to(logits.dtype).unsqueeze(1)
    is_greedy = temperature <= 0
    # The largest logit becomes 0 first: a tiny temperature then overflows to -inf, never to inf.
    logits = (logits - logits.gather(1, best)) / torch.where(is_greedy, 1.0, temperature)
    if rows.top_k is not None or rows.top_p is not None:
        logits = _truncated(logits, rows)
    if rows.min_p is not None:
        floor = rows.min_p.to(logits.dtype).log().unsqueeze(1)
        logits = logits.masked_fill(logits < floor, float("-inf"))
    return torch.where(is_greedy, one_hot, logits)


def _inverse_cdf(weights: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Returns per row the first id whose cumulative weight exceeds `uniform * total`.

    Args:
        weights: [R, V] float64, not negative; need not add up to one.
        uniforms: [R] float64 in [0, 1).
    """
    cumulative = weights.cumsum(dim=-1)
    threshold = uniforms.unsqueeze(1) * cumulative[:, -1:]
    ids = torch.searchsorted(cumulative, threshold, right=True).squeeze(1)
    # Only rows of NaN come out past the end; they must still be ids that can be looked up.
    return ids.clamp_max(weights.shape[1] - 1)


@register_kernel("process_logits", "torch", Priority.PORTABLE)
def process_logits_torch(logits: torch.Tensor, rows: SamplingRows) -> torch.Tensor:
    """Vectorised over rows; one sort when top-k or top-p is on."""
    return _processed(_penalised(logits, rows), rows)


@register_kernel("sample", "torch", Priority.PORTABLE)
def sample_torch(
    logits: torch.Tensor, rows: SamplingRows, uniforms: torch.Tensor | None
) -> torch.Tensor:
    """Argmax alone when all rows are greedy; else softmax and cumulative sum in float64."""
    logits = _penalised(logits, rows)
    if rows.temperature is None or uniforms is None:
        return logits.argmax(dim=-1)
    probs = torch.softmax(_processed(logits, rows).double(), dim=-1)
    return _inverse_cdf(probs, uniforms)


@register_kernel("verify_greedy", "torch", Priority.PORTABLE)
def verify_greedy_torch(
    sampled: torch.Tensor, drafts: torch.Tensor, num_drafts: torch.Tensor
) -> torch.Tensor:
    """Cumulative product of the matches."""
    is_match = sampled[:, :-1] == drafts
    is_draft = torch.arange(drafts.shape[1], device=drafts.device) < num_drafts.unsqueeze(1)
    return (is_match & is_draft).long().cumprod(dim=1).sum(dim=1)


@register_kernel("verify_rejection", "torch", Priority.PORTABLE)
def verify_rejection_torch(
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor,
    drafts: torch.Tensor,
    num_drafts: torch.Tensor,
    accept_uniforms: torch.Tensor,
    sample_uniforms: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """All rows at once, in float64."""
    k = drafts.shape[1]
    p, q = target_probs.double(), draft_probs.double()
    columns = torch.arange(k + 1, device=drafts.device)
    is_draft = columns[:k] < num_drafts.unsqueeze(1)
    ids = torch.where(is_draft, drafts, 0).unsqueeze(2)
    p_draft = p[:, :k].gather(2, ids).squeeze(2)
    q_draft = q.gather(2, ids).squeeze(2)
    accepted = (accept_uniforms * q_draft < p_draft) & is_draft
    num_accepted = accepted.long().cumprod(dim=1).sum(dim=1)

    # The row after the last accepted draft; where no draft was refused there, q is zero.
    row = num_accepted.view(-1, 1, 1).expand(-1, 1, p.shape[2])
    p_row = p.gather(1, row).squeeze(1)
    q_row = functional.pad(q, (0, 0, 0, 1)).gather(1, row).squeeze(1)
    q_row = q_row.masked_fill((num_accepted == num_drafts).unsqueeze(1), 0.0)
    residual = (p_row - q_row).clamp_min_(0.0)
    has_residual = residual.sum(dim=1, keepdim=True) > 0
    last = _inverse_cdf(torch.where(has_residual, residual, p_row), sample_uniforms)

    end = num_accepted.unsqueeze(1)
    tokens = torch.where(columns < end, functional.pad(drafts, (0, 1)), -1)
    return torch.where(columns == end, last.unsqueeze(1), tokens), num_accepted


def _logits(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    block_scale: torch.Tensor | None,
    global_scale: torch.Tensor | None,
) -> torch.Tensor:
    if block_scale is None or global_scale is None:
        return functional.linear(hidden, weight)
    return nvfp4_linear(hidden, weight, block_scale, global_scale)


@register_kernel("lm_head_argmax", "torch", Priority.PORTABLE)
def lm_head_argmax_torch(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    d2t: torch.Tensor | None,
    block_scale: torch.Tensor | None = None,
    global_scale: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One product, one argmax, one look-up."""
    draft_ids = _logits(hidden, weight, block_scale, global_scale).argmax(dim=-1)
    if d2t is None:
        return draft_ids, draft_ids
    return draft_ids, draft_ids + d2t.index_select(0, draft_ids)


@register_kernel("lm_head_max", "torch", Priority.PORTABLE)
def lm_head_max_torch(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    block_scale: torch.Tensor | None = None,
    global_scale: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One product, one argmax, one look-up."""
    logits = _logits(hidden, weight, block_scale, global_scale)
    ids = logits.argmax(dim=-1)
    values = logits.gather(1, ids.unsqueeze(1)).squeeze(1)
    return values.to(torch.promote_types(hidden.dtype, torch.float32)), ids
