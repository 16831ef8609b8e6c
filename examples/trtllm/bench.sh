#!/usr/bin/env bash
# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
#
# Throughput of a target with and without an MLA Eagle3 draft on TensorRT-LLM; needs TensorRT-LLM.
#
#   examples/trtllm/bench.sh NAME TARGET DRAFT DATASET [GPUS]
#
# NAME is the target's name on the hub, DATASET a file as trtllm-bench reads it. Take prompts of your
# own work: random tokens say nothing about acceptance.
set -euo pipefail

name=$1 target=$2 draft=$3 dataset=$4 gpus=${5:-1}
python=${PYTHON:-python3}

version=$("$python" -c 'import importlib.metadata as m; print(m.version("tensorrt_llm"))')
folder=$("$python" -c 'import os, tensorrt_llm_ext as m; print(os.path.dirname(m.__file__))')
work=$(mktemp -d)

"$python" -m tensorrt_llm_ext config "$target" "$draft" --trtllm-version "$version" \
  --gpus "$gpus" --output "$work/draft.yaml"
# The same settings without the draft.
"$python" - "$work" <<'EOF'
import pathlib, sys, yaml

work = pathlib.Path(sys.argv[1])
settings = yaml.safe_load((work / "draft.yaml").read_text())
del settings["speculative_config"]
(work / "plain.yaml").write_text(yaml.safe_dump(settings))
EOF

for kind in plain draft; do
  echo "== $kind"
  trtllm-bench --model "$name" --model_path "$target" throughput --backend pytorch \
    --dataset "$dataset" --extra_llm_api_options "$work/$kind.yaml" \
    --custom_module_dirs "$folder/_custom_modules/trtllm_ext_register"
done
