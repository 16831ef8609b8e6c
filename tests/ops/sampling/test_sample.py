# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Every sampling kernel equals its reference; the references follow their distributions."""

from __future__ import annotations

import pytest
import torch

from tensorrt_llm_ext.errors import ShapeError
from tensorrt_llm_ext.ops.sampling import SamplingRows, lm_head_argmax, process_logits, sample
from tensorrt_llm_ext.ops.sampling.cases import CASES, LM_HEAD_CASES, PROCESS_CASES, SAMPLE_CASES
from tensorrt_llm_ext.ops.testing import OpCase
from tests.ops.chi_square import p_value
from tests.ops.kernel_params import DTYPES, check_kernel, check_reads_nothing, kernel_params

KERNELS = ["reference", "torch"]
INF = float("inf")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("case", "kernel"), kernel_params(PROCESS_CASES))
def test_process_logits(
    case: OpCase, kernel: str, dtype: torch.dtype, device: torch.device
) -> None:
    check_kernel(case, kernel, dtype, device)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("case", "kernel"), kernel_params(SAMPLE_CASES))
def test_sample(case: OpCase, kernel: str, dtype: torch.dtype, device: torch.device) -> None:
    check_kernel(case, kernel, dtype, device)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("case", "kernel"), kernel_params(LM_HEAD_CASES))
def test_lm_head_argmax(
    case: OpCase, kernel: str, dtype: torch.dtype, device: torch.device
) -> None:
    check_kernel(case, kernel, dtype, device)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.op}-{case.name}")
def test_reads_nothing_on_the_host(case: OpCase) -> None:
    check_reads_nothing(case, torch.float32)


def kept(logits: list[float], kernel: str, **settings: float) -> list[int]:
    """Ids that one row of logits keeps under the settings (temperature 1)."""
    values = {name: torch.tensor([value]) for name, value in settings.items()}
    rows = SamplingRows(**({"temperature": torch.ones(1)} | values))
    processed = process_logits(torch.tensor([logits]).double(), rows, kernel=kernel)
    return processed[0].isfinite().nonzero().flatten().tolist()


@pytest.mark.parametrize("kernel", KERNELS)
def test_top_k_keeps_ties_with_the_last(kernel: str) -> None:
    logits = [1.0, 3.0, 2.0, 2.0, 0.0, 2.0]
    assert kept(logits, kernel, top_k=1) == [1]
    assert kept(logits, kernel, top_k=2) == [1, 2, 3, 5]
    assert kept(logits, kernel, top_k=5) == [0, 1, 2, 3, 5]
    assert kept(logits, kernel, top_k=0) == kept(logits, kernel, top_k=99) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("kernel", KERNELS)
def test_top_p_keeps_the_smallest_prefix(kernel: str) -> None:
    logits = torch.tensor([0.1, 0.4, 0.2, 0.3]).double().log().tolist()
    assert kept(logits, kernel, top_p=1e-6) == [1]
    assert kept(logits, kernel, top_p=0.39) == [1]
    assert kept(logits, kernel, top_p=0.41) == [1, 3]
    assert kept(logits, kernel, top_p=0.69) == [1, 3]
    assert kept(logits, kernel, top_p=0.71) == [1, 2, 3]
    assert kept(logits, kernel, top_p=1.0) == [0, 1, 2, 3]
    # Among equals the lower id is in the prefix.
    assert kept([0.0] * 4, kernel, top_p=0.6) == [0, 1, 2]


@pytest.mark.parametrize("kernel", KERNELS)
def test_top_p_sees_the_tokens_that_top_k_left(kernel: str) -> None:
    logits = torch.tensor([0.1, 0.4, 0.2, 0.3]).double().log().tolist()
    # Of {0.4, 0.3} renormalised, the first alone holds 4/7 = 0.571.
    assert kept(logits, kernel, top_k=2, top_p=0.57) == [1]
    assert kept(logits, kernel, top_k=2, top_p=0.58) == [1, 3]


@pytest.mark.parametrize("kernel", KERNELS)
def test_min_p_is_relative_to_the_largest(kernel: str) -> None:
    logits = torch.tensor([0.1, 0.4, 0.2, 0.3]).double().log().tolist()
    assert kept(logits, kernel, min_p=0.51) == [1, 3]
    assert kept(logits, kernel, min_p=0.49) == [1, 2, 3]
    assert kept(logits, kernel, min_p=0.0) == [0, 1, 2, 3]
    assert kept(logits, kernel, min_p=1.0) == [1]


@pytest.mark.parametrize("kernel", KERNELS)
def test_penalties_by_hand(kernel: str) -> None:
    rows = SamplingRows(
        temperature=torch.tensor([2.0]),
        repetition_penalty=torch.tensor([2.0]),
        presence_penalty=torch.tensor([0.5]),
        frequency_penalty=torch.tensor([0.25]),
        output_counts=torch.tensor([[0, 3, 0, 0, 0]]),
        prompt_mask=torch.tensor([[False, False, True, False, False]]),
        logit_bias=torch.tensor([[0.0, 0.0, 0.0, 6.0, 0.0]]),
        banned=torch.tensor([[False, False, False, False, True]]),
    )
    logits = torch.tensor([[1.0, 4.0, -1.0, 0.0, 9.0]]).double()
    # 1; 4/2 - 0.5 - 3*0.25 = 0.75; -1*2 = -2; 0 + 6; banned. Then less the largest, over 2.
    want = torch.tensor([[(1 - 6) / 2, (0.75 - 6) / 2, (-2 - 6) / 2, 0.0, -INF]]).double()
    torch.testing.assert_close(process_logits(logits, rows, kernel=kernel), want)


@pytest.mark.parametrize("kernel", KERNELS)
def test_greedy_takes_the_lowest_id_among_equals(kernel: str) -> None:
    logits = torch.tensor([[0.0, 7.0, 3.0, 7.0], [5.0, 5.0, 5.0, 5.0]])
    assert sample(logits, SamplingRows(), None, kernel=kernel).tolist() == [1, 0]
    rows = SamplingRows(temperature=torch.zeros(2))
    uniforms = torch.tensor([0.0, 0.999], dtype=torch.float64)
    assert sample(logits, rows, uniforms, kernel=kernel).tolist() == [1, 0]
    probs = process_logits(logits, rows, kernel=kernel).softmax(-1)
    assert probs.tolist() == [[0, 1, 0, 0], [1, 0, 0, 0]]


@pytest.mark.parametrize("kernel", KERNELS)
def test_greedy_sees_bias_penalties_and_bans(kernel: str) -> None:
    logits = torch.tensor([[3.0, 2.0, 1.0]]).repeat(3, 1)
    zero = torch.zeros(3, 3)
    bias, counts, banned = zero.clone(), zero.long(), zero.bool()
    bias[0, 2], counts[1, 0], banned[2, 0] = 2.5, 1, True
    rows = SamplingRows(
        logit_bias=bias,
        output_counts=counts,
        presence_penalty=torch.full((3,), 1.5),
        banned=banned,
    )
    assert sample(logits, rows, None, kernel=kernel).tolist() == [2, 1, 1]


@pytest.mark.parametrize("kernel", KERNELS)
def test_sample_is_the_inverse_cdf_in_id_order(kernel: str) -> None:
    # Probabilities 1/8, 0, 3/8, 1/2: thresholds are exact in binary.
    logits = torch.tensor([[1.0, 0.0, 3.0, 4.0]]).double().log().repeat(6, 1)
    uniforms = torch.tensor([0.0, 0.1249, 0.1251, 0.4999, 0.5001, 1 - 2.0**-53]).double()
    rows = SamplingRows(temperature=torch.ones(6))
    assert sample(logits, rows, uniforms, kernel=kernel).tolist() == [0, 0, 2, 2, 3, 3]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_never_a_token_of_probability_zero(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(200, 9, generator=generator, dtype=dtype)
    allowed = torch.rand(200, 9, generator=generator) < 0.3
    allowed[:, 4] = True
    uniforms = torch.cat([torch.zeros(100), torch.full((100,), 1 - 2.0**-53)]).double()
    uniforms[100:] = 1 - 2.0**-53
    rows = SamplingRows(temperature=torch.ones(200), banned=~allowed)
    ids = sample(logits, rows, uniforms)
    assert allowed.gather(1, ids.unsqueeze(1)).all()
    assert torch.equal(ids[:100], allowed[:100].long().argmax(dim=1))  # u = 0: the first allowed


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    case = next(case for case in SAMPLE_CASES if case.name == "everything_normal")
    inputs = case.inputs(torch.float64, torch.device("cpu"))
    together = sample(**inputs)
    rows = inputs["rows"]
    for i in range(together.shape[0]):
        alone = SamplingRows(
            **{name: getattr(rows, name)[i : i + 1] for name in SamplingRows.__dataclass_fields__}
        )
        got = sample(inputs["logits"][i : i + 1], alone, inputs["uniforms"][i : i + 1])
        assert got.item() == together[i].item()


DRAWS = 20_000
TRUTH = torch.tensor([0.05, 0.3, 0.02, 0.13, 0.25, 0.1, 0.08, 0.07]).double()


def draw_counts(probs: torch.Tensor, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    uniforms = torch.rand(DRAWS, generator=generator, dtype=torch.float64)
    rows = SamplingRows(temperature=torch.ones(DRAWS))
    ids = sample(probs.log().expand(DRAWS, -1), rows, uniforms)
    return torch.bincount(ids, minlength=probs.numel())


@pytest.mark.parametrize("seed", range(20))
def test_sample_follows_the_distribution(seed: int) -> None:
    assert p_value(draw_counts(TRUTH, seed), TRUTH) > 1e-4


def test_a_sampler_biased_by_two_percent_is_found() -> None:
    biased = TRUTH + torch.tensor([0.02, -0.02, 0, 0, 0, 0, 0, 0])
    for seed in range(20):
        assert p_value(draw_counts(biased, seed), TRUTH) < 1e-4


@pytest.mark.parametrize("kernel", KERNELS)
def test_lm_head_argmax_by_hand(kernel: str) -> None:
    hidden = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    weight = torch.tensor([[1.0, 5.0], [2.0, 5.0], [2.0, 4.0]])
    d2t = torch.tensor([10, 20, 30])
    draft_ids, target_ids = lm_head_argmax(hidden, weight, d2t, kernel=kernel)
    assert (draft_ids.tolist(), target_ids.tolist()) == ([1, 0], [21, 10])
    draft_ids, target_ids = lm_head_argmax(hidden, weight, None, kernel=kernel)
    assert (draft_ids.tolist(), target_ids.tolist()) == ([1, 0], [1, 0])


def test_inputs_are_not_changed() -> None:
    case = next(case for case in PROCESS_CASES if case.name == "everything_normal")
    inputs = case.inputs(torch.float32, torch.device("cpu"))
    fresh = case.inputs(torch.float32, torch.device("cpu"))
    process_logits(**inputs)
    assert torch.equal(inputs["logits"], fresh["logits"])
    for name in SamplingRows.__dataclass_fields__:
        assert torch.equal(getattr(inputs["rows"], name), getattr(fresh["rows"], name)), name


def test_sampling_refuses() -> None:
    logits = torch.zeros(2, 5)
    with pytest.raises(ShapeError, match=r"rows.top_p has shape \[3\], expected \[2\]"):
        process_logits(logits, SamplingRows(temperature=torch.ones(2), top_p=torch.ones(3)))
    with pytest.raises(ShapeError, match=r"rows.banned has shape \[5\], expected \[2, 5\]"):
        process_logits(logits, SamplingRows(banned=torch.zeros(5).bool()))
    with pytest.raises(ShapeError, match="uniforms is None"):
        sample(logits, SamplingRows(temperature=torch.ones(2)), None)
    with pytest.raises(ShapeError, match="uniforms has shape"):
        sample(logits, SamplingRows(temperature=torch.ones(2)), torch.zeros(3))
    with pytest.raises(ShapeError, match="logits has dtype"):
        sample(logits.long(), SamplingRows(), None)
    with pytest.raises(ShapeError, match=r"d2t has shape \[4\], expected \[5\]"):
        lm_head_argmax(torch.zeros(1, 3), torch.zeros(5, 3), torch.zeros(4).long())
