# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""`python -m tensorrt_llm_ext` is the command `trtllm-ext`."""

from __future__ import annotations

from tensorrt_llm_ext.cli.main import main

if __name__ == "__main__":
    main()
