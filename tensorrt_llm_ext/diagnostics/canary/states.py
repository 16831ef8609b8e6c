# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Teacher texts; they live in `engine.teacher_states`, which quantization uses as well."""

from tensorrt_llm_ext.engine.teacher_states import TeacherSequence, TeacherStates

__all__ = ["TeacherSequence", "TeacherStates"]
