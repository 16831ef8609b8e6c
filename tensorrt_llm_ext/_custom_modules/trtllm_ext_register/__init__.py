# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""What `trtllm-serve --custom_module_dirs` is pointed at; importing it registers the extension."""

from tensorrt_llm_ext import register

register()
