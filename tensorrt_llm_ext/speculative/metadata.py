# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""What one step of one-model execution takes and returns.

Rows are ordered as in `MLAMetadata`: the decode grid first (`num_decode` requests of `query_len`
rows: the last committed token and its pending drafts, padded), then the prefill chunks. Requests
are in the same order. Every size here is known to the host before the step; every value is a
tensor that only the device reads.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch

from tensorrt_llm_ext.ops.attention.metadata import MLAMetadata, PrefillMetadata


@dataclass
class SamplingInputs:
    """Sampling parameters of each request; absent in a step that is greedy throughout.

    Attributes:
        seeds: [batch] int64.
        temperature: [batch] float32; 0 is greedy.
        top_k: [batch] int64; 0 is off. This and the next five are None where no request has them.
        top_p, min_p, presence_penalty, frequency_penalty, repetition_penalty: [batch] float32.
        output_counts: [batch, vocab] int64, how often each token was generated so far, or None.
        prompt_mask: [batch, vocab] bool, tokens of the prompt, or None.
        logit_bias: [batch, vocab] float32, or None.
        banned: [batch, vocab] bool, tokens that end a request (banned before `ban_until`), or None.
        ban_until: [batch] int64, first absolute position at which `banned` no longer holds.
    """

    seeds: torch.Tensor
    temperature: torch.Tensor
    top_k: torch.Tensor | None = None
    top_p: torch.Tensor | None = None
    min_p: torch.Tensor | None = None
    presence_penalty: torch.Tensor | None = None
    frequency_penalty: torch.Tensor | None = None
    repetition_penalty: torch.Tensor | None = None
    output_counts: torch.Tensor | None = None
    prompt_mask: torch.Tensor | None = None
    logit_bias: torch.Tensor | None = None
    banned: torch.Tensor | None = None
    ban_until: torch.Tensor | None = None


@dataclass
class RingFlush:
    """Rows of the k = 0 ring that the draft has not seen, for a step that resumes drafting.

    Attributes:
        ring_rows: [rows] int64, flat rows of the ring.
        successors: [rows] int64, the committed token after each row's position.
        positions: [rows] int64.
        metadata: Where the rows live: one prefill chunk per resuming request.
    """

    ring_rows: torch.Tensor
    successors: torch.Tensor
    positions: torch.Tensor
    metadata: MLAMetadata


@dataclass
class PromptRows:
    """Rows of prompts whose successors' log-probabilities are wanted.

    Attributes:
        rows: [n] int64 flat rows of the step.
        successors: [n] int64, the prompt's token after each row.
        num_top: Most likely tokens to return beside it.
    """

    rows: torch.Tensor
    successors: torch.Tensor
    num_top: int


@dataclass
class StepInputs:
    """Inputs of one step.

    Attributes:
        token_ids: [num_tokens] int64.
        positions: [num_tokens] int64.
        metadata: Cache placement of the rows.
        block_table: [batch, num_columns] int64, all requests, for the draft chain.
        num_drafts: [num_decode] int64, valid drafts of each grid row; the rest is padding.
        next_tokens: [num_prefill_tokens] int64, successor of each chunk row; any number at the
            last row of a final chunk, whose successor is sampled in the step.
        last_rows: [num_prefill] int64, flat row of each chunk's last token.
        emits: [batch] bool, whether the request samples in this step (not for inner chunks).
        first_generated: [batch] int64, absolute position of the first token it may emit.
        max_positions: Positions that a row may have; the chain writes nothing at or past it.
        draft_len: Drafts to propose for the next step (k'); 0 runs no draft kernel.
        num_logprobs: Log-probabilities to return per emitted token; None for none.
        prompt_rows: Prompt rows to return log-probabilities of, or None.
        sampling: None for a step that is greedy throughout.
        ring_rows: [num_tokens] int64, flat ring row that each captured state goes to at k' = 0
            (the ring's last row takes what nobody needs), or None.
        flush: Ring rows to feed to the draft first, or None.
        num_decode, query_len, num_prefill: Sizes, known to the host.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    metadata: MLAMetadata
    block_table: torch.Tensor
    num_drafts: torch.Tensor
    next_tokens: torch.Tensor
    last_rows: torch.Tensor
    emits: torch.Tensor
    first_generated: torch.Tensor
    num_decode: int
    query_len: int
    num_prefill: int
    block_size: int
    max_positions: int
    draft_len: int
    num_logprobs: int | None = None
    prompt_rows: PromptRows | None = None
    sampling: SamplingInputs | None = None
    ring_rows: torch.Tensor | None = None
    flush: RingFlush | None = None

    @property
    def batch_size(self) -> int:
        """Requests in the step."""
        return self.num_decode + self.num_prefill

    @property
    def num_grid_rows(self) -> int:
        """Rows of the decode grid, padding included."""
        return self.num_decode * self.query_len

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return _nbytes(self)

    def to(self, device: torch.device) -> StepInputs:
        """Returns new inputs with the same values on a device."""
        moved: StepInputs = _moved(self, device)
        return moved

    def forget_derived(self) -> None:
        """Drops cached tensors that were derived from the values, in this object and below."""
        _forget(self)

    def copy_(self, other: StepInputs) -> None:
        """Overwrites these (static) buffers with the values of inputs of the same shapes.

        What a captured step reads stays at the same addresses; cached tensors derived from the
        old values are dropped, because the captured step computes them itself.

        Raises:
            ValueError: If the two differ in anything but tensor values.
        """
        _copy_fields(self, other, "inputs")


def _copy_fields(into: Any, source: Any, path: str) -> None:
    for field in dataclasses.fields(into):
        old, new = getattr(into, field.name), getattr(source, field.name)
        where = f"{path}.{field.name}"
        if isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor):
            if old.shape != new.shape:
                raise ValueError(
                    f"{where} has shape {tuple(new.shape)}, the static buffer {tuple(old.shape)}. "
                    "Pad the batch to the bucket that the buffers were made for."
                )
            old.copy_(new)
        elif dataclasses.is_dataclass(old) and type(old) is type(new):
            _copy_fields(old, new, where)
        elif isinstance(old, tuple) and isinstance(new, tuple) and len(old) == len(new):
            for index, (left, right) in enumerate(zip(old, new, strict=True)):
                _copy_fields(left, right, f"{where}[{index}]")
        elif old != new:
            raise ValueError(f"{where} is {new!r}, the static buffers were made for {old!r}.")
    _forget_own(into)


def _forget_own(value: Any) -> None:
    if hasattr(value, "__dict__"):
        names = {field.name for field in dataclasses.fields(value)}
        for cached in [name for name in vars(value) if name not in names]:
            del value.__dict__[cached]


def _forget(value: Any) -> None:
    _forget_own(value)
    for field in dataclasses.fields(value):
        item = getattr(value, field.name)
        for part in item if isinstance(item, tuple) else (item,):
            if dataclasses.is_dataclass(part):
                _forget(part)


def _nbytes(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.nbytes
    if isinstance(value, tuple):
        return sum(map(_nbytes, value))
    if dataclasses.is_dataclass(value):
        return sum(_nbytes(getattr(value, field.name)) for field in dataclasses.fields(value))
    return 0


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device, copy=True)
    if isinstance(value, tuple):
        return tuple(_moved(item, device) for item in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        moved = {name: _moved(item, device) for name, item in fields.items()}
        return dataclasses.replace(value, **moved)
    return value


@dataclass
class Logprobs:
    """Log-probabilities of the emitted tokens, of the unprocessed target distribution.

    Attributes:
        tokens: [batch, query_len] int64; of prompt rows every shape here begins with [n] instead.
        sampled: [batch, query_len] log-probability of each of them.
        sampled_rank: [batch, query_len] int64, 1 for the most likely token.
        top: [batch, query_len, n] the n largest, descending.
        top_ids: [batch, query_len, n] int64.
    """

    tokens: torch.Tensor
    sampled: torch.Tensor
    sampled_rank: torch.Tensor
    top: torch.Tensor
    top_ids: torch.Tensor


@dataclass
class StepOutputs:
    """Results of one step, still on the device.

    Attributes:
        tokens: [batch, query_len] int64: x_i drawn at each row; the first `num_emitted` count.
        num_emitted: [batch] int64: accepted drafts plus one; 0 for inner prefill chunks.
        drafts: [batch, draft_len] int64 target ids of the next drafts, or None at k' = 0.
        logprobs: Only when asked.
        prompt_logprobs: Of `StepInputs.prompt_rows`.
        num_nan: [] int64, rows of logits that are NaN.
    """

    tokens: torch.Tensor
    num_emitted: torch.Tensor
    drafts: torch.Tensor | None = None
    logprobs: Logprobs | None = None
    prompt_logprobs: Logprobs | None = None
    num_nan: torch.Tensor | None = None


__all__ = [
    "Logprobs",
    "MLAMetadata",
    "PrefillMetadata",
    "PromptRows",
    "RingFlush",
    "SamplingInputs",
    "StepInputs",
    "StepOutputs",
]
