# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Step 2 of one-model execution: draw the target's tokens and count the accepted drafts.

Drafts are greedy, so a proposal is one-hot and rejection sampling reduces to a comparison: draw
x_i from the processed target distribution at row i and accept d_i iff it equals x_i. The uniform
behind x_i depends on the request's seed and the token's absolute position only, which is why
seeded text with speculation equals seeded text without it (DESIGN section 4).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812

from tensorrt_llm_ext.models.interfaces import TargetModel
from tensorrt_llm_ext.ops.sampling import SamplingRows, sample, uniform, verify_greedy
from tensorrt_llm_ext.speculative.metadata import (
    Logprobs,
    PromptRows,
    SamplingInputs,
    StepInputs,
)

_ROWS_AT_A_TIME = 128  # of logits, each as wide as the vocabulary


@dataclass
class Verdict:
    """What verification decided.

    Attributes:
        grid_tokens: [num_decode, query_len] int64, x_i at each grid row.
        prefill_tokens: [num_prefill] int64, the token drawn at each chunk's last row.
        num_accepted: [num_decode] int64, accepted drafts.
    """

    grid_tokens: torch.Tensor
    prefill_tokens: torch.Tensor
    num_accepted: torch.Tensor

    def tokens(self, query_len: int) -> torch.Tensor:
        """[batch, query_len] int64, chunk rows padded with zeros."""
        if self.prefill_tokens.shape[0] == 0:
            return self.grid_tokens
        chunk = F.pad(self.prefill_tokens.unsqueeze(1), (0, query_len - 1))
        return torch.cat((self.grid_tokens, chunk))


def verify(logits: torch.Tensor, inputs: StepInputs) -> Verdict:
    """Draws one token per row and counts the accepted drafts.

    Args:
        logits: [num_grid_rows + num_prefill, vocab], the grid's rows, then each chunk's last row.
        inputs: The step.
    """
    if inputs.sampling is None:
        sampled = logits.argmax(dim=-1)
    else:
        requests, offsets = _row_owners(inputs, logits.device)
        rows = _sampling_rows(inputs, inputs.sampling, requests, offsets)
        positions = inputs.first_generated[requests] + offsets
        sampled = sample(logits, rows, uniform(inputs.sampling.seeds[requests], positions))
    num_grid_rows = inputs.num_grid_rows
    grid = sampled[:num_grid_rows].view(inputs.num_decode, inputs.query_len)
    if inputs.query_len > 1:
        drafts = _grid_token_ids(inputs)[:, 1:]
        num_accepted = verify_greedy(grid, drafts, inputs.num_drafts)
    else:
        num_accepted = torch.zeros_like(inputs.num_drafts)
    return Verdict(grid, sampled[num_grid_rows:], num_accepted)


def logprobs_of(logits: torch.Tensor, verdict: Verdict, inputs: StepInputs, num: int) -> Logprobs:
    """Log-probabilities of the drawn tokens and of the `num` most likely ones.

    They come from the target's own logits, before temperature, penalties and filters, so that they
    do not depend on how a token was drawn.
    """
    drawn = torch.cat((verdict.grid_tokens.flatten(), verdict.prefill_tokens))
    rows = _scored(logits, drawn, num)
    return Logprobs(
        tokens=_by_request(rows.tokens, inputs),
        sampled=_by_request(rows.sampled, inputs),
        sampled_rank=_by_request(rows.sampled_rank, inputs),
        top=_by_request(rows.top, inputs),
        top_ids=_by_request(rows.top_ids, inputs),
    )


def prompt_logprobs(target: TargetModel, hidden: torch.Tensor, asked: PromptRows) -> Logprobs:
    """Log-probabilities of prompt tokens; few rows of logits are held at a time.

    Args:
        target: For the logits.
        hidden: [num_tokens, hidden] states of the step.
        asked: Which rows.
    """
    parts = [
        _scored(target.compute_logits(hidden.index_select(0, rows)), tokens, asked.num_top)
        for rows, tokens in zip(
            torch.split(asked.rows, _ROWS_AT_A_TIME),
            torch.split(asked.successors, _ROWS_AT_A_TIME),
            strict=True,
        )
    ]
    return Logprobs(
        tokens=asked.successors,
        sampled=torch.cat([part.sampled for part in parts]),
        sampled_rank=torch.cat([part.sampled_rank for part in parts]),
        top=torch.cat([part.top for part in parts]),
        top_ids=torch.cat([part.top_ids for part in parts]),
    )


def _scored(logits: torch.Tensor, tokens: torch.Tensor, num: int) -> Logprobs:
    """Scores one token per row of logits."""
    values = torch.log_softmax(logits.to(torch.promote_types(logits.dtype, torch.float32)), dim=-1)
    sampled = values.gather(1, tokens.unsqueeze(1))
    top, top_ids = values.topk(min(num, values.shape[1]), dim=-1)
    return Logprobs(
        tokens=tokens,
        sampled=sampled.squeeze(1),
        sampled_rank=(values > sampled).sum(dim=-1) + 1,
        top=top,
        top_ids=top_ids,
    )


def _by_request(rows: torch.Tensor, inputs: StepInputs) -> torch.Tensor:
    """[num_grid_rows + num_prefill, ...] -> [batch, query_len, ...], chunk rows padded."""
    grid = rows[: inputs.num_grid_rows]
    grid = grid.view(inputs.num_decode, inputs.query_len, *rows.shape[1:])
    chunk = rows[inputs.num_grid_rows :].unsqueeze(1)
    padding = chunk.new_zeros((chunk.shape[0], inputs.query_len - 1, *chunk.shape[2:]))
    return torch.cat((grid, torch.cat((chunk, padding), dim=1)))


def _grid_token_ids(inputs: StepInputs) -> torch.Tensor:
    return inputs.token_ids[: inputs.num_grid_rows].view(inputs.num_decode, inputs.query_len)


def _row_owners(inputs: StepInputs, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Request and offset within the request of each row of logits."""
    decode = torch.arange(inputs.num_decode, device=device).repeat_interleave(inputs.query_len)
    offsets = torch.arange(inputs.query_len, device=device).repeat(inputs.num_decode)
    prefill = torch.arange(inputs.num_decode, inputs.batch_size, device=device)
    return torch.cat((decode, prefill)), torch.cat((offsets, torch.zeros_like(prefill)))


def _sampling_rows(
    inputs: StepInputs, sampling: SamplingInputs, requests: torch.Tensor, offsets: torch.Tensor
) -> SamplingRows:
    banned = None
    if sampling.banned is not None and sampling.ban_until is not None:
        early = inputs.first_generated[requests] + offsets < sampling.ban_until[requests]
        banned = sampling.banned[requests] & early.unsqueeze(1)

    def per_row(values: torch.Tensor | None) -> torch.Tensor | None:
        return None if values is None else values[requests]

    return SamplingRows(
        temperature=per_row(sampling.temperature),
        top_k=per_row(sampling.top_k),
        top_p=per_row(sampling.top_p),
        min_p=per_row(sampling.min_p),
        presence_penalty=per_row(sampling.presence_penalty),
        frequency_penalty=per_row(sampling.frequency_penalty),
        repetition_penalty=per_row(sampling.repetition_penalty),
        output_counts=_counts_per_row(inputs, sampling, requests),
        prompt_mask=per_row(sampling.prompt_mask),
        logit_bias=per_row(sampling.logit_bias),
        banned=banned,
    )


def _counts_per_row(
    inputs: StepInputs, sampling: SamplingInputs, requests: torch.Tensor
) -> torch.Tensor | None:
    """Counts of generated tokens that row i sees: the committed ones and drafts d_1..d_i.

    Row i only matters when d_1..d_i were accepted, so counting them as generated is exact.
    """
    if sampling.output_counts is None:
        return None
    counts = sampling.output_counts[requests]
    if inputs.query_len == 1:
        return counts
    grid = _grid_token_ids(inputs).unsqueeze(-1)
    drafted = counts.new_zeros((inputs.num_decode, inputs.query_len, counts.shape[-1]))
    drafted.scatter_(2, grid, 1)
    drafted[:, 0] = 0
    drafted = drafted.cumsum(dim=1).flatten(0, 1)
    return torch.cat((counts[: inputs.num_grid_rows] + drafted, counts[inputs.num_grid_rows :]))
