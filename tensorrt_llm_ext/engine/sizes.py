# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""How long a request may be, and how many cache blocks there are."""

from __future__ import annotations

import logging

import torch

from tensorrt_llm_ext.engine.kv_cache import pool_blocks
from tensorrt_llm_ext.engine.settings import EngineConfig
from tensorrt_llm_ext.errors import ConfigError
from tensorrt_llm_ext.models.interfaces import DraftModel, TargetModel

logger = logging.getLogger(__name__)


def engine_sizes(
    config: EngineConfig, target: TargetModel, draft: DraftModel | None, dtype: torch.dtype
) -> tuple[int, int]:
    """Returns the longest sequence, and the blocks of the pool (null block included).

    Args:
        config: Limits.
        target: Its table bounds positions.
        draft: Its layers share the pool.
        dtype: Of the cached rows.

    Raises:
        ConfigError: If `config.max_seq_len` is outside of the table.
    """
    size = config.block_size
    table = target.config.max_position_embeddings
    max_seq_len = table if config.max_seq_len is None else config.max_seq_len
    if not 1 <= max_seq_len <= table:
        raise ConfigError(
            f"max_seq_len must be between 1 and the target's max_position_embeddings {table}, "
            f"got {max_seq_len}."
        )
    num_layers = target.config.num_layers + (draft.config.num_layers if draft else 0)
    per_request = -(-max_seq_len // size)
    num_blocks = (config.num_blocks or 0) + 1
    if config.num_blocks is None:
        num_blocks = pool_blocks(
            wanted=config.max_batch_size * per_request,
            block_size=size,
            latent_size=target.config.mla.latent_size,
            num_layers=num_layers,
            itemsize=dtype.itemsize,
            limit=config.pool_bytes,
        )
    # One request alone must always fit, or it could neither run nor be preempted.
    capacity = (num_blocks - 1) * size
    if capacity < max_seq_len:
        logger.warning(
            "max_seq_len is %d here, not %d: the pool of %d blocks of %d tokens holds no more. "
            "Raise num_blocks (kv_cache_config.max_tokens) or pool_bytes.",
            capacity,
            max_seq_len,
            num_blocks - 1,
            size,
        )
    return min(max_seq_len, capacity), num_blocks


__all__ = ["engine_sizes"]
