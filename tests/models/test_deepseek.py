# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The target against transformers' DeepseekV3, and its paged passes against one full pass."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tensorrt_llm_ext.configs.mla import YarnConfig
from tensorrt_llm_ext.configs.target import TargetConfig
from tensorrt_llm_ext.errors import CheckpointError, ConfigError
from tensorrt_llm_ext.models.blocks import TorchBlocks
from tensorrt_llm_ext.models.deepseek import DeepseekV3
from tests.models.hf_oracle import HFCase, hf_case
from tests.support.tiny_models import (
    CPU,
    DictSource,
    PagedSequences,
    make_context,
    random_target,
)

YARNS = {
    "plain": None,
    "equal": YarnConfig(
        factor=4.0, original_max_position_embeddings=32, mscale=1.0, mscale_all_dim=1.0
    ),
    "unequal": YarnConfig(
        factor=8.0, original_max_position_embeddings=32, mscale=0.707, mscale_all_dim=1.3
    ),
    "absent": YarnConfig(factor=4.0, original_max_position_embeddings=64, beta_fast=4.0),
    "only_mscale": YarnConfig(factor=4.0, original_max_position_embeddings=64, mscale=0.7),
    "only_all_dim": YarnConfig(factor=4.0, original_max_position_embeddings=64, mscale_all_dim=0.8),
}


def load(case: HFCase) -> DeepseekV3:
    weights = dict(case.weights)
    if case.config.tie_word_embeddings:
        del weights["lm_head.weight"]  # as transformers saves it
    model = DeepseekV3(case.config, TorchBlocks(CPU, torch.float32))
    source = DictSource(weights)
    model.load_weights(source)
    assert not source.remaining
    return model


def prefill(
    model: DeepseekV3, tokens: list[torch.Tensor], boundaries: tuple[int, ...] = ()
) -> tuple[torch.Tensor, torch.Tensor | None]:
    config = model.config
    plan = make_context(
        config.num_layers,
        config.mla.latent_size,
        [len(ids) for ids in tokens],
        dtype=model.embed_tokens.weight.dtype,
    )
    return model(torch.cat(tokens), plan.positions, plan.ctx, boundaries)


GRID = list(itertools.product(YARNS, (False, True), (12, None)))


@pytest.mark.parametrize(
    ("index", "rope", "grouped", "q_lora_rank"),
    [(i, *case) for i, case in enumerate(GRID)],
    ids=[f"{rope}-{'8of4' if grouped else '1of1'}-q{rank}" for rope, grouped, rank in GRID],
)
def test_logits_equal_transformers(
    index: int, rope: str, grouped: bool, q_lora_rank: int | None
) -> None:
    case = hf_case(
        index,
        grouped=grouped,
        q_lora_rank=q_lora_rank,
        yarn=YARNS[rope],
        first_k_dense_replace=index % 3,
        norm_topk_prob=index % 4 < 2,
        tie_word_embeddings=index % 5 == 0,
    )
    model = load(case)
    tokens = torch.randint(0, 50, (2, 23), generator=torch.Generator().manual_seed(index))
    with torch.no_grad():
        expected = case.model(tokens).logits.flatten(0, 1)
    hidden, captured = prefill(model, list(tokens))
    assert captured is None
    logits = model.compute_logits(hidden)
    assert expected.std() > 0.5  # a flat oracle would agree with anything
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)


def test_captured_boundaries_are_the_layers_inputs() -> None:
    case = hf_case(7, grouped=False, q_lora_rank=12, yarn=YARNS["equal"])
    num_layers = case.config.num_layers
    inner = case.model.model
    expected: dict[int, torch.Tensor] = {}

    def save(boundary: int) -> object:
        def hook(module: object, inputs: object, output: torch.Tensor) -> None:
            output = output[0] if isinstance(output, tuple) else output  # transformers 4
            expected[boundary] = output.flatten(0, 1)

        return hook

    inner.embed_tokens.register_forward_hook(save(0))
    for index, layer in enumerate(inner.layers):
        layer.register_forward_hook(save(index + 1))
    tokens = torch.randint(0, 50, (2, 11), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        inner(tokens)
    order = (num_layers, 0, *range(1, num_layers), 0)  # not ascending, and one of them twice
    hidden, captured = prefill(load(case), list(tokens), order)
    wanted = torch.cat([expected[boundary] for boundary in order], dim=-1)
    torch.testing.assert_close(captured, wanted, rtol=0, atol=1e-5)
    torch.testing.assert_close(hidden, expected[num_layers], rtol=0, atol=1e-5)
    gaps = [(expected[b] - expected[b + 1]).abs().max() for b in range(num_layers)]
    assert min(gaps) > 0.1  # neighbours differ, so an off-by-one would show


@pytest.mark.parametrize("boundary", [-1, 4])
def test_boundary_outside_the_model(boundary: int) -> None:
    _, model = random_target(0, num_layers=3)
    with pytest.raises(ConfigError, match=rf"Boundary {boundary} .* 0 \(embeddings\) to 3"):
        prefill(model, [torch.tensor([1, 2])], (1, boundary))


@given(data=st.data())
def test_chunks_and_decode_grid_equal_one_full_pass(data: st.DataObject) -> None:
    seed = data.draw(st.integers(0, 50), label="seed")
    config, model = random_target(seed)
    rng = random.Random(data.draw(st.integers(0, 2**32), label="lengths"))
    lengths = [rng.randint(2, 14) for _ in range(3)]
    tokens = [torch.tensor([rng.randrange(config.vocab_size) for _ in range(n)]) for n in lengths]
    boundaries = (config.num_layers, 1, 0)
    full_hidden, full_captured = prefill(model, tokens, boundaries)
    assert full_captured is not None
    full = torch.cat((model.compute_logits(full_hidden), full_captured), dim=-1)
    expected = full.split(lengths)

    paged = PagedSequences(
        config.num_layers,
        config.mla.latent_size,
        num_sequences=3,
        max_len=16,
        block_size=data.draw(st.sampled_from((1, 4, 5)), label="block_size"),
        seed=seed,
    )
    done = [0, 0, 0]
    while done != lengths:
        runs: dict[str, list[tuple[int, int, int]]] = {"decode": [], "prefill": []}
        for index in rng.sample(range(3), 3):
            count = min(rng.randint(0, 4), lengths[index] - done[index])
            if count:
                runs[rng.choice(("decode", "prefill"))].append((index, done[index], count))
                done[index] += count
        if not runs["decode"] and not runs["prefill"]:
            continue
        plan = paged.plan(**runs)
        hidden, captured = model(plan.gather(tokens), plan.positions, plan.ctx, boundaries)
        assert captured is not None
        got = torch.cat((model.compute_logits(hidden), captured), dim=-1)
        for row, where in enumerate(plan.rows):
            if where is not None:
                wanted = expected[where[0]][where[1]]
                torch.testing.assert_close(got[row], wanted, rtol=1e-9, atol=1e-9)


def test_padding_rows_change_nothing_and_write_nothing() -> None:
    config, model = random_target(5)
    paged = PagedSequences(config.num_layers, config.mla.latent_size, num_sequences=2, max_len=8)
    plan = paged.plan(decode=[(0, 0, 4), (1, 0, 1)])
    ids = plan.gather([torch.tensor([3, 4, 5, 6]), torch.tensor([7])])
    hidden, _ = model(ids, plan.positions, plan.ctx)
    written = [slot for slot in plan.ctx.metadata.slot_mapping.tolist() if slot >= 0]
    for cache in paged.latent_caches:
        rows = cache.flatten(0, 1)
        finite = rows.isfinite().all(dim=-1).nonzero().flatten().tolist()
        assert sorted(finite) == sorted([*range(paged.block_size), *written])
        assert not rows[: paged.block_size].any()
    alone, _ = prefill(model, [torch.tensor([7])])
    torch.testing.assert_close(hidden[4:5], alone, rtol=1e-10, atol=1e-10)


def test_experts_without_a_configuration() -> None:
    config, _ = random_target(0, num_layers=2)
    config = replace(config, moe=None, moe_layers=frozenset({1}))
    with pytest.raises(ConfigError, match="Layer 1 is listed in moe_layers"):
        DeepseekV3(config, TorchBlocks(CPU, torch.float64))


def small_case() -> HFCase:
    return hf_case(1, grouped=False, q_lora_rank=None, yarn=None, first_k_dense_replace=1)


def build(config: TargetConfig) -> DeepseekV3:
    return DeepseekV3(config, TorchBlocks(CPU, torch.float32))


@pytest.mark.parametrize(
    "name",
    [
        "model.embed_tokens.weight",
        "model.layers.1.mlp.experts.3.up_proj.weight",
        "model.layers.1.mlp.gate.e_score_correction_bias",
        "model.layers.0.self_attn.kv_b_proj.weight",
        "lm_head.weight",
    ],
)
def test_missing_tensor_is_named(name: str) -> None:
    case = small_case()
    del case.weights[name]
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        build(case.config).load_weights(DictSource(case.weights))


def test_misshapen_tensor_is_named() -> None:
    case = small_case()
    case.weights["model.norm.weight"] = torch.ones(3)
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight has shape \(3,\)"):
        build(case.config).load_weights(DictSource(case.weights))


def test_tied_head_stored_twice() -> None:
    case = hf_case(1, grouped=False, q_lora_rank=None, yarn=None, tie_word_embeddings=True)
    model = build(case.config)
    source = DictSource(case.weights)  # with lm_head.weight, equal to the embedding
    model.load_weights(source)
    assert not source.remaining
    case.weights["lm_head.weight"] = case.weights["lm_head.weight"] + 1.0
    with pytest.raises(CheckpointError, match="differs from the embedding"):
        build(case.config).load_weights(DictSource(case.weights))
