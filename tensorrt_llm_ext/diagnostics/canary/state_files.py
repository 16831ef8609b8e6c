# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Files of teacher states; they live in `engine.teacher_files`, which quantization uses as well."""

from tensorrt_llm_ext.engine.teacher_files import FROM_TEXT, load_states, save_states

__all__ = ["FROM_TEXT", "load_states", "save_states"]
