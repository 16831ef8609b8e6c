# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The engine core: requests in, tokens out, one step at a time."""

from __future__ import annotations

import itertools
import logging

import torch

from tensorrt_llm_ext.configs.engine import CudaGraphConfig
from tensorrt_llm_ext.configs.sampling import SamplingParams
from tensorrt_llm_ext.devices import probe
from tensorrt_llm_ext.engine.block_manager import BlockManager
from tensorrt_llm_ext.engine.cuda_graphs import Capture, CudaCapture, GraphedSteps
from tensorrt_llm_ext.engine.inputs import InputBuilder, InputLimits, ring_has_room
from tensorrt_llm_ext.engine.model_runner import ModelRunner, StepResult
from tensorrt_llm_ext.engine.request import (
    FinishReason,
    Logprob,
    Request,
    RequestStatus,
    TokenUpdate,
)
from tensorrt_llm_ext.engine.request_checks import RequestChecks
from tensorrt_llm_ext.engine.sampling_state import prepare
from tensorrt_llm_ext.engine.scheduler import ScheduledStep, Scheduler
from tensorrt_llm_ext.engine.settings import EngineConfig
from tensorrt_llm_ext.engine.sizes import engine_sizes
from tensorrt_llm_ext.engine.snapshot import EngineSnapshot
from tensorrt_llm_ext.engine.warmup import plan_warmup
from tensorrt_llm_ext.errors import ConfigError, OutOfBlocksError
from tensorrt_llm_ext.models.interfaces import DraftModel, TargetModel
from tensorrt_llm_ext.speculative.phases import PhaseTimer
from tensorrt_llm_ext.speculative.policy import clip_draft_len
from tensorrt_llm_ext.speculative.stats import AcceptanceStats

logger = logging.getLogger(__name__)


class EngineCore:
    """Continuous batching with one-model speculation over one paged pool.

    One thread owns it. Everything that a step changes on the host is changed after the device
    succeeded, so an exception inside a step leaves all requests as they were before it.
    """

    def __init__(
        self, target: TargetModel, draft: DraftModel | None, config: EngineConfig | None = None
    ) -> None:
        self.config = config = config or EngineConfig()
        self._draft = draft
        self._check_draft(draft, config)
        dtype, device = _dtype_and_device(target)
        self.max_seq_len, num_blocks = engine_sizes(config, target, draft, dtype)
        num_ring_rows = config.max_batch_size * config.ring_size + 1 if draft is not None else 0
        self._runner = ModelRunner(
            target,
            draft,
            num_blocks=num_blocks,
            block_size=config.block_size,
            num_ring_rows=num_ring_rows,
            dtype=dtype,
            device=device,
        )
        self.block_manager = BlockManager(num_blocks, config.block_size, config.enable_block_reuse)
        self._scheduler = Scheduler(config, self.block_manager, self.max_seq_len)
        limits = InputLimits(
            block_size=config.block_size,
            max_seq_len=self.max_seq_len,
            vocab_size=target.config.vocab_size,
            ring_size=config.ring_size if draft is not None else 0,
            max_batch_size=config.max_batch_size,
        )
        self._inputs = InputBuilder(limits, self.block_manager, device)
        self._graphs: GraphedSteps | None = None
        if config.cuda_graphs is not None and probe(device).is_cuda:
            self.use_graphs(config.cuda_graphs, CudaCapture())
        self._vocab_size = target.config.vocab_size
        self._checks = RequestChecks(
            vocab_size=target.config.vocab_size,
            max_seq_len=self.max_seq_len,
            max_num_tokens=config.max_num_tokens,
            enable_chunked_prefill=config.enable_chunked_prefill,
        )
        self._device = device
        self._ids = itertools.count()
        self._draft_len_override: int | None = None
        self.requests: dict[int, Request] = {}
        self.stats = AcceptanceStats()
        self.num_ring_overflows = 0
        self.num_steps = 0
        self.num_nan_rows = 0

    def use_graphs(self, graphs: CudaGraphConfig, capture: Capture) -> GraphedSteps:
        """Captures the steps of these batch sizes, and runs them from now on.

        Args:
            graphs: Batch sizes.
            capture: How to capture; tests record and run again what CUDA would replay.
        """
        plan = plan_warmup(graphs, self.config, has_draft=self._draft is not None)
        limits = self._inputs.limits
        self._graphs = GraphedSteps(
            plan,
            InputBuilder(limits, self.block_manager, torch.device("cpu")),
            self._runner,
            num_columns=-(-limits.max_seq_len // limits.block_size),
            capture=capture,
        )
        self._graphs.warm_up()
        return self._graphs

    @staticmethod
    def _check_draft(draft: DraftModel | None, config: EngineConfig) -> None:
        if draft is None and config.max_draft_len > 0:
            raise ConfigError(
                f"max_draft_len is {config.max_draft_len} but no draft was given. Pass a draft or "
                "set max_draft_len to 0."
            )

    @property
    def latent_caches(self) -> tuple[torch.Tensor, ...]:
        """Per layer [num_blocks, block_size, latent_size], the draft's after the target's."""
        return self._runner.caches

    @property
    def num_preemptions(self) -> int:
        """Preemptions since the start."""
        return self._scheduler.num_preemptions

    @property
    def has_graphs(self) -> bool:
        """Whether steps run as CUDA graphs."""
        return self._graphs is not None

    def reset_phases(self) -> None:
        """Times the phases of steps from now on; steps then run eagerly."""
        self._runner.clock = PhaseTimer(self._device)
        self._graphs = None

    def phases(self) -> tuple[int, dict[str, float]]:
        """Steps without prompt rows since `reset_phases`, and the seconds of their phases."""
        clock = self._runner.clock
        return (0, {}) if clock is None else (clock.num_steps, clock.seconds())

    def _draft_overhead(self) -> float | None:
        steps, seconds = self.phases()
        total = sum(seconds.values())
        return (seconds["extend"] + seconds["chain"]) / total if steps and total else None

    def snapshot(self) -> EngineSnapshot:
        """Returns the counts of this moment."""
        blocks = self.block_manager
        return EngineSnapshot(
            num_steps=self.num_steps,
            running=len(self._scheduler.running),
            waiting=len(self._scheduler.waiting),
            blocks_used=blocks.num_used,
            blocks_total=blocks.num_blocks - 1,
            block_size=self.config.block_size,
            preemptions=self.num_preemptions,
            nan_rows=self.num_nan_rows,
            draft_overhead=self._draft_overhead(),
            acceptance=self.stats.copy(),
        )

    def has_unfinished(self) -> bool:
        """Whether any request waits or runs."""
        return bool(self.requests)

    def add_request(
        self,
        prompt_token_ids: list[int],
        sampling: SamplingParams,
        *,
        eos_token_ids: tuple[int, ...] = (),
        seed: int = 0,
    ) -> int:
        """Queues a request and returns its id.

        Args:
            prompt_token_ids: At least one token.
            sampling: How to draw, and when to stop.
            eos_token_ids: The model's end tokens.
            seed: Seed of this request's draws.

        Raises:
            RequestError: If the prompt is empty, too long, or holds an unknown token id.
        """
        checks = self._checks
        checks.check_prompt(prompt_token_ids)
        checks.check_sampling(sampling, eos_token_ids)
        request = Request(
            request_id=next(self._ids),
            token_ids=list(prompt_token_ids),
            num_prompt_tokens=len(prompt_token_ids),
            sampling=sampling,
            eos_token_ids=eos_token_ids,
            seed=seed,
        )
        prepare(request, self._vocab_size, self._device)
        self.requests[request.request_id] = request
        self._scheduler.add(request)
        return request.request_id

    def abort(self, request_id: int) -> None:
        """Drops a request and returns its blocks; an unknown or finished id does nothing."""
        request = self.requests.pop(request_id, None)
        if request is not None:
            self._scheduler.remove(request)

    def preempt(self, request_id: int) -> None:
        """Returns a running request's blocks; it is recomputed later. For tests and policies."""
        request = self.requests[request_id]
        if request.status is RequestStatus.RUNNING:
            self._scheduler.preempt(request)

    def set_draft_len(self, draft_len: int | None) -> None:
        """Overrides how many drafts coming steps propose; None returns to the configured policy."""
        if draft_len is not None and not 0 <= draft_len <= self.config.max_draft_len:
            raise ConfigError(
                f"draft_len must be between 0 and max_draft_len {self.config.max_draft_len}, got "
                f"{draft_len}."
            )
        self._draft_len_override = draft_len

    def _draft_len(self) -> int:
        if self._draft is None:
            return 0
        if self._draft_len_override is not None:
            return self._draft_len_override
        if self.config.draft_len_for is None:
            return self.config.max_draft_len
        scheduler = self._scheduler
        batch = min(len(scheduler.running) + len(scheduler.waiting), self.config.max_batch_size)
        return min(self.config.draft_len_for(max(batch, 1)), self.config.max_draft_len)

    def step(self) -> list[TokenUpdate]:
        """Runs one step and returns what it produced, finished requests included."""
        while True:
            step = self._scheduler.plan(self._draft_len())
            if step is None:
                return []
            try:
                with self.block_manager.transaction():
                    self._scheduler.reserve(step)
            except OutOfBlocksError:
                self._make_room()
                continue
            result = self._run(step)
            self.num_steps += 1
            self._note_nan(result.num_nan)
            return self._commit(step, result)

    def _run(self, step: ScheduledStep) -> StepResult:
        """Runs a step whose positions are reserved; gives them back if it fails.

        Not inside the transaction: undoing evictions would hand out published blocks whose rows
        the failed step has overwritten.
        """
        try:
            result = None if self._graphs is None else self._graphs.run(step)
            return self._runner.run(self._inputs.build(step)) if result is None else result
        except BaseException:
            for request in step.requests:
                self.block_manager.trim(request.request_id, request.num_computed)
            raise

    def _note_nan(self, num_rows: int) -> None:
        if num_rows and not self.num_nan_rows:
            logger.error(
                "logits are NaN: the tokens of %d row(s) of this step mean nothing. Check the "
                "weights and the dtype; more are counted and not logged.",
                num_rows,
            )
        self.num_nan_rows += num_rows

    def _make_room(self) -> None:
        """Preempts the youngest running request; one alone always fits."""
        running = self._scheduler.running
        if len(running) < 2:
            raise OutOfBlocksError(
                "The pool cannot hold one request. Raise num_blocks (kv_cache_config.max_tokens) "
                "or lower max_seq_len."
            )
        self._scheduler.preempt(running[-1])

    def _commit(self, step: ScheduledStep, result: StepResult) -> list[TokenUpdate]:
        """Applies a step's results to its requests."""
        updates = []
        rows = {request.request_id: row for row, request in enumerate(step.requests)}
        num_rows = {r.request_id: 1 + len(r.pending_drafts) for r in step.decodes}
        num_rows |= {chunk.request.request_id: chunk.num_tokens for chunk in step.chunks}
        _note_prompts(step, result)
        for request in step.requests:
            row = rows[request.request_id]
            tokens = result.tokens[row]
            logprobs = None if result.logprobs is None else result.logprobs[row]
            committed = self._advance(request, num_rows[request.request_id], tokens)
            self._note_draft_rows(request, num_rows[request.request_id], committed, step.draft_len)
            update = self._take_tokens(request, tokens, logprobs)
            self._publish(request)
            # A chunk may leave one token, as in decoding; its chain had no positions to write to.
            is_finished = update is not None and update.finish_reason is not None
            self._settle(request, result.drafts[row] if tokens else [], is_finished)
            if update is not None:
                updates.append(update)
        return updates

    def _advance(self, request: Request, num_rows: int, tokens: list[int]) -> int:
        """Counts acceptance; returns how many of the step's rows are committed."""
        if not request.is_decoding:
            return num_rows
        num_accepted = len(tokens) - 1
        request.acceptance.record(len(request.pending_drafts), num_accepted)
        self.stats.record(len(request.pending_drafts), num_accepted)
        return len(tokens)

    def _note_draft_rows(
        self, request: Request, num_rows: int, committed: int, draft_len: int
    ) -> None:
        """Moves `num_computed`, and either `num_draft_valid` or the ring, by the committed rows."""
        if draft_len == 0 and self._draft is not None:
            if ring_has_room(request, num_rows, self.config.ring_size):
                request.num_ring_rows += committed
            elif request.is_drafting:
                request.is_drafting = False
                request.num_ring_rows = 0
                self.num_ring_overflows += 1
                logger.warning(
                    "request %d proposes no drafts from here on: more than ring_size=%d of its "
                    "positions were computed while the draft length was 0. Its text is the same, "
                    "only slower; %d request(s) so far.",
                    request.request_id,
                    self.config.ring_size,
                    self.num_ring_overflows,
                )
        request.num_computed += committed
        if draft_len > 0 and request.is_drafting:
            request.num_draft_valid = request.num_computed
            request.num_ring_rows = 0
        elif self._draft is None:
            request.num_draft_valid = request.num_computed

    def _take_tokens(
        self, request: Request, tokens: list[int], logprobs: list[dict[int, Logprob]] | None
    ) -> TokenUpdate | None:
        """Appends emitted tokens up to the first that ends the request."""
        if not tokens:
            return None
        kept = 0
        finish: FinishReason | None = None
        stop_reason: int | None = None
        for token in tokens:
            request.token_ids.append(token)
            kept += 1
            finish, stop_reason = self._finish(request, token)
            if finish is not None:
                break
        return TokenUpdate(
            request_id=request.request_id,
            new_token_ids=tokens[:kept],
            new_logprobs=_trim(logprobs, tokens[:kept], request.sampling.logprobs),
            finish_reason=finish,
            stop_reason=stop_reason,
            acceptance=request.acceptance.copy(),
            prompt_logprobs=_prompt_logprobs(request, kept),
        )

    def _finish(self, request: Request, token: int) -> tuple[FinishReason | None, int | None]:
        if token in request.stop_token_ids:
            is_eos = not request.sampling.ignore_eos and token in request.eos_token_ids
            return "stop", None if is_eos else token
        if request.max_tokens is not None and request.num_output_tokens >= request.max_tokens:
            return "length", None
        if request.num_tokens >= self.max_seq_len:
            return "length", None
        return None, None

    def _publish(self, request: Request) -> None:
        valid = min(request.num_computed, request.num_draft_valid, request.num_tokens)
        self.block_manager.publish(request.request_id, request.token_ids, valid)

    def _settle(self, request: Request, drafts: list[int], is_finished: bool) -> None:
        """Ends a finished request, or keeps its drafts and returns the blocks it reserved."""
        if is_finished:
            self._scheduler.remove(request)
            del self.requests[request.request_id]
            return
        request.pending_drafts = []
        if request.is_decoding and request.is_drafting and self._draft is not None:
            room = clip_draft_len(
                len(drafts),
                request.num_tokens,
                self.max_seq_len,
                self._draft.config.mla.rope.max_position_embeddings,
            )
            request.pending_drafts = drafts[:room]
        self.block_manager.trim(request.request_id, request.num_computed)

    def check_integrity(self) -> None:
        """Raises AllocatorError if a block is lost or owned twice."""
        self.block_manager.check_integrity()


def _note_prompts(step: ScheduledStep, result: StepResult) -> None:
    """Hands out the scores of prompt rows; before `num_computed` moves."""
    scores = iter(result.prompt_logprobs)
    for chunk in step.chunks:
        entries = list(itertools.islice(scores, len(chunk.scored)))
        successors = chunk.request.token_ids[chunk.scored.start + 1 : chunk.scored.stop + 1]
        wanted = chunk.request.sampling.prompt_logprobs
        chunk.request.prompt_logprobs += _trim(entries, successors, wanted) or []


def _prompt_logprobs(request: Request, num_new: int) -> list[dict[int, Logprob]] | None:
    is_wanted = request.sampling.prompt_logprobs is not None
    return request.prompt_logprobs if is_wanted and request.num_output_tokens == num_new else None


def _trim(
    logprobs: list[dict[int, Logprob]] | None, tokens: list[int], wanted: int | None
) -> list[dict[int, Logprob]] | None:
    """Keeps, per token, the `wanted` most likely ones and the drawn one."""
    if wanted is None or logprobs is None:
        return None
    return [
        {
            key: value
            for key, value in entry.items()
            if key == token or (value.rank is not None and value.rank <= wanted)
        }
        for token, entry in zip(tokens, logprobs, strict=False)
    ]


def _dtype_and_device(target: TargetModel) -> tuple[torch.dtype, torch.device]:
    """Dtype and device of the target's embedding, which the caches follow."""
    if not isinstance(target, torch.nn.Module):
        raise ConfigError(f"A target must be a torch module, got {type(target).__name__}.")
    parameter = next(itertools.chain(target.parameters(), target.buffers()))
    return parameter.dtype, parameter.device
