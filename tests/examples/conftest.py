# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Lets tests import the scripts of `examples/tiny_kimi`, which import one another by bare names."""

from __future__ import annotations

import sys
from pathlib import Path

TINY_KIMI = Path(__file__).parents[2] / "examples" / "tiny_kimi"
sys.path.append(str(TINY_KIMI))
