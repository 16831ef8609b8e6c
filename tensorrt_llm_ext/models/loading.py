# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Loads modules that fetch their own tensors."""

from __future__ import annotations

from collections.abc import Mapping

from tensorrt_llm_ext.errors import UnsupportedError
from tensorrt_llm_ext.models.interfaces import Loadable, WeightSource


def load_modules(modules: Mapping[str, object], source: WeightSource) -> None:
    """Loads each module, in order, from the tensors whose names start with its key.

    Args:
        modules: Canonical checkpoint prefix of each module.
        source: Where the tensors come from.

    Raises:
        UnsupportedError: If a block does not load itself; a host with such blocks loads its own
            weights.
        CheckpointError: If a tensor is missing or has another shape.
    """
    for prefix, module in modules.items():
        if not isinstance(module, Loadable):
            raise UnsupportedError(
                f"{type(module).__name__} at {prefix!r} has no load(source, prefix), so its host "
                "must load it. Build the model from TorchBlocks to load it from a WeightSource."
            )
        module.load(source, prefix)
