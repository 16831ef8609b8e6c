# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""KvCacheConfig and CudaGraphConfig in the host's shape."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrt_llm_ext.configs.engine import CudaGraphConfig, KvCacheConfig
from tensorrt_llm_ext.errors import ConfigError, UnsupportedError


def test_defaults_are_the_hosts() -> None:
    config = KvCacheConfig()
    assert config.enable_block_reuse is True
    assert config.tokens_per_block == 32
    assert config.max_tokens is None
    assert config.free_gpu_memory_fraction == 0.9
    assert config.dtype == "auto"


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"tokens_per_block": 0}, ConfigError, "tokens_per_block must be at least 1, got 0"),
        ({"max_tokens": -1}, ConfigError, "max_tokens must be at least 1"),
        ({"free_gpu_memory_fraction": 0.0}, ConfigError, "must be above 0"),
        ({"free_gpu_memory_fraction": 1.5}, ConfigError, "must be at most 1.0, got 1.5"),
        ({"enable_block_reuse": "yes"}, ConfigError, "enable_block_reuse must be true or false"),
        ({"dtype": "fp8"}, UnsupportedError, "cached rows have the model's dtype"),
        ({"max_attention_window": [128]}, UnsupportedError, "whole sequence"),
        ({"max_gpu_total_bytes": 10}, UnsupportedError, "max_tokens"),
        ({"enable_blok_reuse": True}, ConfigError, "did you mean 'enable_block_reuse'"),
    ],
)
def test_kv_cache_refusals(values: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        KvCacheConfig.from_dict(values)


def test_kv_cache_fields_without_effect_are_accepted() -> None:
    assert KvCacheConfig(host_cache_size=2**30, use_uvm=False) == KvCacheConfig()  # type: ignore[call-arg]
    assert KvCacheConfig(enable_partial_reuse=True, onboard_blocks=True) == KvCacheConfig()  # type: ignore[call-arg]


@given(
    st.lists(st.integers(1, 300), min_size=1, max_size=6) | st.none(),
    st.integers(0, 300),
    st.booleans(),
)
def test_cuda_graph_sizes(sizes: list[int] | None, largest: int, padding: bool) -> None:
    if sizes and largest not in (0, max(sizes)):
        with pytest.raises(ConfigError, match="must equal the largest of batch_sizes"):
            CudaGraphConfig(batch_sizes=sizes, max_batch_size=largest, enable_padding=padding)
        return
    config = CudaGraphConfig(batch_sizes=sizes, max_batch_size=largest, enable_padding=padding)
    assert isinstance(config.batch_sizes, tuple)
    assert list(config.batch_sizes) == sorted(set(config.batch_sizes))
    assert config.max_batch_size == config.batch_sizes[-1]
    if sizes:
        assert set(config.batch_sizes) == set(sizes)
    else:
        assert config.max_batch_size == (largest or 128)
        assert config.batch_sizes[0] == 1


def test_cuda_graph_ladders() -> None:
    assert CudaGraphConfig(max_batch_size=20, enable_padding=True).batch_sizes == (
        1,
        2,
        4,
        8,
        16,
        20,
    )
    assert CudaGraphConfig(max_batch_size=3).batch_sizes == (1, 2, 3)
    assert CudaGraphConfig(max_batch_size=600, enable_padding=True).batch_sizes[-3:] == (
        256,
        512,
        600,
    )
    with pytest.raises(ConfigError, match="did you mean 'batch_sizes'"):
        CudaGraphConfig.from_dict({"batch_size": [1]})
    with pytest.raises(ConfigError, match="batch_sizes must be a list, got 8"):
        CudaGraphConfig.from_dict({"batch_sizes": 8})
    with pytest.raises(ConfigError, match="batch_sizes must be at least 1"):
        CudaGraphConfig(batch_sizes=[0])
