# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Drives engines through drawn histories and compares every step with the dense oracle."""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from hypothesis import strategies as st

from tensorrt_llm_ext.configs.draft import DraftConfig
from tensorrt_llm_ext.configs.sampling import SamplingParams
from tensorrt_llm_ext.configs.target import TargetConfig
from tensorrt_llm_ext.engine.core import EngineCore
from tensorrt_llm_ext.engine.request import Request, RequestStatus
from tensorrt_llm_ext.engine.settings import EngineConfig
from tensorrt_llm_ext.models.deepseek import DeepseekV3
from tensorrt_llm_ext.models.eagle3 import Eagle3Draft
from tests.support.oracle_dense import DenseRows, dense_rows
from tests.support.tiny_models import random_draft, random_target

EOS = 1
MAX_STEPS = 2000
MAX_FORCED_STEPS = 150  # whoever is preempted again and again before its prompt ends never ends
TOLERANCE = 1e-9
SEEDS = st.integers(0, 2**32 - 1)


@dataclass(frozen=True)
class Models:
    """A target and a draft, in float64."""

    target: DeepseekV3
    draft: Eagle3Draft

    @property
    def vocab_size(self) -> int:
        return self.target.config.vocab_size


@functools.lru_cache(maxsize=64)
def tiny_models(seed: int, vocab_size: int = 5, **draft_overrides: object) -> Models:
    """Draws a pair; a small vocabulary makes an untrained draft right now and then."""
    rng = random.Random(seed)
    target_config, target = random_target(seed, vocab_size=vocab_size)
    overrides = dict(draft_overrides)
    if rng.random() < 0.4:
        overrides |= {
            "has_own_lm_head": True,
            "has_d2t": True,
            "draft_vocab_size": vocab_size - 1,
        }
    else:
        overrides |= {"has_d2t": False, "draft_vocab_size": vocab_size}
    _, draft = random_draft(seed, target_config, **overrides)
    draft.share_with(target)
    return Models(target, draft)


@dataclass(frozen=True)
class Work:
    """One request, and the step before which it arrives."""

    prompt: tuple[int, ...]
    sampling: SamplingParams
    seed: int = 0
    arrival: int = 0


@dataclass(frozen=True)
class Plan:
    """An engine's limits and what happens to it, step by step; the lists are cycled.

    Attributes:
        draft_lens: Drafts to propose in each step; empty leaves the engine's policy alone.
        preemptions: Index of the running request to preempt before each step, or None.
        aborts: Index of the unfinished request to abort before each step, or None.
    """

    block_size: int = 4
    chunk: int = 64
    max_batch_size: int = 4
    num_blocks: int | None = None
    max_seq_len: int | None = None
    reuse: bool = True
    chunked: bool = True
    ring_size: int = 256
    max_draft_len: int = 8
    draft_lens: tuple[int, ...] = ()
    preemptions: tuple[int | None, ...] = (None,)
    aborts: tuple[int | None, ...] = (None,)

    def config(self, *, with_draft: bool) -> EngineConfig:
        max_draft_len = self.max_draft_len if with_draft else 0
        return EngineConfig(
            max_batch_size=self.max_batch_size,
            max_num_tokens=max(self.chunk, self.max_batch_size * (1 + max_draft_len)),
            max_seq_len=self.max_seq_len,
            block_size=self.block_size,
            num_blocks=self.num_blocks,
            enable_block_reuse=self.reuse,
            enable_chunked_prefill=self.chunked,
            max_draft_len=max_draft_len,
            ring_size=self.ring_size,
        )


class InjectedError(Exception):
    """Raised by a model that a test broke on purpose."""


@dataclass
class Outcome:
    """What a request produced."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, float]] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None


def run(
    engine: EngineCore,
    works: list[Work],
    plan: Plan,
    on_step: Callable[[EngineCore, dict[int, int], bool], None] | None = None,
) -> list[Outcome]:
    """Runs all requests to their end; a step that raises InjectedError is simply tried again.

    Args:
        engine: Fresh, or idle.
        works: The requests; their order in the result is the order here.
        plan: What happens before each step.
        on_step: Called after each step with the engine, request id -> index in `works`, and whether
            the step raised.
    """
    outcomes = [Outcome() for _ in works]
    index_of: dict[int, int] = {}
    waiting = sorted(range(len(works)), key=lambda index: works[index].arrival)
    for step in range(MAX_STEPS):
        while waiting and (works[waiting[0]].arrival <= step or not engine.has_unfinished()):
            index = waiting.pop(0)
            index_of[submit(engine, works[index])] = index
        if plan.draft_lens:
            engine.set_draft_len(plan.draft_lens[step % len(plan.draft_lens)])
        victim = plan.preemptions[step % len(plan.preemptions)]
        running = [r for r in engine.requests.values() if r.status is RequestStatus.RUNNING]
        if victim is not None and running and step < MAX_FORCED_STEPS:
            engine.preempt(running[victim % len(running)].request_id)
        doomed = plan.aborts[step % len(plan.aborts)]
        if doomed is not None and engine.requests:
            engine.abort(sorted(engine.requests)[doomed % len(engine.requests)])
        raised = False
        updates = []
        try:
            updates = engine.step()
        except InjectedError:
            raised = True
        for update in updates:
            outcome = outcomes[index_of[update.request_id]]
            assert outcome.finish_reason is None
            outcome.token_ids += update.new_token_ids
            outcome.finish_reason = update.finish_reason
            outcome.stop_reason = update.stop_reason
            for entry in update.new_logprobs or ():
                outcome.logprobs.append({token: value.logprob for token, value in entry.items()})
        engine.check_integrity()
        if on_step is not None:
            on_step(engine, index_of, raised)
        if not waiting and not engine.has_unfinished():
            break
    else:
        raise AssertionError(f"not finished after {MAX_STEPS} steps")
    assert_idle(engine)
    return outcomes


def submit(engine: EngineCore, work: Work) -> int:
    return engine.add_request(
        list(work.prompt), work.sampling, eos_token_ids=(EOS,), seed=work.seed
    )


def assert_idle(engine: EngineCore) -> None:
    """Nothing runs, and every block is back."""
    assert not engine.has_unfinished()
    engine.check_integrity()
    assert engine.block_manager.num_used == 0
    assert engine.block_manager.num_free == engine.block_manager.num_blocks - 1
    assert not engine.block_manager.owners
    for cache in engine.latent_caches:
        assert not cache[0].any(), "the null block was written"


def plain_outcomes(models: Models, works: list[Work], max_seq_len: int | None) -> list[Outcome]:
    """Each request alone in an engine without a draft, one prompt chunk, no reuse."""
    outcomes = []
    for work in works:
        plan = Plan(
            block_size=16, chunk=512, max_batch_size=1, max_seq_len=max_seq_len, reuse=False
        )
        engine = EngineCore(models.target, None, plan.config(with_draft=False))
        outcomes += run(engine, [work], plan)
    return outcomes


def assert_same_outcomes(outcomes: list[Outcome], expected: list[Outcome]) -> None:
    """Tokens and reasons equal; log-probabilities equal up to rounding.

    A request without a reason was aborted: what it produced until then must be right.
    """
    for got, want in zip(outcomes, expected, strict=True):
        if got.finish_reason is None:
            assert got.token_ids == want.token_ids[: len(got.token_ids)]
            continue
        assert got.token_ids == want.token_ids
        assert (got.finish_reason, got.stop_reason) == (want.finish_reason, want.stop_reason)
        assert len(got.logprobs) == len(want.logprobs)
        for ours, theirs in zip(got.logprobs, want.logprobs, strict=True):
            assert ours.keys() == theirs.keys()
            for token, value in ours.items():
                assert abs(value - theirs[token]) <= TOLERANCE


class PathChecker:
    """After each step: proposals and all committed rows equal the dense oracle's.

    Attributes:
        seen: How often something worth checking was there: `proposals` compared, requests that were
            `reused` (began with a shared prefix), `chunked` (in the middle of their prompt),
            `resumed` (their ring was fed to the draft) or `overflowed` (without drafts for good).
    """

    def __init__(self, models: Models, works: list[Work], outcomes: list[Outcome]) -> None:
        self.models = models
        self.sequences = [
            [*work.prompt, *outcome.token_ids]
            for work, outcome in zip(works, outcomes, strict=True)
        ]
        self.seen: Counter[str] = Counter()
        self._rows: dict[tuple[int, ...], DenseRows] = {}
        self._ring_rows: dict[int, int] = {}
        self._num_tokens: dict[int, int] = {}
        self._raised = False

    def rows(self, index: int) -> DenseRows:
        """The oracle's rows of a whole sequence, computed once."""
        key = tuple(self.sequences[index])
        if key not in self._rows:
            self._rows[key] = dense_rows(self.models.target, self.models.draft, list(key))
        return self._rows[key]

    def __call__(self, engine: EngineCore, index_of: dict[int, int], raised: bool) -> None:
        self._raised = raised
        for request in engine.requests.values():
            if request.status is RequestStatus.RUNNING:
                self.check(engine, request, index_of[request.request_id])

    def check(self, engine: EngineCore, request: Request, index: int) -> None:
        sequence, expected = self.sequences[index], self.rows(index)
        assert request.token_ids == sequence[: request.num_tokens]
        assert request.num_computed < request.num_tokens
        if request.num_output_tokens:
            assert request.num_computed == request.num_tokens - 1 or request.num_preemptions
        config: TargetConfig = self.models.target.config
        draft_config: DraftConfig = self.models.draft.config
        table = draft_config.mla.rope.max_position_embeddings
        self._check_counts(engine, request)
        assert engine.block_manager.writable_from(request.request_id) <= request.num_computed
        slots = _slots(engine, request)
        caches = engine.latent_caches
        counts = [request.num_computed] * config.num_layers
        counts += [min(request.num_draft_valid, table)] * draft_config.num_layers
        rows = [*expected.target, *expected.draft]
        for layer, (count, want) in enumerate(zip(counts, rows, strict=True)):
            got = caches[layer].flatten(0, 1)[slots[:count]]
            assert _close(got, want[:count]), f"layer {layer} of {config.num_layers} + draft"
        proposals = expected.proposals[request.num_tokens - 2].tolist()
        assert request.pending_drafts == proposals[: len(request.pending_drafts)]
        self._count(request)

    def _count(self, request: Request) -> None:
        before = self._ring_rows.get(request.request_id)
        self._ring_rows[request.request_id] = request.num_ring_rows
        self.seen["proposals"] += len(request.pending_drafts)
        self.seen["reused"] += before is None and request.num_reused_tokens > 0
        self.seen["chunked"] += not request.is_decoding
        self.seen["resumed"] += bool(before) and len(request.pending_drafts) > 0
        self.seen["overflowed"] += not request.is_drafting

    def _check_counts(self, engine: EngineCore, request: Request) -> None:
        """Draft rows are valid up to the ring, and there are as many drafts as there can be."""
        if request.is_drafting:
            assert request.num_draft_valid + request.num_ring_rows == request.num_computed
        else:
            assert request.num_ring_rows == 0
            assert not request.pending_drafts
            assert engine.num_ring_overflows > 0  # nothing else may end drafting
        draft_len = engine._draft_len()
        room = engine.max_seq_len - request.num_tokens
        table = self.models.draft.config.mla.rope.max_position_embeddings
        room = max(0, min(room, table - request.num_tokens + 2))
        before = self._num_tokens.get(request.request_id, request.num_prompt_tokens)
        self._num_tokens[request.request_id] = request.num_tokens
        if request.num_tokens == before:
            # Nothing was emitted: the request is in its prompt, or the step raised.
            assert self._raised or not request.pending_drafts
        elif request.is_drafting:
            assert request.is_decoding
            assert len(request.pending_drafts) == min(draft_len, room)
            if draft_len:
                assert request.num_draft_valid == request.num_computed


def _slots(engine: EngineCore, request: Request) -> torch.Tensor:
    size = engine.block_manager.block_size
    blocks = torch.tensor(engine.block_manager.block_ids(request.request_id), dtype=torch.int64)
    return (blocks[:, None] * size + torch.arange(size)).flatten()


def _close(got: torch.Tensor, want: torch.Tensor) -> bool:
    return got.shape == want.shape and bool(((got - want).abs() <= TOLERANCE).all())
