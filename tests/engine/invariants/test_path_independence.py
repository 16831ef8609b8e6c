# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Invariant (e): proposals and committed cache rows are functions of the committed tokens alone.

A draft with stale, shifted or lost rows gives the same text, only later: no other test finds it.
"""

import collections
import dataclasses
import random

import pytest
import torch
from hypothesis import given

from tensorrt_llm_ext.configs.mla import RopeConfig
from tensorrt_llm_ext.configs.sampling import SamplingParams
from tensorrt_llm_ext.engine.block_manager import BlockManager
from tensorrt_llm_ext.engine.core import EngineCore
from tensorrt_llm_ext.engine.inputs import InputBuilder
from tensorrt_llm_ext.ops.attention.metadata import PADDING_SLOT
from tensorrt_llm_ext.speculative import step
from tests.support.oracle_draws import draw_key, draw_plan, draw_works
from tests.support.oracle_engine import (
    SEEDS,
    PathChecker,
    Plan,
    Work,
    assert_same_outcomes,
    plain_outcomes,
    run,
    submit,
    tiny_models,
)


def check_path(models, requests, plan):
    """Runs with the oracle beside every step; returns the engine and the checker."""
    expected = plain_outcomes(models, requests, plan.max_seq_len)
    checker = PathChecker(models, requests, expected)
    engine = EngineCore(models.target, models.draft, plan.config(with_draft=True))
    assert_same_outcomes(run(engine, requests, plan, checker), expected)
    return engine, checker


def test_every_step_equals_the_stateless_oracle():
    seen = collections.Counter()

    @given(seed=SEEDS)
    def every_step(seed):
        rng = random.Random(seed)
        models = tiny_models(*draw_key(rng))
        requests, plan = draw_works(rng, models.vocab_size), draw_plan(rng)
        engine, checker = check_path(models, requests, plan)
        seen.update(checker.seen)
        seen["accepted"] += engine.stats.num_accepted
        seen["preempted"] += engine.num_preemptions

    every_step()
    # Otherwise the property held for want of anything to break.
    assert seen["proposals"] > 500
    for name in ("accepted", "preempted", "reused", "overflowed", "resumed", "chunked"):
        assert seen[name] > 5, seen


GREEDY = SamplingParams(max_tokens=14, ignore_eos=True)
LOOSE = SamplingParams(max_tokens=20, ignore_eos=True, temperature=0.8)


@pytest.mark.parametrize("table", [9, 16, 21])
def test_a_draft_with_a_short_rope_table_stops_drafting_there(table):
    """Positions past the draft's table have no draft row, and drafting ends before them."""
    models = tiny_models(5, 5)
    rope = dataclasses.replace(models.draft.config.mla.rope, max_position_embeddings=table)
    assert isinstance(rope, RopeConfig)
    mla = dataclasses.replace(models.draft.config.mla, rope=rope)
    models = tiny_models(5, 5, mla=mla)
    requests = [Work((0, 1, 2, 3, 4, 0, 2), GREEDY), Work((1,) * 18, GREEDY), Work((2,), GREEDY)]
    engine, checker = check_path(models, requests, Plan(block_size=4, chunk=18, max_batch_size=2))
    assert checker.seen["proposals"] > 0
    assert engine.stats.num_drafted > 0


def test_requests_whose_ring_overflowed_stay_without_drafts_and_are_counted():
    models = tiny_models(3, 5)
    requests = [Work((0, 1, 2), GREEDY), Work((3, 1), SamplingParams(max_tokens=4))]
    plan = Plan(ring_size=5, draft_lens=(2, *[0] * 7, *[3] * 30))
    engine, checker = check_path(models, requests, plan)
    assert engine.num_ring_overflows == 1
    assert checker.seen["overflowed"] > 0


@pytest.mark.parametrize("num_left", [1, 2])
def test_a_chunk_that_leaves_a_token_proposes_nothing(num_left):
    """With one token left the request looks like a decoding one, but nothing was sampled."""
    models = tiny_models(0, 3)
    plan = Plan(chunk=18, max_batch_size=2, max_draft_len=4)
    requests = [Work(tuple(i % 3 for i in range(18 + num_left)), LOOSE, seed=1)]
    engine = EngineCore(models.target, models.draft, plan.config(with_draft=True))
    submit(engine, requests[0])
    assert engine.step() == []
    (request,) = engine.requests.values()
    assert (request.num_computed, request.pending_drafts) == (18, [])
    engine.abort(request.request_id)
    check_path(models, requests, plan)


# Each fault is what a plausible bug would do. Text must survive all of them; the oracle must not.

SCENARIOS = {
    "chunks": (
        (2, 12),
        [Work(tuple((7 * i + i**3) % 11 for i in range(25)), GREEDY), Work((3, 4), GREEDY)],
        Plan(block_size=4, chunk=18, max_batch_size=2, max_draft_len=3),
    ),
    "ring": (
        (3, 12),
        [Work((1, 5, 9, 2), GREEDY), Work((7,), GREEDY)],
        Plan(block_size=3, max_draft_len=4, draft_lens=(3, 3, 0, 0, 0, 4, 2)),
    ),
    "reuse": (
        (4, 12),
        [
            Work((1, 2, 3, 4, 5, 6, 7, 8, 9), GREEDY),
            Work((1, 2, 3, 4, 11, 6, 7), GREEDY, arrival=30),
        ],
        Plan(block_size=4, max_draft_len=2),
    ),
    "reuse_after_k0": (
        (4, 12),
        [
            Work((1, 2, 3, 4, 5, 6, 7, 8, 9), GREEDY),
            Work((1, 2, 3, 4, 5, 6, 7, 8, 9), GREEDY, arrival=30),
        ],
        Plan(block_size=4, max_draft_len=2, draft_lens=(*[0] * 30, *[2] * 30)),
    ),
    "accepting": (
        (2, 3),
        [Work((0, 2, 1), LOOSE, seed=seed) for seed in range(3)],
        Plan(block_size=4, max_draft_len=4),
    ),
}


def rows_of(change):
    """Patches the draft's extend pass: `change` edits its rows."""

    def plant(patch):
        original = step.extend

        def extend(draft, rows, *args):
            return original(draft, change(rows), *args)

        patch.setattr(step, "extend", extend)

    return plant


def shift_captured(rows):
    return dataclasses.replace(rows, captured=rows.captured.roll(1, dims=0))


def shift_successors(rows):
    return dataclasses.replace(rows, successors=rows.successors.roll(-1))


def shift_positions(rows):
    return dataclasses.replace(rows, positions=rows.positions + 1)


def shift_slots(rows):
    slots = rows.metadata.slot_mapping.roll(1)
    return dataclasses.replace(
        rows, metadata=dataclasses.replace(rows.metadata, slot_mapping=slots)
    )


def keep_provisional_rows(rows):
    """Writes only the first row of each verified run: accepted drafts keep the chain's rows."""
    decode = rows.metadata.decode
    if decode is None:
        return rows
    slots = rows.metadata.slot_mapping.clone()
    slots[: decode.positions.numel()].view(decode.positions.shape)[:, 1:] = PADDING_SLOT
    metadata = dataclasses.replace(rows.metadata, slot_mapping=slots, has_padding=True)
    return dataclasses.replace(rows, metadata=metadata)


def stale_successor(patch):
    """The last prompt row takes the token that the input builder put there, not the sampled one."""
    patch.setattr(
        step,
        "_successors",
        lambda verdict, inputs: torch.cat((verdict.grid_tokens.flatten(), inputs.next_tokens)),
    )


def sampled_successor_in_inner_chunks(patch):
    original = step._successors

    def successors(verdict, inputs):
        return original(verdict, dataclasses.replace(inputs, emits=torch.ones_like(inputs.emits)))

    patch.setattr(step, "_successors", successors)


def propose_from_the_first_row(patch):
    original = step._last_rows

    def last_rows(verdict, inputs):
        accepted = torch.zeros_like(verdict.num_accepted)
        return original(dataclasses.replace(verdict, num_accepted=accepted), inputs)

    patch.setattr(step, "_last_rows", last_rows)


def chain_one_position_behind(patch):
    original = step.chain

    def chain(draft, start, *args):
        behind = dataclasses.replace(start, positions=start.positions - 1)
        return original(draft, behind, *args)

    patch.setattr(step, "chain", chain)


def captured_of(change):
    """Patches what every target captures: `change(target, hidden, captured)`."""

    def plant(patch, models):
        original = models.target.forward

        def forward(token_ids, positions, ctx, boundaries=()):
            hidden, captured = original(token_ids, positions, ctx, boundaries)
            return hidden, change(models.target, captured, boundaries)

        patch.setattr(models.target, "forward", forward)

    return plant


def post_norm(target, captured, boundaries):
    """Captures what the next layer's norm makes of the residual stream."""
    norms = [*(layer.input_layernorm for layer in target.layers), target.norm]
    chunks = captured.chunk(len(boundaries), dim=-1)
    return torch.cat([norms[b](c) for b, c in zip(boundaries, chunks, strict=True)], dim=-1)


def forget_the_ring(patch):
    patch.setattr(step, "flush_ring", lambda *args: None)


def shift_the_ring(patch):
    original = InputBuilder._ring_row_list

    def rows(self, request, num_rows, unused):
        return [min(row + 1, unused) for row in original(self, request, num_rows, unused)]

    patch.setattr(InputBuilder, "_ring_row_list", rows)


def forget_the_successor_key(patch):
    """Finds a block by its tokens, whatever token follows it."""

    def match(self, token_ids):
        nodes, children, size = [], self._root.children, self.block_size
        for start in range(0, len(token_ids) - size, size):
            tokens = tuple(token_ids[start : start + size])
            node = next((n for (t, _), n in children.items() if t == tokens), None)
            if node is None or node.block is None:
                break
            nodes.append(node)
            children = node.children
        return nodes

    patch.setattr(BlockManager, "_matching_nodes", match)


def publish_rows_that_the_draft_never_saw(patch):
    def publish(self, request):
        valid = min(request.num_computed, request.num_tokens)
        self.block_manager.publish(request.request_id, request.token_ids, valid)

    patch.setattr(EngineCore, "_publish", publish)


FAULTS = {
    "shift_captured": ("chunks", rows_of(shift_captured)),
    "shift_successors": ("chunks", rows_of(shift_successors)),
    "shift_positions": ("chunks", rows_of(shift_positions)),
    "shift_slots": ("chunks", rows_of(shift_slots)),
    "keep_provisional_rows": ("accepting", rows_of(keep_provisional_rows)),
    "stale_successor": ("chunks", stale_successor),
    "sampled_successor_in_inner_chunks": ("chunks", sampled_successor_in_inner_chunks),
    "propose_from_the_first_row": ("accepting", propose_from_the_first_row),
    "chain_one_position_behind": ("chunks", chain_one_position_behind),
    "post_norm": ("chunks", captured_of(post_norm)),
    "forget_the_ring": ("ring", forget_the_ring),
    "shift_the_ring": ("ring", shift_the_ring),
    "forget_the_successor_key": ("reuse", forget_the_successor_key),
    "publish_unseen_rows": ("reuse_after_k0", publish_rows_that_the_draft_never_saw),
}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario_without_fault(scenario):
    key, requests, plan = SCENARIOS[scenario]
    check_path(tiny_models(*key), requests, plan)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_though_the_text_is_right(monkeypatch, fault):
    scenario, plant = FAULTS[fault]
    key, requests, plan = SCENARIOS[scenario]
    models = tiny_models(*key)
    expected = plain_outcomes(models, requests, plan.max_seq_len)
    checker = PathChecker(models, requests, expected)
    found = []

    def record(*step):
        if not found:
            try:
                checker(*step)
            except AssertionError as error:
                found.append(error)

    if fault == "post_norm":
        plant(monkeypatch, models)
    else:
        plant(monkeypatch)
    engine = EngineCore(models.target, models.draft, plan.config(with_draft=True))
    assert_same_outcomes(run(engine, requests, plan, record), expected)
    assert found, "the oracle saw nothing"
