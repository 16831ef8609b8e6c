# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Choosing tokens: uniforms, logits processing, sampling, acceptance, and greedy drafting."""

from __future__ import annotations

import torch

from tensorrt_llm_ext import _triton
from tensorrt_llm_ext.errors import ShapeError
from tensorrt_llm_ext.ops.checks import check_float, check_int64, check_same_dtype, check_shape
from tensorrt_llm_ext.ops.registry import choose, chosen
from tensorrt_llm_ext.ops.sampling import library_draw, reference, torch_kernels  # noqa: F401  (they register)
from tensorrt_llm_ext.ops.sampling.rows import PER_ROW_FIELDS, PER_TOKEN_FIELDS, SamplingRows

if _triton.AVAILABLE:
    from tensorrt_llm_ext.ops.sampling import triton_acceptance, triton_argmax  # noqa: F401

__all__ = [
    "SamplingRows",
    "lm_head_argmax",
    "lm_head_max",
    "process_logits",
    "sample",
    "uniform",
    "verify_greedy",
    "verify_rejection",
]


def uniform(
    seeds: torch.Tensor, positions: torch.Tensor, *, kernel: str | None = None
) -> torch.Tensor:
    """Draws one uniform number per row from its seed and its absolute position.

    The number depends on nothing else: not on the batch, nor on how many drafts a step verified.

    Args:
        seeds: [N] int64, any value.
        positions: [N] int64, any value.
        kernel: Name of a registered kernel; the best supported one when None.

    Returns:
        [N] float64 in [0, 1), multiples of 2^-53.

    Raises:
        ShapeError: If a shape or dtype is wrong.
        KernelNotFoundError: If no registered kernel takes these inputs.
    """
    key = (
        "uniform",
        kernel,
        seeds.dtype,
        seeds.device,
        seeds.shape,
        positions.dtype,
        positions.shape,
    )
    run = chosen(key)
    if run is None:
        check_shape("uniform", "seeds", seeds, (None,), "[N]")
        check_shape("uniform", "positions", positions, tuple(seeds.shape), "[N]")
        check_int64("uniform", "seeds", seeds)
        check_int64("uniform", "positions", positions)
        run = choose(key, seeds, positions)
    numbers: torch.Tensor = run(seeds, positions)
    return numbers


def process_logits(
    logits: torch.Tensor, rows: SamplingRows, *, kernel: str | None = None
) -> torch.Tensor:
    """Turns logits into the logits of the distribution that is sampled from.

    Args:
        logits: [R, V] float; not changed.
        rows: What to apply to each row.
        kernel: Name of a registered kernel; the best supported one when None.

    Returns:
        [R, V] float64 for float64 logits, else float32. Its softmax is the distribution; tokens
        that cannot be chosen are -inf, and a row's largest value is 0. A greedy row has probability
        one on its largest logit, the lowest id among equals.

    Raises:
        ShapeError: If a shape or dtype is wrong.
        KernelNotFoundError: If no registered kernel takes these inputs.
    """
    key = ("process_logits", kernel, logits.dtype, logits.device, logits.shape, rows.signature())
    run = chosen(key)
    if run is None:
        _check_rows("process_logits", logits, rows)
        run = choose(key, logits, rows)
    processed: torch.Tensor = run(logits, rows)
    return processed


def sample(
    logits: torch.Tensor,
    rows: SamplingRows,
    uniforms: torch.Tensor | None,
    *,
    kernel: str | None = None,
) -> torch.Tensor:
    """Chooses one token per row: `process_logits`, softmax, inverse CDF in token-id order.

    Args:
        logits: [R, V] float; not changed.
        rows: What to apply to each row.
        uniforms: [R] float64 in [0, 1). May be None when `rows.is_greedy`.
        kernel: Name of a registered kernel; the best supported one when None.

    Returns:
        [R] int64: the first id whose cumulative probability exceeds its uniform; the largest logit
        for greedy rows.

    Raises:
        ShapeError: If a shape or dtype is wrong, or uniforms are missing.
        KernelNotFoundError: If no registered kernel takes these inputs.
    """
    shape = None if uniforms is None else uniforms.shape
    key = ("sample", kernel, logits.dtype, logits.device, logits.shape, rows.signature(), shape)
    run = chosen(key)
    if run is None:
        _check_rows("sample", logits, rows)
        if uniforms is None and not rows.is_greedy:
            raise ShapeError(
                "sample: uniforms is None, expected [R] float64, because rows.temperature is set. "
                "Draw them with ops.sampling.uniform(seeds, positions)."
            )
        if uniforms is not None:
            check_shape("sample", "uniforms", uniforms, (logits.shape[0],), "[R]")
        run = choose(key, logits, rows, uniforms)
    ids: torch.Tensor = run(logits, rows, uniforms)
    return ids


def verify_greedy(
    sampled: torch.Tensor,
    drafts: torch.Tensor,
    num_drafts: torch.Tensor,
    *,
    kernel: str | None = None,
) -> torch.Tensor:
    """Counts the leading drafts that equal what the target chose at their row.

    Args:
        sampled: [batch, query_len] int64: the token chosen at each row; row i precedes draft i.
        drafts: [batch, query_len - 1] int64, entries from num_drafts on may hold any number.
        num_drafts: [batch] int64, each in 0..query_len - 1.
        kernel: Name of a registered kernel; the best supported one when None.

    Returns:
        [batch] int64: accepted drafts, the bonus token not counted. The emitted tokens are
        `sampled[:, : num_accepted + 1]`.

    Raises:
        ShapeError: If a shape or dtype is wrong.
        KernelNotFoundError: If no registered kernel takes these inputs.
    """
    key = (
        "verify_greedy",
        kernel,
        sampled.dtype,
        sampled.device,
        sampled.shape,
        drafts.dtype,
        drafts.shape,
        num_drafts.dtype,
        num_drafts.shape,
    )
    run = chosen(key)
    if run is None:
        op = "verify_greedy"
        check_shape(op, "sampled", sampled, (None, None), "[batch, query_len]")
        batch_size, query_len = sampled.shape
        check_shape(op, "drafts", drafts, (batch_size, query_len - 1), "[batch, query_len - 1]")
        check_shape(op, "num_drafts", num_drafts, (batch_size,), "[batch]")
        for name, tensor in (("sampled", sampled), ("drafts", drafts), ("num_drafts", num_drafts)):
            check_int64(op, name, tensor)
        run = choose(key, sampled, drafts, num_drafts)
    num_accepted: torch.Tensor = run(sampled, drafts, num_drafts)
    return num_accepted


def verify_rejection(
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor,
    drafts: torch.Tensor,
    num_drafts: torch.Tensor,
    accept_uniforms: torch.Tensor,
    sample_uniforms: torch.Tensor,
    *,
    kernel: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Accepts sampled drafts so that the emitted tokens follow the target's distribution.

    Draft i is accepted iff `u_i * q_i(d_i) < p_i(d_i)`. The first refused one is replaced by a draw
    from `max(p - q, 0)`, normalised; when all are accepted, a bonus token is drawn from the row
    after the last draft.

    Args:
        target_probs: [batch, k + 1, V] float.
        draft_probs: [batch, k, V], dtype of `target_probs`: what each draft was drawn from.
        drafts: [batch, k] int64, entries from num_drafts on may hold any number.
        num_drafts: [batch] int64, each in 0..k.
        accept_uniforms: [batch, k] float64 in [0, 1).
        sample_uniforms: [batch] float64 in [0, 1).
        kernel: Name of a registered kernel; the best supported one when None.

    Returns:
        tokens [batch, k + 1] int64: accepted drafts, then the recovered or bonus token, then -1;
        and num_accepted [batch] int64.

    Raises:
        ShapeError: If a shape or dtype is wrong.
        KernelNotFoundError: If no registered kernel takes these inputs.
    """
    key = (
        "verify_rejection",
        kernel,
        target_probs.dtype,
        target_probs.device,
        target_probs.shape,
        draft_probs.dtype,
        draft_probs.shape,
        drafts.dtype,
        drafts.shape,
        num_drafts.dtype,
        num_drafts.shape,
        accept_uniforms.shape,
        sample_uniforms.shape,
    )
    args = (target_probs, draft_probs, drafts, num_drafts, accept_uniforms, sample_uniforms)
    run = chosen(key)
    if run is None:
        _check_verify_rejection(*args)
        run = choose(key, *args)
    result: tuple[torch.Tensor, torch.Tensor] = run(*args)
    return result


def lm_head_argmax(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    d2t: torch.Tensor | None,
    block_scale: torch.Tensor | None = None,
    global_scale: torch.Tensor | None = None,
    *,
    kernel: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Chooses the token with the largest logit, the lowest draft id among equals.

    Args:
        hidden: [R, hidden_size] float: normed states.
        weight: [draft_vocab_size, hidden_size], dtype of `hidden`: the draft's `lm_head`; or its
            NVFP4 codes, [draft_vocab_size, hidden_size / 2] uint8, with both scales.
        d2t: [draft_vocab_size] int64, `target = draft + d2t[draft]`; None when the two vocabularies
            are one.
        block_scale: [draft_vocab_size, hidden_size / 16] float8_e4m3fn of an NVFP4 head.
        global_scale: [] float32 of an NVFP4 head.
        kernel: Name of a registered kernel; the best supported one when None.

    Returns:
        Draft ids and target ids, each [R] int64.

    Raises:
        ShapeError: If a shape or dtype is wrong.
        KernelNotFoundError: If no registered kernel takes these inputs.
    """
    key = ("lm_head_argmax", kernel, *_head_key(hidden, weight, d2t, block_scale))
    run = chosen(key)
    if run is None:
        _check_head("lm_head_argmax", hidden, weight, d2t, block_scale, global_scale)
        run = choose(key, hidden, weight, d2t, block_scale, global_scale)
    ids: tuple[torch.Tensor, torch.Tensor] = run(hidden, weight, d2t, block_scale, global_scale)
    return ids


def lm_head_max(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    block_scale: torch.Tensor | None = None,
    global_scale: torch.Tensor | None = None,
    *,
    kernel: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Finds the largest logit of one shard of a head and its id, the lowest among equals.

    Ranks exchange these two numbers per row in place of their logits: the token is that of the
    first rank with the largest value.

    Args:
        hidden: [R, hidden_size] float: normed states.
        weight: This rank's rows of the head, as in `lm_head_argmax`.
        block_scale: As in `lm_head_argmax`.
        global_scale: As in `lm_head_argmax`.
        kernel: Name of a registered kernel; the best supported one when None.

    Returns:
        The logits [R], float64 for float64 states, else float32; and their ids in the shard, [R]
        int64.

    Raises:
        ShapeError: If a shape or dtype is wrong.
        KernelNotFoundError: If no registered kernel takes these inputs.
    """
    key = ("lm_head_max", kernel, *_head_key(hidden, weight, None, block_scale))
    run = chosen(key)
    if run is None:
        _check_head("lm_head_max", hidden, weight, None, block_scale, global_scale)
        run = choose(key, hidden, weight, block_scale, global_scale)
    result: tuple[torch.Tensor, torch.Tensor] = run(hidden, weight, block_scale, global_scale)
    return result


def _head_key(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    d2t: torch.Tensor | None,
    block_scale: torch.Tensor | None,
) -> tuple[object, ...]:
    return (
        hidden.dtype,
        hidden.device,
        hidden.shape,
        weight.dtype,
        weight.shape,
        None if d2t is None else d2t.shape,
        None if block_scale is None else block_scale.shape,
    )


def _check_head(
    op: str,
    hidden: torch.Tensor,
    weight: torch.Tensor,
    d2t: torch.Tensor | None,
    block_scale: torch.Tensor | None,
    global_scale: torch.Tensor | None,
) -> None:
    check_float(op, "hidden", hidden)
    check_shape(op, "hidden", hidden, (None, None), "[R, hidden_size]")
    size = hidden.shape[1]
    if (block_scale is None) != (global_scale is None):
        raise ShapeError(f"{op}: an NVFP4 head has both block_scale and global_scale, got one.")
    if block_scale is None or global_scale is None:
        check_shape(op, "weight", weight, (None, size), "[draft_vocab_size, hidden_size]")
        check_same_dtype(op, "weight", weight, hidden.dtype)
    else:
        vocab_size = weight.shape[0]
        check_shape(op, "weight", weight, (None, size // 2), "[draft_vocab_size, hidden_size / 2]")
        check_same_dtype(op, "weight", weight, torch.uint8)
        blocks = (vocab_size, size // 16)
        check_shape(op, "block_scale", block_scale, blocks, "[draft_vocab_size, hidden_size / 16]")
        check_same_dtype(op, "block_scale", block_scale, torch.float8_e4m3fn)
        check_shape(op, "global_scale", global_scale, (), "[]")
        check_same_dtype(op, "global_scale", global_scale, torch.float32)
    if d2t is not None:
        check_shape(op, "d2t", d2t, (weight.shape[0],), "[draft_vocab_size]")
        check_int64(op, "d2t", d2t)


def _check_rows(op: str, logits: torch.Tensor, rows: SamplingRows) -> None:
    check_float(op, "logits", logits)
    check_shape(op, "logits", logits, (None, None), "[R, V]")
    num_rows, vocab_size = logits.shape
    for name in PER_ROW_FIELDS:
        value = getattr(rows, name)
        if value is not None:
            check_shape(op, f"rows.{name}", value, (num_rows,), "[R]")
    for name in PER_TOKEN_FIELDS:
        value = getattr(rows, name)
        if value is not None:
            check_shape(op, f"rows.{name}", value, (num_rows, vocab_size), "[R, V]")


def _check_verify_rejection(
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor,
    drafts: torch.Tensor,
    num_drafts: torch.Tensor,
    accept_uniforms: torch.Tensor,
    sample_uniforms: torch.Tensor,
) -> None:
    op = "verify_rejection"
    check_float(op, "target_probs", target_probs)
    check_shape(op, "target_probs", target_probs, (None, None, None), "[batch, k + 1, V]")
    batch_size, num_rows, vocab_size = target_probs.shape
    k = num_rows - 1
    check_shape(op, "draft_probs", draft_probs, (batch_size, k, vocab_size), "[batch, k, V]")
    check_same_dtype(op, "draft_probs", draft_probs, target_probs.dtype)
    check_shape(op, "drafts", drafts, (batch_size, k), "[batch, k]")
    check_int64(op, "drafts", drafts)
    check_shape(op, "num_drafts", num_drafts, (batch_size,), "[batch]")
    check_int64(op, "num_drafts", num_drafts)
    check_shape(op, "accept_uniforms", accept_uniforms, (batch_size, k), "[batch, k]")
    check_shape(op, "sample_uniforms", sample_uniforms, (batch_size,), "[batch]")


library_draw.register(
    {
        "uniform": uniform,
        "process_logits": process_logits,
        "sample": sample,
        "verify_greedy": verify_greedy,
        "verify_rejection": verify_rejection,
        "lm_head_argmax": lm_head_argmax,
        "lm_head_max": lm_head_max,
    }
)
