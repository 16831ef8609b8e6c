# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Per-request sampling state, and its batching into `SamplingInputs`."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tensorrt_llm_ext.configs.sampling import SamplingParams
from tensorrt_llm_ext.engine.request import Request
from tensorrt_llm_ext.engine.scheduler import ScheduledStep
from tensorrt_llm_ext.speculative.metadata import SamplingInputs


def prepare(request: Request, vocab_size: int, device: torch.device) -> None:
    """Makes the vocabulary-wide tensors that a request's parameters need, once."""
    params = request.sampling
    if params.has_penalties:
        request.output_counts = torch.zeros(vocab_size, dtype=torch.int64, device=device)
        request.num_counted = request.num_prompt_tokens
    if params.effective_repetition_penalty != 1.0:
        request.prompt_mask = torch.zeros(vocab_size, dtype=torch.bool, device=device)
        prompt = torch.tensor(request.token_ids[: request.num_prompt_tokens], device=device)
        request.prompt_mask[prompt] = True
    if params.token_bias:
        request.logit_bias = torch.zeros(vocab_size, dtype=torch.float32, device=device)
        for token, bias in params.token_bias.items():
            request.logit_bias[token] = bias
    if params.effective_min_tokens and request.stop_token_ids:
        request.banned = torch.zeros(vocab_size, dtype=torch.bool, device=device)
        request.banned[torch.tensor(request.stop_token_ids, device=device)] = True


def needs_processing(request: Request) -> bool:
    """Whether the request's tokens are anything but the argmax of the target's logits."""
    wide = (request.output_counts, request.prompt_mask, request.logit_bias, request.banned)
    return not request.sampling.is_greedy or any(tensor is not None for tensor in wide)


def sampling_inputs(
    step: ScheduledStep, num_padding: int, vocab_size: int, device: torch.device
) -> SamplingInputs | None:
    """Batches the sampling parameters of a step; None when every request is plainly greedy."""
    if not any(needs_processing(request) for request in step.requests):
        return None
    requests: list[Request | None] = [*step.decodes, *[None] * num_padding]
    requests += [chunk.request for chunk in step.chunks]
    for request in step.requests:
        _count_new_tokens(request, device)

    def column(value: Callable[[SamplingParams], float], padding: float) -> torch.Tensor:
        values = [padding if r is None else value(r.sampling) for r in requests]
        return torch.tensor(values, dtype=torch.float32, device=device)

    def integers(value: Callable[[Request], int]) -> torch.Tensor:
        values = [0 if r is None else value(r) for r in requests]
        return torch.tensor(values, dtype=torch.int64, device=device)

    def wide(name: str, dtype: torch.dtype) -> torch.Tensor | None:
        return _stack(
            [None if r is None else getattr(r, name) for r in requests], vocab_size, dtype
        )

    banned = wide("banned", torch.bool)
    return SamplingInputs(
        seeds=integers(lambda r: r.seed),
        temperature=column(lambda p: p.effective_temperature, 0.0),
        top_k=integers(lambda r: r.sampling.effective_top_k),
        top_p=column(lambda p: p.effective_top_p, 1.0),
        min_p=column(lambda p: p.effective_min_p, 0.0),
        presence_penalty=column(lambda p: p.effective_presence_penalty, 0.0),
        frequency_penalty=column(lambda p: p.effective_frequency_penalty, 0.0),
        repetition_penalty=column(lambda p: p.effective_repetition_penalty, 1.0),
        output_counts=wide("output_counts", torch.int64),
        prompt_mask=wide("prompt_mask", torch.bool),
        logit_bias=wide("logit_bias", torch.float32),
        banned=banned,
        ban_until=None if banned is None else integers(_ban_until),
    )


def _ban_until(request: Request) -> int:
    return request.num_prompt_tokens + request.sampling.effective_min_tokens


def _count_new_tokens(request: Request, device: torch.device) -> None:
    """Adds the tokens committed since the last step to the request's counts."""
    if request.output_counts is None or request.num_counted == request.num_tokens:
        return
    new = torch.tensor(request.token_ids[request.num_counted :], device=device)
    request.output_counts.index_add_(0, new, torch.ones_like(new))
    request.num_counted = request.num_tokens


def _stack(
    rows: list[torch.Tensor | None], vocab_size: int, dtype: torch.dtype
) -> torch.Tensor | None:
    """[batch, vocab], zeros for requests without the tensor; None when no request has it."""
    present = next((row for row in rows if row is not None), None)
    if present is None:
        return None
    empty = torch.zeros(vocab_size, dtype=dtype, device=present.device)
    return torch.stack([empty if row is None else row for row in rows])
