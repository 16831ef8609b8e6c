# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Any public layout in, one canonical view out, from headers and JSON alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tensorrt_llm_ext.checkpoints.formats.base import Detection
from tensorrt_llm_ext.checkpoints.io import CheckpointFiles
from tensorrt_llm_ext.checkpoints.names import TensorMap
from tensorrt_llm_ext.configs.quant import QuantConfig


@dataclass(frozen=True, kw_only=True)
class DraftCheckpoint:
    """A draft's files in canonical terms. Nothing has been judged yet but that they can be read.

    Attributes:
        files: Tensors by stored name, from headers.
        raw: config.json as it is.
        config: The same in the keys that `configs.hf_draft` reads: flat, without nulls.
        detection: Layout and evidence.
        tensors: Where each canonical tensor lies.
        quant: What the files declare about quantization.
    """

    files: CheckpointFiles
    raw: Mapping[str, Any] = field(repr=False)
    config: Mapping[str, Any] = field(repr=False)
    detection: Detection
    tensors: TensorMap
    quant: QuantConfig


@dataclass(frozen=True, kw_only=True)
class TargetCheckpoint:
    """A target's files.

    Attributes:
        files: Tensors by stored name, from headers.
        raw: config.json as it is.
        quant: What the files declare about quantization.
    """

    files: CheckpointFiles
    raw: Mapping[str, Any] = field(repr=False)
    quant: QuantConfig
