# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""`vllm serve` with what vllm_cpu_generate.py needs to run 0.32 on a CPU; takes its arguments."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

if __name__ == "__main__":
    from vllm_cpu_generate import patch_triton_dispatch

    patch_triton_dispatch()
    from vllm.entrypoints.cli.main import main

    sys.argv = ["vllm", "serve", *sys.argv[1:]]
    main()
