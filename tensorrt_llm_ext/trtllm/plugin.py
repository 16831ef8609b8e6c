# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""`register()`: everything that a process needs before it builds a model."""

from __future__ import annotations

import importlib
import logging

from tensorrt_llm_ext.trtllm.host import host

_logger = logging.getLogger(__name__)


def register() -> None:
    """Registers targets and draft in the installed TensorRT-LLM; calling it again does nothing.

    Call it before `LLM(...)`. `trtllm-serve` calls it through `--custom_module_dirs`; worker
    processes do it by themselves.

    Raises:
        HostError: If TensorRT-LLM is not installed, or lacks what the adapter needs.
    """
    host()
    importlib.import_module("tensorrt_llm_ext.trtllm.registered")


__all__ = ["register"]
