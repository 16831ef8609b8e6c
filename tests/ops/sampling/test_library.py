# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The library ops of sampling are the public ones, with every setting in its place."""

from __future__ import annotations

from dataclasses import fields

import torch

from tensorrt_llm_ext.ops.sampling import SamplingRows, process_logits, sample, uniform
from tensorrt_llm_ext.ops.sampling.cases import SAMPLE_CASES

CPU = torch.device("cpu")
OPS = torch.ops.trtllm_ext
CASES = [case for case in SAMPLE_CASES if case.name.startswith("everything")]


def settings(rows: SamplingRows) -> list[torch.Tensor | None]:
    return [getattr(rows, field.name) for field in fields(rows)]


def test_every_setting_arrives() -> None:
    assert CASES
    for case in CASES:
        given = case.inputs(torch.float32, CPU)
        logits, rows, u = given["logits"], given["rows"], given["uniforms"]
        assert OPS.sample(logits, u, *settings(rows)).tolist() == sample(logits, rows, u).tolist()
        processed = OPS.process_logits(logits, *settings(rows))
        torch.testing.assert_close(processed, process_logits(logits, rows), rtol=0, atol=0)


def test_settings_by_name_and_none() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0]])
    assert OPS.sample(logits, None).tolist() == [1]
    banned = torch.tensor([[False, True, False]])
    assert OPS.sample(logits, None, banned=banned).tolist() == [2]


def test_opcheck() -> None:
    seeds = torch.arange(4)
    torch.library.opcheck(OPS.uniform.default, (seeds, seeds))
    logits, u = torch.randn(4, 9), uniform(seeds, seeds)
    torch.library.opcheck(OPS.sample.default, (logits, u, torch.ones(4)))
    torch.library.opcheck(OPS.process_logits.default, (logits, torch.ones(4)))
    ids = torch.randint(0, 2, (4, 3))
    torch.library.opcheck(OPS.verify_greedy.default, (ids, ids[:, 1:], torch.full((4,), 2)))
    p, q = torch.rand(4, 3, 9), torch.rand(4, 2, 9)
    tokens = torch.randint(0, 9, (4, 2))
    rand = torch.rand(4, 2, dtype=torch.float64)
    torch.library.opcheck(
        OPS.verify_rejection.default, (p, q, tokens, torch.full((4,), 2), rand, rand[:, 0])
    )


def test_opcheck_of_heads() -> None:
    hidden, weight = torch.randn(3, 16), torch.randn(9, 16)
    torch.library.opcheck(OPS.lm_head_argmax.default, (hidden, weight, torch.arange(9)))
    torch.library.opcheck(OPS.lm_head_argmax.default, (hidden, weight, None))
    torch.library.opcheck(OPS.lm_head_max.default, (hidden, weight))
