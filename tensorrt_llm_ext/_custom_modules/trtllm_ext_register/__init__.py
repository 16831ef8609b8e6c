# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""What `trtllm-serve --custom_module_dirs` is pointed at: importing it registers.

The host puts the folder above this one on sys.path, so nothing else may lie there.
"""

from tensorrt_llm_ext.trtllm.plugin import register

register()
