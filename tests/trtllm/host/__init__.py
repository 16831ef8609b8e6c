# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Host doubles: one CPU package per era that behaves like the recorded TensorRT-LLM."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

ERAS = ("e1", "e2", "e3")
_HERE = Path(__file__).parent
_ROOT = _HERE.parents[2]


def paths(era: str) -> list[str]:
    """Entries of sys.path that make `import tensorrt_llm` find the double of an era."""
    return [str(_HERE / era), str(_HERE / "common")]


def environment(era: str, **extra: str) -> dict[str, str]:
    """Environment of a subprocess that has the double and this package."""
    entries = [*paths(era), str(_ROOT)]
    base = {k: v for k, v in os.environ.items() if not k.startswith(("TRTLLM_EXT", "TLLM"))}
    return {**base, "PYTHONPATH": os.pathsep.join(entries), "OMP_NUM_THREADS": "1", **extra}


_KEPT = "trtllm_double.signatures"  # the same for all eras, and slow to make


def _is_ours(name: str) -> bool:
    if name == _KEPT:
        return False
    heads = ("tensorrt_llm", "trtllm_double", "trtllm_ext_register")
    if name.partition(".")[0] in heads:
        return True
    return name.startswith(("tensorrt_llm_ext.trtllm", "tensorrt_llm_ext._custom_modules"))


def _purge() -> None:
    for name in [n for n in sys.modules if _is_ours(n)]:
        del sys.modules[name]
    sys.meta_path[:] = [f for f in sys.meta_path if type(f).__module__ != "trtllm_double"]


@contextlib.contextmanager
def use_host(era: str) -> Iterator[None]:
    """Makes the double of an era importable in this process, and forgets it afterwards."""
    before = list(sys.path)
    _purge()
    sys.path[:0] = paths(era)
    try:
        yield
    finally:
        sys.path[:] = before
        _purge()
