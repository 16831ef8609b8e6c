# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Engine settings in the shape of the TensorRT-LLM LLM API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensorrt_llm_ext.configs.host_fields import (
    checked_bool,
    checked_int,
    checked_number,
    from_mapping,
    host_shaped,
    no_op,
    refuse,
)
from tensorrt_llm_ext.errors import ConfigError, UnsupportedError

_ONE_POOL = "the embedded engine keeps one pool of whole blocks on its device"

_KV_CACHE_HOST_FIELDS = {
    "max_attention_window": refuse("every MLA layer attends to the whole sequence"),
    "sink_token_length": refuse("every MLA layer attends to the whole sequence", 0),
    "cross_kv_cache_fraction": refuse("there is no encoder"),
    "mamba_ssm_cache_dtype": no_op("there are no state-space layers", "auto"),
    "mamba_ssm_stochastic_rounding": no_op("there are no state-space layers", False),
    "mamba_state_cache_interval": no_op("there are no state-space layers"),
    "host_cache_size": no_op(f"{_ONE_POOL}; nothing is offloaded", 0),
    "disk_cache_size": no_op(f"{_ONE_POOL}; nothing is offloaded", 0),
    "disk_cache_path": no_op(f"{_ONE_POOL}; nothing is offloaded"),
    "onboard_blocks": no_op(f"{_ONE_POOL}; nothing is offloaded", True),
    "secondary_offload_min_priority": no_op(f"{_ONE_POOL}; nothing is offloaded"),
    "use_uvm": no_op(_ONE_POOL, False),
    "max_gpu_total_bytes": refuse("size the pool with max_tokens or free_gpu_memory_fraction", 0),
    "max_util_for_resume": no_op(f"{_ONE_POOL}; preempted requests are recomputed", 0.95),
    "enable_partial_reuse": no_op("blocks are reused whole", True, False),
    "copy_on_partial_reuse": no_op("blocks are reused whole", True, False),
    "event_buffer_max_size": no_op("cache events are not published", 0),
    "attention_dp_events_gather_period_ms": no_op("cache events are not published", 5),
    "use_kv_cache_manager_v2": no_op(_ONE_POOL, False, True, "auto"),
    "pool_ratio": no_op(_ONE_POOL),
}


@host_shaped(host_fields=_KV_CACHE_HOST_FIELDS)
@dataclass(frozen=True, kw_only=True, slots=True)
class KvCacheConfig:
    """The pool of latent rows shared by target and draft.

    Attributes:
        enable_block_reuse: Whether full blocks are shared between requests with a common prefix.
        tokens_per_block: Rows per block.
        max_tokens: Most rows in the pool; what memory allows when None.
        free_gpu_memory_fraction: Share of the free device memory that the pool may take.
        dtype: "auto": rows have the model's dtype.
    """

    enable_block_reuse: bool = True
    tokens_per_block: int = 32
    max_tokens: int | None = None
    free_gpu_memory_fraction: float | None = 0.9
    dtype: str = "auto"

    def __post_init__(self) -> None:
        """Checks ranges."""
        kind = type(self).__name__
        checked_bool(kind, "enable_block_reuse", self.enable_block_reuse)
        checked_int(kind, "tokens_per_block", self.tokens_per_block, minimum=1)
        if self.max_tokens is not None:
            checked_int(kind, "max_tokens", self.max_tokens, minimum=1)
        if self.free_gpu_memory_fraction is not None:
            fraction = checked_number(
                kind, "free_gpu_memory_fraction", self.free_gpu_memory_fraction, maximum=1.0
            )
            if fraction <= 0:
                raise ConfigError(
                    f"{kind}.free_gpu_memory_fraction must be above 0, got {fraction}."
                )
        if self.dtype != "auto":
            raise UnsupportedError(
                f"{kind}.dtype={self.dtype!r}: cached rows have the model's dtype. Use 'auto' and "
                "choose the model's dtype."
            )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> KvCacheConfig:
        """Builds the config from a mapping; unknown keys are refused by name."""
        return from_mapping(cls, values)


@host_shaped(host_fields={"mode": no_op("the embedded engine captures the decode step", "decode")})
@dataclass(frozen=True, kw_only=True, slots=True)
class CudaGraphConfig:
    """Which decode batches are captured as CUDA graphs; without effect where there is no CUDA.

    Attributes:
        batch_sizes: Captured batch sizes, ascending; generated up to `max_batch_size` when None.
        max_batch_size: Largest captured batch; 0 means the largest of `batch_sizes`, or 128.
        enable_padding: Whether a batch may run in the next larger captured size.
    """

    batch_sizes: Sequence[int] | None = None
    max_batch_size: int = 0
    enable_padding: bool = False

    def __post_init__(self) -> None:
        """Checks the sizes and fills in the missing one, by the host's rules."""
        kind = type(self).__name__
        checked_bool(kind, "enable_padding", self.enable_padding)
        largest = checked_int(kind, "max_batch_size", self.max_batch_size, minimum=0)
        if self.batch_sizes is not None and not isinstance(self.batch_sizes, Sequence):
            raise ConfigError(f"{kind}.batch_sizes must be a list, got {self.batch_sizes!r}.")
        if self.batch_sizes:
            given = {checked_int(kind, "batch_sizes", s, minimum=1) for s in self.batch_sizes}
            sizes = sorted(given)
            if largest not in (0, sizes[-1]):
                raise ConfigError(
                    f"{kind}: max_batch_size ({largest}) must equal the largest of batch_sizes "
                    f"({sizes[-1]}). Give one of the two."
                )
            largest = sizes[-1]
        else:
            largest = largest or 128
            sizes = _default_batch_sizes(largest, self.enable_padding)
        object.__setattr__(self, "batch_sizes", tuple(sizes))
        object.__setattr__(self, "max_batch_size", largest)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> CudaGraphConfig:
        """Builds the config from a mapping; unknown keys are refused by name."""
        return from_mapping(cls, values)


def _default_batch_sizes(largest: int, enable_padding: bool) -> list[int]:
    """Every size where batches run unpadded; a coarser ladder where padding is allowed."""
    sizes = {1, 2, 4, *range(8, 129, 8)} if enable_padding else {*range(1, 33), 64, 128}
    power = 256
    while power < largest:
        sizes.add(power)
        power *= 2
    return sorted({size for size in sizes if size <= largest} | {largest})
