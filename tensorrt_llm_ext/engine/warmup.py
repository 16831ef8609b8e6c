# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Which steps are captured: every shape, known before the first request."""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tensorrt_llm_ext.configs.engine import CudaGraphConfig
from tensorrt_llm_ext.engine.settings import EngineConfig


class SamplingKind(str, Enum):
    """What a step does to logits, as far as it shapes a graph."""

    GREEDY = "greedy"
    SAMPLED = "sampled"  # temperature alone
    FILTERED = "filtered"  # top-k, top-p or min-p as well: a sort over the vocabulary


@dataclass(frozen=True)
class GraphShape:
    """One captured step.

    Attributes:
        bucket: Requests, padding included.
        query_len: Rows per request: the last token and the drafts to verify.
        draft_len: Drafts to propose.
        kind: How tokens are drawn.
    """

    bucket: int
    query_len: int
    draft_len: int
    kind: SamplingKind

    @property
    def num_rows(self) -> int:
        """Rows of the target's forward pass."""
        return self.bucket * self.query_len

    def __str__(self) -> str:
        """For logs: batch, rows, drafts, kind."""
        return f"{self.bucket} x {self.query_len} rows, {self.draft_len} drafts, {self.kind.value}"


@dataclass(frozen=True)
class WarmupPlan:
    """Every shape that is captured.

    Attributes:
        shapes: Captured when the engine starts, large ones first, so that smaller ones fit into
            the memory that they leave.
        batch_sizes: Ascending.
        enable_padding: Whether a batch may run in the next larger size.
    """

    shapes: tuple[GraphShape, ...]
    batch_sizes: tuple[int, ...]
    enable_padding: bool

    def bucket_for(self, num_requests: int) -> int | str:
        """Returns the captured batch size for so many requests, or why there is none."""
        index = bisect.bisect_left(self.batch_sizes, num_requests)
        if index == len(self.batch_sizes):
            largest = self.batch_sizes[-1] if self.batch_sizes else 0
            return f"the batch is larger than the largest captured size, {largest}"
        if self.batch_sizes[index] != num_requests and not self.enable_padding:
            return "the batch size is not captured, and cuda_graph_config.enable_padding is off"
        return self.batch_sizes[index]


@dataclass(frozen=True)
class WarmupRow:
    """A captured shape and the bytes of its static inputs."""

    shape: GraphShape
    static_bytes: int


@dataclass(frozen=True)
class WarmupReport:
    """A plan for people and machines."""

    rows: tuple[WarmupRow, ...]
    enable_padding: bool

    def to_dict(self) -> dict[str, Any]:
        """Returns everything as plain data."""
        graphs = [
            {
                "batch_size": row.shape.bucket,
                "query_len": row.shape.query_len,
                "draft_len": row.shape.draft_len,
                "sampling": row.shape.kind.value,
                "static_bytes": row.static_bytes,
            }
            for row in self.rows
        ]
        return {"enable_padding": self.enable_padding, "graphs": graphs}


def plan_warmup(graphs: CudaGraphConfig, engine: EngineConfig, *, has_draft: bool) -> WarmupPlan:
    """Lists the steps to capture.

    Args:
        graphs: Captured batch sizes.
        engine: Its largest batch, and the lengths that drafts may have at each batch size.
        has_draft: Whether the engine speculates.
    """
    wanted = graphs.batch_sizes or ()
    sizes = tuple(size for size in wanted if size <= engine.max_batch_size)
    if graphs.enable_padding and engine.max_batch_size not in sizes:
        sizes = (*sizes, engine.max_batch_size) if _reaches(wanted, engine) else sizes
    shapes = [
        GraphShape(bucket, query_len, draft_len, kind)
        for bucket in reversed(sizes)
        for query_len, draft_len in sorted(_lengths(engine, sizes, bucket, has_draft=has_draft))
        for kind in SamplingKind
    ]
    return WarmupPlan(tuple(shapes), sizes, graphs.enable_padding)


def _reaches(wanted: tuple[int, ...] | list[int] | object, engine: EngineConfig) -> bool:
    """Whether a larger size was asked for than the engine's largest batch."""
    return isinstance(wanted, (tuple, list)) and any(s > engine.max_batch_size for s in wanted)


def _lengths(
    engine: EngineConfig, sizes: tuple[int, ...], bucket: int, *, has_draft: bool
) -> set[tuple[int, int]]:
    """(query_len, draft_len) of the steps of a bucket."""
    most = engine.max_draft_len
    if not has_draft or most == 0:
        return {(1, 0)}
    if engine.draft_len_for is None:
        return {(1 + most, most)}
    found = set()
    for batch in _batches(sizes, bucket):
        length = min(engine.draft_len_for(batch), most)
        found.add((1, 0) if length == 0 else (1 + most, length))
    return found


def _batches(sizes: tuple[int, ...], bucket: int) -> Iterator[int]:
    """Batches that run in a bucket."""
    below = [size for size in sizes if size < bucket]
    return iter(range((below[-1] if below else 0) + 1, bucket + 1))


__all__ = [
    "GraphShape",
    "SamplingKind",
    "WarmupPlan",
    "WarmupReport",
    "WarmupRow",
    "plan_warmup",
]
