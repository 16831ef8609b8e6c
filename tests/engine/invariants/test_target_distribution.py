# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Invariant (b): sampled output follows the target's distribution, drafts or not."""

import functools

import pytest
import torch

from tensorrt_llm_ext.configs.sampling import SamplingParams
from tensorrt_llm_ext.engine.core import EngineCore
from tensorrt_llm_ext.ops.attention.metadata import MLAMetadata
from tensorrt_llm_ext.ops.sampling import verify_greedy
from tensorrt_llm_ext.speculative import verifier
from tensorrt_llm_ext.speculative.metadata import SamplingInputs, StepInputs
from tests.support.oracle_dense import dense_target
from tests.support.oracle_engine import Plan, Work, run, tiny_models
from tests.support.oracle_statistics import chi_square_p

SEEDS = range(20)
THRESHOLD = 1e-4
VOCAB_SIZE = 8
NUM_REQUESTS = 144_000
BATCH = 8_000
PROMPT_LEN = 5
START = 0


class MarkovWorld:
    """A target whose logits depend on the last token, and a draft that is right fairly often."""

    def __init__(self, seed, temperature=0.8):
        generator = torch.Generator().manual_seed(seed)
        shape = (VOCAB_SIZE, VOCAB_SIZE)
        self.logits = torch.randn(shape, generator=generator, dtype=torch.float64)
        noise = torch.randn(shape, generator=generator, dtype=torch.float64)
        self.draft = (self.logits + 0.5 * noise).argmax(dim=1)
        self.temperature = temperature
        self.probs = (self.logits / temperature).softmax(dim=1)

    def step(self, seeds, last, position):
        """Verifies one draft per request; returns tokens [batch, 2] and how many were emitted."""
        drafts = self.draft[last]
        verdict = verifier.verify(
            self.logits[torch.stack((last, drafts), dim=1).flatten()],
            step_inputs(torch.stack((last, drafts), dim=1), seeds, position, self.temperature),
        )
        return verdict.grid_tokens, verdict.num_accepted + 1


def step_inputs(token_ids, seeds, position, temperature):
    batch, query_len = token_ids.shape
    none = torch.zeros(0, dtype=torch.int64)

    def filled(value, dtype=torch.float32):
        return torch.full((batch,), value, dtype=dtype)

    return StepInputs(
        token_ids=token_ids.flatten(),
        positions=torch.zeros(batch * query_len, dtype=torch.int64),
        metadata=MLAMetadata(slot_mapping=none),
        block_table=none,
        num_drafts=filled(query_len - 1, torch.int64),
        next_tokens=none,
        last_rows=none,
        emits=filled(True, torch.bool),
        first_generated=filled(position, torch.int64),
        num_decode=batch,
        query_len=query_len,
        num_prefill=0,
        block_size=1,
        max_positions=1 << 20,
        draft_len=1,
        sampling=SamplingInputs(
            seeds=seeds,
            temperature=filled(temperature),
            top_k=filled(0, torch.int64),
            top_p=filled(1.0),
            min_p=filled(0.0),
            presence_penalty=filled(0.0),
            frequency_penalty=filled(0.0),
            repetition_penalty=filled(1.0),
        ),
    )


def first_two_tokens(world, seed):
    """Counts [V, V] of the first two tokens, and how many of the first were accepted drafts."""
    counts = torch.zeros(VOCAB_SIZE * VOCAB_SIZE, dtype=torch.int64)
    num_accepted = 0
    for start in range(0, NUM_REQUESTS, BATCH):
        seeds = torch.arange(start, start + BATCH) + (seed << 32)
        last = torch.full((BATCH,), START)
        tokens, emitted = world.step(seeds, last, PROMPT_LEN)
        first, second = tokens[:, 0], tokens[:, 1].clone()
        refused = emitted == 1
        again, _ = world.step(seeds[refused], first[refused], PROMPT_LEN + 1)
        second[refused] = again[:, 0]
        counts += torch.bincount(first * VOCAB_SIZE + second, minlength=len(counts))
        num_accepted += int((~refused).sum())
    return counts.view(VOCAB_SIZE, VOCAB_SIZE), num_accepted


def p_values(world, counts):
    """Of the first token, and of the second given each first one (together, as one table)."""
    first = chi_square_p(counts.sum(dim=1), world.probs[START])
    joint = world.probs[START].unsqueeze(1) * world.probs
    return first, chi_square_p(counts.flatten(), joint.flatten())


@pytest.mark.parametrize("seed", SEEDS)
def test_sampled_tokens_follow_the_targets_distribution(seed):
    world = MarkovWorld(seed)
    counts, num_accepted = first_two_tokens(world, seed)
    assert 0.02 < num_accepted / NUM_REQUESTS < 0.98  # both ways to emit the first token
    assert min(p_values(world, counts)) > THRESHOLD
    draft = int(world.draft[START])
    for first in range(VOCAB_SIZE):  # after an accepted draft, and after each recovered token
        assert chi_square_p(counts[first], world.probs[first]) > THRESHOLD
    assert num_accepted == counts[draft].sum()


def tilted(original, logits, rows, uniforms):
    """Makes half of the tokens 2 % likelier and the other half 2 % less likely."""
    tilt = torch.log(1.0 + 0.02 * torch.tensor([1.0, -1.0], dtype=torch.float64))
    return original(logits + 0.8 * tilt.repeat(VOCAB_SIZE // 2), rows, uniforms)


def too_eager(sampled, drafts, num_drafts):
    """Accepts 2 % of the drafts that should be refused."""
    lucky = torch.rand(drafts.shape, generator=torch.Generator().manual_seed(0)) < 0.02
    sampled[:, :-1] = torch.where(lucky, drafts, sampled[:, :-1])
    return verify_greedy(sampled, drafts, num_drafts)


@pytest.mark.parametrize("seed", SEEDS[:4])
@pytest.mark.parametrize("bias", ["tilted", "too_eager"])
def test_a_sampler_biased_by_two_percent_fails(monkeypatch, seed, bias):
    if bias == "tilted":
        monkeypatch.setattr(verifier, "sample", functools.partial(tilted, verifier.sample))
    else:
        monkeypatch.setattr(verifier, "verify_greedy", too_eager)
    world = MarkovWorld(seed)
    counts, _ = first_two_tokens(world, seed)
    assert min(p_values(world, counts)) < THRESHOLD


def test_an_engine_follows_the_targets_distribution():
    """The whole path, prefix reuse and batching included, against the dense target."""
    models = tiny_models(2, VOCAB_SIZE)
    prompt = (3, 0, 6, 2, 2, 5, 7)
    sampling = SamplingParams(max_tokens=2, temperature=1.3, top_k=6, ignore_eos=True)
    plan = Plan(max_batch_size=64, chunk=512, max_draft_len=2)
    engine = EngineCore(models.target, models.draft, plan.config(with_draft=True))
    works = [Work(prompt, sampling, seed=seed) for seed in range(1_500)]
    counts = torch.zeros(VOCAB_SIZE, VOCAB_SIZE, dtype=torch.int64)
    for outcome in run(engine, works, plan):
        first, second = outcome.token_ids
        counts[first, second] += 1

    def probs(tokens):
        logits = dense_target(models.target, torch.tensor(tokens))[0][-1] / 1.3
        kept = logits >= logits.topk(6).values[-1]
        return logits.masked_fill(~kept, float("-inf")).softmax(dim=0)

    joint = torch.stack([probs((*prompt, first)) for first in range(VOCAB_SIZE)])
    joint *= probs(prompt).unsqueeze(1)
    assert chi_square_p(counts.flatten(), joint.flatten()) > THRESHOLD
    assert 0.02 < engine.stats.acceptance_rate < 0.98
