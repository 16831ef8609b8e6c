# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The paged latent cache: one pool, the target's layers first, the draft's layers after them."""

from __future__ import annotations

import torch

from tensorrt_llm_ext.errors import UnsupportedError


def pool_blocks(
    *, wanted: int, block_size: int, latent_size: int, num_layers: int, itemsize: int, limit: int
) -> int:
    """Blocks of a pool (the null block included) that stays within `limit` bytes.

    Args:
        wanted: Blocks for every running request at full length.
        block_size: Tokens per block.
        latent_size: Elements per token and layer.
        num_layers: Target and draft layers.
        itemsize: Bytes per element.
        limit: Bytes.
    """
    block_bytes = block_size * latent_size * num_layers * itemsize
    return max(2, min(wanted + 1, limit // block_bytes))


def allocate_pool(
    num_layers: int,
    num_blocks: int,
    block_size: int,
    latent_size: int,
    *,
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[torch.Tensor, ...]:
    """Allocates the pool: per layer [num_blocks, block_size, latent_size], zeroed.

    Block 0 is the null block and must stay zero; the others start as zeros so that a row that is
    gathered before it was ever written is finite.
    """
    pool = torch.zeros(
        (num_layers, num_blocks, block_size, latent_size), dtype=dtype, device=device
    )
    return tuple(pool.unbind(0))


def check_latent_sizes(target_latent: int, draft_latent: int) -> None:
    """Refuses a draft whose latent row cannot share the target's pool.

    Raises:
        UnsupportedError: If the two widths differ.
    """
    if target_latent != draft_latent:
        raise UnsupportedError(
            f"The draft's latent row is {draft_latent} wide (kv_lora_rank + qk_rope_head_dim), the "
            f"target's {target_latent}. One-model execution keeps both in one pool; use a draft "
            "that was made for this target's MLA shapes."
        )
