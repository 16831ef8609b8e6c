# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""A CPU double of TensorRT-LLM 1.3.0rc20: its registration, modules, speculation and executor."""

from trtllm_double import install

__version__ = "1.3.0rc20"
install("E2", __name__, __version__)


def __getattr__(name: str) -> object:
    from trtllm_double.modules import top_level

    return top_level(name)
