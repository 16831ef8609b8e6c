# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Entry of a worker process; what it does comes by pickle."""

from __future__ import annotations

import importlib
import pickle
import sys


def main() -> None:
    """Reads the arguments of `worker_main` from standard input and runs it."""
    importlib.import_module("tensorrt_llm")
    from trtllm_double import modules

    arguments = pickle.load(sys.stdin.buffer)
    modules.namespace("executor.worker")["worker_main"](engine=None, log_level="error", **arguments)


if __name__ == "__main__":
    main()
