# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""In an environment with TensorRT-LLM: it is what was recorded, and the draft registers in it."""

from __future__ import annotations

from tensorrt_llm_ext.trtllm.host import host
from tensorrt_llm_ext.trtllm.modeling import draft_class
from tensorrt_llm_ext.trtllm.plugin import register
from tensorrt_llm_ext.trtllm.surface import Level, judge_host


def test_no_difference_that_breaks() -> None:
    report = judge_host()
    assert not report.missing
    errors = [d for d in report.differences if d.level is Level.ERROR]
    assert not errors, errors


def test_registers_and_derives() -> None:
    register()
    register()
    assert issubclass(draft_class(), host().symbol("Eagle3ForCausalLM"))
