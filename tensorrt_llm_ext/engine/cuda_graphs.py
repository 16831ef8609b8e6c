# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Steps as CUDA graphs: verify, accept, extend and chain in one launch.

A captured step reads static buffers, into which the inputs of a batch are copied, padded to a
captured batch size by requests that write nothing and whose results nobody reads. What has no
captured shape runs eagerly, and the reason is logged once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from tensorrt_llm_ext.configs.engine import CudaGraphConfig
from tensorrt_llm_ext.engine.block_manager import BlockManager
from tensorrt_llm_ext.engine.inputs import InputBuilder, InputLimits
from tensorrt_llm_ext.engine.model_runner import ModelRunner, StepResult, read_results
from tensorrt_llm_ext.engine.sampling_state import kind_of
from tensorrt_llm_ext.engine.scheduler import ScheduledStep
from tensorrt_llm_ext.engine.settings import EngineConfig
from tensorrt_llm_ext.engine.warmup import (
    GraphShape,
    WarmupPlan,
    WarmupReport,
    WarmupRow,
    plan_warmup,
)
from tensorrt_llm_ext.errors import ConfigError
from tensorrt_llm_ext.speculative.metadata import StepInputs, StepOutputs

logger = logging.getLogger(__name__)
_WARM_UP_RUNS = 2  # compiles kernels, fills caches of libraries


@dataclass(frozen=True)
class Captured:
    """A step that can be run again over the same buffers.

    Attributes:
        outputs: Where its results are after each replay.
        replay: Runs it.
    """

    outputs: StepOutputs
    replay: Callable[[], None]


class Capture(Protocol):
    """How a step is captured."""

    def __call__(self, run: Callable[[], StepOutputs]) -> Captured:
        """Captures a step; `run` may be called several times, over harmless inputs."""


class CudaCapture:
    """Captures into CUDA graphs that share one memory pool: only one of them runs at a time."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, run: Callable[[], StepOutputs]) -> Captured:
        """See `Capture`."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP_RUNS):
                run()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            outputs = run()
        return Captured(outputs, graph.replay)


class GraphedSteps:
    """Runs the steps that were captured.

    Args:
        plan: The captured shapes.
        builder: Makes inputs; on the host, as they are copied into the static buffers.
        runner: The models and what they write to.
        num_columns: Columns of a static block table: blocks of the longest request.
        capture: How to capture.
    """

    def __init__(
        self,
        plan: WarmupPlan,
        builder: InputBuilder,
        runner: ModelRunner,
        *,
        num_columns: int,
        capture: Capture,
    ) -> None:
        self.plan = plan
        self._builder, self._runner, self._capture = builder, runner, capture
        self._num_columns = num_columns
        self._shapes = frozenset(plan.shapes)
        self._captured: dict[GraphShape, tuple[StepInputs, Captured]] = {}
        self._told: set[str] = set()
        self.num_replays = 0

    def warm_up(self) -> None:
        """Captures every shape of the plan."""
        for shape in self.plan.shapes:
            self._get(shape)
        logger.info("captured %d steps as CUDA graphs", len(self._captured))

    def run(self, step: ScheduledStep) -> StepResult | None:
        """Runs a step by its graph; None if it has none."""
        shape = self.shape_of(step)
        if isinstance(shape, str):
            if shape not in self._told:
                self._told.add(shape)
                logger.info("runs eagerly: %s (said once)", shape)
            return None
        buffers, captured = self._get(shape)
        with torch.inference_mode():
            buffers.copy_(self._build(step, shape))
            captured.replay()
        self.num_replays += 1
        return read_results(captured.outputs)

    def shape_of(self, step: ScheduledStep) -> GraphShape | str:
        """Returns the captured shape that a step runs in, or why it runs eagerly."""
        if step.chunks:
            return "the step has prompt rows, whose number is not known beforehand"
        if step.draft_len and any(r.num_ring_rows and r.is_drafting for r in step.decodes):
            return "the step resumes drafting after steps without drafts"
        if any(request.sampling.logprobs is not None for request in step.decodes):
            return "log-probabilities are asked for"
        kind = kind_of(step)
        if kind is None:
            return "a request has settings per token (penalties, bias, min_tokens)"
        bucket = self.plan.bucket_for(len(step.decodes))
        if isinstance(bucket, str):
            return bucket
        pending = max(len(request.pending_drafts) for request in step.decodes)
        for query_len in sorted({s.query_len for s in self._shapes}):
            shape = GraphShape(bucket, query_len, step.draft_len, kind)
            if query_len > pending and shape in self._shapes:
                return shape
        return f"no step of {1 + pending} rows per request and {step.draft_len} drafts is captured"

    def _get(self, shape: GraphShape) -> tuple[StepInputs, Captured]:
        found = self._captured.get(shape)
        if found is not None:
            return found
        with torch.inference_mode():
            buffers = build_static(self._builder, shape, self._num_columns)
            buffers = buffers.to(self._runner.device)

            def run() -> StepOutputs:
                buffers.forget_derived()  # to be computed by the captured step itself
                return self._runner.step(buffers)

            found = buffers, self._capture(run)
            buffers.forget_derived()
        self._captured[shape] = found
        return found

    def _build(self, step: ScheduledStep, shape: GraphShape) -> StepInputs:
        return self._builder.build(
            step,
            pad_decodes_to=shape.bucket,
            query_len=shape.query_len,
            num_columns=self._num_columns,
            sampling_kind=shape.kind,
        )


def build_static(builder: InputBuilder, shape: GraphShape, num_columns: int) -> StepInputs:
    """Builds the inputs of a captured step, of padding alone."""
    return builder.build(
        ScheduledStep(decodes=[], chunks=[], draft_len=shape.draft_len),
        pad_decodes_to=shape.bucket,
        query_len=shape.query_len,
        num_columns=num_columns,
        sampling_kind=shape.kind,
    )


def describe(
    graphs: CudaGraphConfig, engine: EngineConfig, *, has_draft: bool, vocab_size: int
) -> WarmupReport:
    """Lists what would be captured, without models and without a GPU.

    Args:
        graphs: Captured batch sizes.
        engine: Limits, with `max_seq_len`.
        has_draft: Whether the engine speculates.
        vocab_size: The target's.

    Raises:
        ConfigError: If `engine.max_seq_len` is None.
    """
    if engine.max_seq_len is None:
        raise ConfigError("max_seq_len is None, expected the longest request in tokens.")
    limits = InputLimits(
        block_size=engine.block_size,
        max_seq_len=engine.max_seq_len,
        vocab_size=vocab_size,
        ring_size=engine.ring_size if has_draft else 0,
        max_batch_size=engine.max_batch_size,
    )
    blocks = BlockManager(2, engine.block_size, enable_block_reuse=False)
    builder = InputBuilder(limits, blocks, torch.device("cpu"))
    plan = plan_warmup(graphs, engine, has_draft=has_draft)
    columns = -(-engine.max_seq_len // engine.block_size)
    rows = tuple(
        WarmupRow(shape, build_static(builder, shape, columns).nbytes) for shape in plan.shapes
    )
    return WarmupReport(rows, plan.enable_padding)


__all__ = ["Capture", "Captured", "CudaCapture", "GraphedSteps", "build_static", "describe"]
