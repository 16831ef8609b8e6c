#!/usr/bin/env bash
# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
#
# Serves examples/tiny_kimi with this container's TensorRT-LLM, with and without its draft, and
# prints a report to paste. One GPU, a few minutes. See docker/README.md.
#
#   docker run --rm --gpus all --ipc=host trtllm-ext /opt/tensorrt_llm_ext/docker/smoke.sh
#   docker/smoke.sh --help
set -euo pipefail

# OpenMP threads that spin while they wait make busy cores many times slower.
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
exec python3 "$(dirname "${BASH_SOURCE[0]}")/smoke.py" "$@"
