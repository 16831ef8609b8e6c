#!/usr/bin/env bash
# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
#
# Serves a target with an MLA Eagle3 draft on TensorRT-LLM; needs TensorRT-LLM.
#
#   examples/trtllm/serve.sh TARGET DRAFT [GPUS] [MORE OPTIONS OF trtllm-serve ...]
#
# Acceptance per draft position is written to $STATS_DIR (./acceptance), one file per rank.
set -euo pipefail

target=$1 draft=$2 gpus=${3:-1}
shift $(($# < 3 ? $# : 3))
stats=$(realpath -m "${STATS_DIR:-acceptance}")
python=${PYTHON:-python3}

version=$("$python" -c 'import importlib.metadata as m; print(m.version("tensorrt_llm"))')
folder=$("$python" -c 'import os, tensorrt_llm_ext as m; print(os.path.dirname(m.__file__))')
config=$(mktemp --suffix=.yaml)

# The layers to capture are resolved from the draft, which no version of the host does.
"$python" -m tensorrt_llm_ext config "$target" "$draft" --trtllm-version "$version" \
  --gpus "$gpus" --env "TRTLLM_EXT_ACCEPT_STATS_DIR=$stats" --output "$config"

# 1.2 has the older spelling of --config.
option=--config
[[ $version == 1.2.* ]] && option=--extra_llm_api_options
exec trtllm-serve "$target" --backend pytorch "$option" "$config" \
  --custom_module_dirs "$folder/_custom_modules/trtllm_ext_register" "$@"
