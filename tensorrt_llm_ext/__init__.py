# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""NVFP4 MLA Eagle3 drafts with one-model speculative execution.

Importing this package loads neither torch nor anything else that is heavy: the public names below
are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorrt_llm_ext.configs.engine import CudaGraphConfig, KvCacheConfig
    from tensorrt_llm_ext.configs.sampling import SamplingParams
    from tensorrt_llm_ext.configs.speculative import Eagle3DecodingConfig, EagleDecodingConfig
    from tensorrt_llm_ext.engine.llm import LLM, CompletionOutput, RequestOutput
    from tensorrt_llm_ext.trtllm.plugin import register
    from tensorrt_llm_ext.trtllm.spec_config import speculative_config

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "CompletionOutput",
    "CudaGraphConfig",
    "Eagle3DecodingConfig",
    "EagleDecodingConfig",
    "KvCacheConfig",
    "RequestOutput",
    "SamplingParams",
    "__version__",
    "register",
    "speculative_config",
]

_HOMES = {
    "LLM": "tensorrt_llm_ext.engine.llm",
    "CompletionOutput": "tensorrt_llm_ext.engine.llm",
    "RequestOutput": "tensorrt_llm_ext.engine.llm",
    "CudaGraphConfig": "tensorrt_llm_ext.configs.engine",
    "KvCacheConfig": "tensorrt_llm_ext.configs.engine",
    "SamplingParams": "tensorrt_llm_ext.configs.sampling",
    "Eagle3DecodingConfig": "tensorrt_llm_ext.configs.speculative",
    "EagleDecodingConfig": "tensorrt_llm_ext.configs.speculative",
    "register": "tensorrt_llm_ext.trtllm.plugin",
    "speculative_config": "tensorrt_llm_ext.trtllm.spec_config",
}


def __getattr__(name: str) -> object:
    """Imports a public name from its module on first use, and keeps it."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Lists the public names, imported or not."""
    return sorted({*globals(), *__all__})
