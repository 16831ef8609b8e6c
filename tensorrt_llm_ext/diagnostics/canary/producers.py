# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Teacher states from prompts; see `engine.teacher_capture`, which quantization uses as well."""

from tensorrt_llm_ext.engine.teacher_capture import forward_text, states_from_prompts

__all__ = ["forward_text", "states_from_prompts"]
