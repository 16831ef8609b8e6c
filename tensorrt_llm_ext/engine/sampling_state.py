# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Per-request sampling state, and its batching into `SamplingInputs`."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tensorrt_llm_ext.configs.sampling import SamplingParams
from tensorrt_llm_ext.engine.request import Request
from tensorrt_llm_ext.engine.scheduler import ScheduledStep
from tensorrt_llm_ext.engine.warmup import SamplingKind
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
    return not request.sampling.is_greedy or _is_wide(request)


def kind_of(step: ScheduledStep) -> SamplingKind | None:
    """Returns how a step draws its tokens; None where a request has settings per token."""
    requests = [request for request in step.requests if needs_processing(request)]
    if not requests:
        return SamplingKind.GREEDY
    if any(_is_wide(request) for request in requests):
        return None
    return SamplingKind.FILTERED if any(map(_is_filtered, requests)) else SamplingKind.SAMPLED


def _is_wide(request: Request) -> bool:
    wide = (request.output_counts, request.prompt_mask, request.logit_bias, request.banned)
    return any(tensor is not None for tensor in wide)


def _is_filtered(request: Request) -> bool:
    params = request.sampling
    is_on = (params.effective_top_k > 0, params.effective_top_p < 1, params.effective_min_p > 0)
    return any(is_on)


def sampling_inputs(
    step: ScheduledStep,
    num_padding: int,
    vocab_size: int,
    device: torch.device,
    kind: SamplingKind | None = None,
) -> SamplingInputs | None:
    """Batches the sampling parameters of a step; None when every request is plainly greedy.

    Args:
        step: The step.
        num_padding: Requests behind the grid's that draw nothing.
        vocab_size: Width of the logits.
        device: Where the tensors go.
        kind: Of a captured step, whose tensors are there whether a request needs them or not.
    """
    if kind is SamplingKind.GREEDY:
        return None
    if kind is None and not any(needs_processing(request) for request in step.requests):
        return None
    requests: list[Request | None] = [*step.decodes, *[None] * num_padding]
    requests += [chunk.request for chunk in step.chunks]
    for request in step.requests:
        _count_new_tokens(request, device)
    is_filtered = kind is SamplingKind.FILTERED or any(map(_is_filtered, step.requests))
    has_penalties = any(
        r.output_counts is not None or r.prompt_mask is not None for r in step.requests
    )

    def column(
        value: Callable[[SamplingParams], float], padding: float, is_there: bool = True
    ) -> torch.Tensor | None:
        if not is_there:
            return None
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
    temperature = [0.0 if r is None else r.sampling.effective_temperature for r in requests]
    return SamplingInputs(
        seeds=integers(lambda r: r.seed),
        temperature=torch.tensor(temperature, dtype=torch.float32, device=device),
        top_k=integers(lambda r: r.sampling.effective_top_k) if is_filtered else None,
        top_p=column(lambda p: p.effective_top_p, 1.0, is_filtered),
        min_p=column(lambda p: p.effective_min_p, 0.0, is_filtered),
        presence_penalty=column(lambda p: p.effective_presence_penalty, 0.0, has_penalties),
        frequency_penalty=column(lambda p: p.effective_frequency_penalty, 0.0, has_penalties),
        repetition_penalty=column(lambda p: p.effective_repetition_penalty, 1.0, has_penalties),
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
