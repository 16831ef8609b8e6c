# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""What an engine tells about itself between two steps."""

from __future__ import annotations

from dataclasses import dataclass, field

from tensorrt_llm_ext.speculative.stats import AcceptanceStats


@dataclass(frozen=True, kw_only=True)
class EngineSnapshot:
    """Counts as of the last complete step.

    Attributes:
        num_steps: Steps since the start.
        running: Requests that hold cache blocks.
        waiting: Requests that do not yet.
        blocks_used: Blocks that hold rows of requests or of reusable prefixes.
        blocks_total: Blocks of the pool, the null block excluded.
        block_size: Tokens per block.
        preemptions: Since the start.
        nan_rows: Rows of logits that were NaN, since the start.
        draft_overhead: The draft's share of the time of steps; None where phases are not timed.
        acceptance: Since the start, pooled.
    """

    num_steps: int = 0
    running: int = 0
    waiting: int = 0
    blocks_used: int = 0
    blocks_total: int = 0
    block_size: int = 0
    preemptions: int = 0
    nan_rows: int = 0
    draft_overhead: float | None = None
    acceptance: AcceptanceStats = field(default_factory=AcceptanceStats)


__all__ = ["EngineSnapshot"]
