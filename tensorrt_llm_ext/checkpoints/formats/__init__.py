# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Every public layout of draft checkpoints that is understood, most specific marks first."""

from __future__ import annotations

from typing import Final

from tensorrt_llm_ext.checkpoints.formats.angelslim import ANGELSLIM
from tensorrt_llm_ext.checkpoints.formats.automodel import AUTOMODEL
from tensorrt_llm_ext.checkpoints.formats.base import DraftFormat
from tensorrt_llm_ext.checkpoints.formats.engines import SGLANG, VLLM
from tensorrt_llm_ext.checkpoints.formats.modelopt import MODELOPT
from tensorrt_llm_ext.checkpoints.formats.native import GENERIC, NATIVE
from tensorrt_llm_ext.checkpoints.formats.specforge import SPECFORGE
from tensorrt_llm_ext.checkpoints.formats.speculators import SPECULATORS
from tensorrt_llm_ext.checkpoints.formats.torchspec import TORCHSPEC

# A key that one producer alone writes says more than names that engines share.
ALL_FORMATS: Final[tuple[DraftFormat, ...]] = (
    NATIVE,
    SPECULATORS,
    ANGELSLIM,
    MODELOPT,
    SGLANG,
    VLLM,
    AUTOMODEL,
    TORCHSPEC,
    SPECFORGE,
    GENERIC,
)
