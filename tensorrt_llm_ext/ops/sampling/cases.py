# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Hostile inputs for sampling and acceptance: ties, extremes, settings mixed over rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tensorrt_llm_ext.ops.nvfp4 import nvfp4_quantize
from tensorrt_llm_ext.ops.nvfp4.format import global_scale_of
from tensorrt_llm_ext.ops.sampling import (
    SamplingRows,
    lm_head_argmax,
    lm_head_max,
    process_logits,
    sample,
    uniform,
    verify_greedy,
    verify_rejection,
)
from tensorrt_llm_ext.ops.testing import OpCase, randn

_INT64_MAX = (1 << 63) - 1
_NUM_ROWS = 6
_RowsFn = Callable[[torch.Generator, int, torch.device], SamplingRows]


def _uniform_case(name: str, seeds: list[int], positions: list[int]) -> OpCase:
    return OpCase(
        fn=uniform,
        name=name,
        build=lambda _, __, device: {
            "seeds": torch.tensor(seeds, dtype=torch.int64, device=device),
            "positions": torch.tensor(positions, dtype=torch.int64, device=device),
        },
    )


def _floats(*values: float) -> Callable[[torch.device], torch.Tensor]:
    return lambda device: torch.tensor(values, dtype=torch.float32, device=device)


def _filters(**fields: tuple[float, ...]) -> _RowsFn:
    """Rows with the given per-row settings; top_k as integers."""

    def rows(_: torch.Generator, __: int, device: torch.device) -> SamplingRows:
        tensors = {name: _floats(*values)(device) for name, values in fields.items()}
        if "top_k" in tensors:
            tensors["top_k"] = tensors["top_k"].long()
        return SamplingRows(**tensors)

    return rows


def _everything(generator: torch.Generator, vocab_size: int, device: torch.device) -> SamplingRows:
    """All settings on, each off in at least one row; the first row greedy."""
    counts = torch.randint(0, 3, (_NUM_ROWS, vocab_size), generator=generator)
    prompt = torch.rand(_NUM_ROWS, vocab_size, generator=generator) < 0.3
    bias = torch.randn(_NUM_ROWS, vocab_size, generator=generator)
    banned = torch.rand(_NUM_ROWS, vocab_size, generator=generator) < 0.2
    banned[:, 0] = False
    return SamplingRows(
        temperature=_floats(0.0, 1.0, 0.7, 1.3, 0.01, 5.0)(device),
        top_k=torch.tensor([3, 0, 5, 1, 1000, 4], device=device),
        top_p=_floats(0.5, 0.9, 1.0, 0.3, 0.7, 0.99)(device),
        min_p=_floats(0.2, 0.05, 0.0, 0.1, 1.0, 0.3)(device),
        presence_penalty=_floats(0.5, 0.0, -0.5, 1.0, 0.2, 2.0)(device),
        frequency_penalty=_floats(0.25, 0.1, 0.0, -0.3, 0.7, 0.4)(device),
        repetition_penalty=_floats(1.2, 1.0, 0.8, 1.5, 1.1, 2.0)(device),
        output_counts=counts.to(device),
        prompt_mask=prompt.to(device),
        logit_bias=bias.to(device),
        banned=banned.to(device),
    )


_ROWS: dict[str, _RowsFn] = {
    "greedy": lambda _, __, ___: SamplingRows(),
    "temperature": _filters(temperature=(0.0, 1.0, 0.3, 2.0, 1e-6, 100.0)),
    "top_k": _filters(temperature=(1.0,) * 6, top_k=(0, 1, 2, 5, 30, 31)),
    "top_p": _filters(temperature=(1.0,) * 6, top_p=(1.0, 1e-9, 0.1, 0.5, 0.9, 0.999)),
    "min_p": _filters(temperature=(1.0,) * 6, min_p=(0.0, 1.0, 0.5, 0.1, 0.01, 1e-6)),
    "filters": _filters(
        temperature=(1.0, 0.5, 2.0, 0.0, 1.0, 1.0),
        top_k=(10, 10, 3, 2, 0, 8),
        top_p=(0.9, 0.5, 0.99, 0.5, 0.8, 1.0),
        min_p=(0.1, 0.0, 0.2, 0.5, 0.0, 0.02),
    ),
    "penalties_without_tokens": _filters(
        temperature=(1.0,) * 6, repetition_penalty=(1.5,) * 6, presence_penalty=(1.0,) * 6
    ),
    "everything": _everything,
}


def _logits_case(fn: Callable[..., Any], rows: str, kind: str) -> OpCase:
    """Logits of 31 tokens: normal, tied (few distinct values), or extreme."""
    vocab_size = 31

    def build(
        generator: torch.Generator, dtype: torch.dtype, device: torch.device
    ) -> dict[str, Any]:
        logits = randn(generator, _NUM_ROWS, vocab_size, dtype=dtype, device=device)
        if kind == "tied":
            logits = (logits * 2).round()
        elif kind == "extreme":
            logits = logits * 1e4
            logits[:, 5] = float("-inf")
        inputs: dict[str, Any] = {
            "logits": logits,
            "rows": _ROWS[rows](generator, vocab_size, device),
        }
        if fn is sample:
            uniforms = torch.rand(_NUM_ROWS, generator=generator, dtype=torch.float64)
            uniforms[0], uniforms[1] = 0.0, 1.0 - 2.0**-53
            inputs["uniforms"] = uniforms.to(device)
        return inputs

    return OpCase(fn=fn, name=f"{rows}_{kind}", build=build)


def _verify_greedy_case(name: str, *, batch_size: int, query_len: int) -> OpCase:
    def build(
        generator: torch.Generator, dtype: torch.dtype, device: torch.device
    ) -> dict[str, Any]:
        sampled = torch.randint(0, 2, (batch_size, query_len), generator=generator)
        drafts = torch.randint(0, 2, (batch_size, query_len - 1), generator=generator)
        num_drafts = torch.randint(0, query_len, (batch_size,), generator=generator)
        return {
            "sampled": sampled.to(device),
            "drafts": drafts.to(device),
            "num_drafts": num_drafts.to(device),
        }

    return OpCase(fn=verify_greedy, name=name, build=build)


def _rejection_case(name: str, *, batch_size: int, k: int, kind: str = "random") -> OpCase:
    vocab_size = 5

    def build(
        generator: torch.Generator, dtype: torch.dtype, device: torch.device
    ) -> dict[str, Any]:
        p = torch.rand(batch_size, k + 1, vocab_size, generator=generator, dtype=torch.float64)
        q = torch.rand(batch_size, k, vocab_size, generator=generator, dtype=torch.float64)
        if kind == "sparse":
            p, q = p * (p > 0.6), q * (q > 0.6)
            p[..., 0] += 1e-3
            q[..., 1] += 1e-3
        p, q = p / p.sum(-1, keepdim=True), q / q.sum(-1, keepdim=True)
        if kind == "equal":
            q = p[:, :k].clone()
        num_drafts = torch.randint(0, k + 1, (batch_size,), generator=generator)
        drafts = torch.randint(0, vocab_size, (batch_size, k), generator=generator)
        drafts[torch.arange(k) >= num_drafts.unsqueeze(1)] = 10**12  # padding may hold anything
        accept = torch.rand(batch_size, k, generator=generator, dtype=torch.float64)
        recover = torch.rand(batch_size, generator=generator, dtype=torch.float64)
        return {
            "target_probs": p.to(device=device, dtype=dtype),
            "draft_probs": q.to(device=device, dtype=dtype),
            "drafts": drafts.to(device),
            "num_drafts": num_drafts.to(device),
            "accept_uniforms": accept.to(device),
            "sample_uniforms": recover.to(device),
        }

    return OpCase(fn=verify_rejection, name=name, build=build)


def _head_case(
    name: str,
    *,
    num_rows: int,
    has_d2t: bool = False,
    is_tied: bool = False,
    is_packed: bool = False,
    vocab_size: int = 23,
    fn: Callable[..., Any] = lm_head_argmax,
) -> OpCase:
    hidden_size = 32

    def build(
        generator: torch.Generator, dtype: torch.dtype, device: torch.device
    ) -> dict[str, Any]:
        weight = randn(generator, vocab_size, hidden_size, dtype=dtype, device=device)
        hidden = randn(generator, num_rows, hidden_size, dtype=dtype, device=device)
        if is_tied:  # small integers: products are exact, and many rows of the head are equal
            weight = weight[:4].repeat(vocab_size // 4 + 1, 1)[:vocab_size].round()
            hidden = hidden.round()
        inputs: dict[str, Any] = {"hidden": hidden, "weight": weight}
        if is_packed:
            scale = global_scale_of(weight.abs().max())
            data, block_scale = nvfp4_quantize(weight, scale)
            inputs |= {"weight": data, "block_scale": block_scale, "global_scale": scale}
        if fn is lm_head_argmax:
            d2t = torch.randint(0, 50, (vocab_size,), generator=generator).to(device)
            inputs["d2t"] = d2t if has_d2t else None
        return inputs

    return OpCase(fn=fn, name=name, build=build)


UNIFORM_CASES = (
    _uniform_case("zeros_and_ones", [0, 0, 1, 1], [0, 1, 0, 1]),
    _uniform_case(
        "extreme_integers",
        [_INT64_MAX, -_INT64_MAX - 1, -1, 12345],
        [_INT64_MAX, -_INT64_MAX - 1, -1, 1 << 40],
    ),
    _uniform_case("no_rows", [], []),
)
PROCESS_CASES = (
    *(_logits_case(process_logits, rows, kind) for rows in _ROWS for kind in ("normal", "tied")),
    _logits_case(process_logits, "filters", "extreme"),
)
SAMPLE_CASES = (
    *(_logits_case(sample, rows, kind) for rows in _ROWS for kind in ("normal", "tied")),
    _logits_case(sample, "filters", "extreme"),
)
VERIFY_GREEDY_CASES = (
    _verify_greedy_case("query9", batch_size=17, query_len=9),
    _verify_greedy_case("one_draft", batch_size=5, query_len=2),
    _verify_greedy_case("no_drafts", batch_size=3, query_len=1),
)
VERIFY_REJECTION_CASES = (
    _rejection_case("four_drafts", batch_size=40, k=4),
    _rejection_case("sparse_distributions", batch_size=40, k=3, kind="sparse"),
    _rejection_case("equal_distributions", batch_size=9, k=2, kind="equal"),
    _rejection_case("no_drafts", batch_size=3, k=0),
)
LM_HEAD_CASES = (
    _head_case("reduced_vocabulary", num_rows=7, has_d2t=True),
    _head_case("one_vocabulary", num_rows=1, has_d2t=False),
    _head_case("ties", num_rows=9, has_d2t=True, is_tied=True),
    _head_case("ties_over_tiles", num_rows=3, is_tied=True, vocab_size=1300),
    _head_case("many_rows", num_rows=70, has_d2t=True, vocab_size=150),
    _head_case("nvfp4", num_rows=5, has_d2t=True, is_packed=True, vocab_size=150),
    _head_case("nvfp4_many_rows", num_rows=19, is_packed=True, vocab_size=65),
    _head_case("no_rows", num_rows=0, has_d2t=True),
    *(
        _head_case(name, num_rows=7, is_packed=is_packed, vocab_size=131, fn=lm_head_max)
        for name, is_packed in (("shard", False), ("shard_nvfp4", True))
    ),
)
CASES = (
    UNIFORM_CASES
    + PROCESS_CASES
    + SAMPLE_CASES
    + VERIFY_GREEDY_CASES
    + VERIFY_REJECTION_CASES
    + LM_HEAD_CASES
)
