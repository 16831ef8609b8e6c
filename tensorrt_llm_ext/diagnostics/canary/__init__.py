# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The canary: which setting does a draft agree with its target in?"""

from tensorrt_llm_ext.diagnostics.canary.runner import CanaryOptions, run_canary
from tensorrt_llm_ext.diagnostics.canary.verdict import CanaryReport, Verdict
from tensorrt_llm_ext.engine.teacher_files import load_states, save_states
from tensorrt_llm_ext.engine.teacher_states import TeacherSequence, TeacherStates

__all__ = [
    "CanaryOptions",
    "CanaryReport",
    "TeacherSequence",
    "TeacherStates",
    "Verdict",
    "load_states",
    "run_canary",
    "save_states",
]
