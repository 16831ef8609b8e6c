# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Limits and policies of the embedded engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tensorrt_llm_ext.configs.engine import CudaGraphConfig
from tensorrt_llm_ext.configs.speculative import MAX_DRAFT_LEN
from tensorrt_llm_ext.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineConfig:
    """What the engine core needs to know besides its models.

    Attributes:
        max_batch_size: Requests running at once.
        max_num_tokens: Rows of one step, decode grid and prefill chunks together.
        max_seq_len: Prompt and output tokens of one request; the target's table length when None.
        block_size: Tokens per cache block.
        num_blocks: Blocks of the pool without the null block; None fits every running request at
            full length, within `pool_bytes`.
        pool_bytes: Upper bound of the pool when `num_blocks` is None.
        enable_block_reuse: Prefix reuse.
        enable_chunked_prefill: Whether a prompt may be split over steps.
        max_draft_len: Most drafts per request and step.
        draft_len_for: Drafts to propose for a number of running requests; None always proposes
            `max_draft_len`.
        ring_size: Captured rows kept per request while no drafts are proposed.
        seed: Seeds requests that bring none.
        cuda_graphs: Steps that are captured as CUDA graphs on a CUDA device; None for none.
    """

    max_batch_size: int = 8
    max_num_tokens: int = 2048
    max_seq_len: int | None = None
    block_size: int = 32
    num_blocks: int | None = None
    pool_bytes: int = 1 << 30
    enable_block_reuse: bool = True
    enable_chunked_prefill: bool = True
    max_draft_len: int = 0
    draft_len_for: Callable[[int], int] | None = None
    ring_size: int = 256
    seed: int = 0
    cuda_graphs: CudaGraphConfig | None = None

    def __post_init__(self) -> None:
        """Refuses limits under which no request could run."""
        for name in ("max_batch_size", "max_num_tokens", "block_size", "ring_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if not 0 <= self.max_draft_len <= MAX_DRAFT_LEN:
            raise ConfigError(
                f"max_draft_len must be between 0 and {MAX_DRAFT_LEN}, got {self.max_draft_len}."
            )
        rows = self.max_batch_size * (1 + self.max_draft_len)
        if self.max_num_tokens < rows:
            raise ConfigError(
                f"max_num_tokens {self.max_num_tokens} cannot hold one verify step of "
                f"max_batch_size {self.max_batch_size} x (1 + max_draft_len {self.max_draft_len})"
                f" = {rows} rows. Raise max_num_tokens or lower one of the two."
            )
