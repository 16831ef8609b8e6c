#!/usr/bin/env bash
# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
#
# Lints the Dockerfiles, builds them with buildah on stand-in images, and runs the smoke test in the
# container of each era. `make docker-check` calls it; it needs root, no daemon, and 15 minutes.
#
#   BUILDAH       the command with its global options      buildah
#   BUILD_ARGS    more arguments of each build, e.g. -v for certificates, --build-arg PIP_ARGS=...
#   PYTHON_IMAGE  below the stand-ins                      python:3.12-slim, or made by standin.sh
#   ERAS          of the host doubles                      e1 e2 e3
#   SMOKE_ARGS    options of the smoke test                --problems 24
#   REPORTS       folder for the reports                   none
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

read -r -a buildah <<<"${BUILDAH:-buildah}"
read -r -a build_args <<<"${BUILD_ARGS:-}"
read -r -a smoke_args <<<"${SMOKE_ARGS:---problems 24}"
read -r -a eras <<<"${ERAS:-e1 e2 e3}"
# What 1.2 pins.
declare -A pins=([e1]="transformers==4.57.1 numpy==1.26.4")

log=$(mktemp)
trap 'rm -f "$log"' EXIT

say() { echo "== $*"; }

build() {
  local file=$1 name=$2
  shift 2
  "${buildah[@]}" build --layers --isolation chroot --format docker \
    "${build_args[@]}" "$@" --file "$file" --tag "$name" . >"$log" 2>&1 ||
    { tail -n 30 "$log" >&2; return 1; }
}

# run_in IMAGE COMMAND...: as the image's user, without its entry point.
run_in() {
  local container status=0
  container=$("${buildah[@]}" from "$1")
  shift
  "${buildah[@]}" run --isolation chroot "$container" -- "$@" || status=$?
  last_container=$container
  return "$status"
}

python_image() {
  if [[ -n ${PYTHON_IMAGE:-} ]]; then
    echo "$PYTHON_IMAGE"
  elif "${buildah[@]}" pull --quiet docker.io/library/python:3.12-slim >/dev/null 2>&1; then
    echo docker.io/library/python:3.12-slim
  elif "${buildah[@]}" inspect --type image localhost/trtllm-ext-python:slim >/dev/null 2>&1; then
    echo localhost/trtllm-ext-python:slim
  else
    docker/standin.sh
  fi
}

say "hadolint"
hadolint docker/Dockerfile docker/Dockerfile.cpu docker/Dockerfile.standin

python_image=$(python_image)
say "Dockerfile.cpu on $python_image"
build docker/Dockerfile.cpu localhost/trtllm-ext-cpu --build-arg BASE_IMAGE="$python_image"
examples=/opt/tensorrt_llm_ext/examples/tiny_kimi
run_in localhost/trtllm-ext-cpu trtllm-ext generate --model "$examples/target" \
  --draft "$examples/draft" --pairs 1 \
  --prompt $'Question: Tom has 12 pens. He buys 7 more pens. How many pens does Tom have now?\nAnswer:'
"${buildah[@]}" rm "$last_container" >/dev/null
say "serve in that image"
run_in localhost/trtllm-ext-cpu python3 - "$examples" <<'EOF'
import json
import re
import subprocess
import sys
import urllib.request

command = ["trtllm-ext", "serve", f"{sys.argv[1]}/target", "--draft", f"{sys.argv[1]}/draft"]
command += ["--host", "0.0.0.0", "--port", "0"]
with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
    try:
        line = next(line for line in server.stderr if line.startswith("Serving on "))
        url = f"http://127.0.0.1:{re.search(r':([0-9]+)$', line.strip())[1]}"
        prompt = "Question: Tom has 12 pens. He buys 7 more pens. How many pens does Tom have now?"
        body = {"prompt": f"{prompt}\nAnswer:", "max_tokens": 40, "temperature": 0}
        body["return_spec_stats"] = True
        request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode())
        request.add_header("content-type", "application/json")
        answer = json.load(urllib.request.urlopen(request))
        print(answer["choices"][0]["text"], answer["spec_stats"]["acceptance_length"])
        assert "19" in answer["choices"][0]["text"]
    finally:
        server.terminate()
EOF
"${buildah[@]}" rm "$last_container" >/dev/null

failed=()
for era in "${eras[@]}"; do
  say "Dockerfile on the stand-in of $era"
  build docker/Dockerfile.standin "localhost/trtllm-ext-standin:$era" \
    --build-arg BASE_IMAGE="$python_image" --build-arg ERA="$era" \
    --build-arg HOST_PINS="${pins[$era]:-transformers>=4.57}"
  build docker/Dockerfile "localhost/trtllm-ext:$era" \
    --build-arg BASE_IMAGE="localhost/trtllm-ext-standin:$era"
  say "smoke test on $era"
  run_in "localhost/trtllm-ext:$era" /opt/tensorrt_llm_ext/docker/smoke.sh \
    --out /tmp/smoke "${smoke_args[@]}" || failed+=("$era")
  if [[ -n ${REPORTS:-} ]]; then
    mkdir -p "$REPORTS/$era"
    cp -r "$("${buildah[@]}" mount "$last_container")"/tmp/smoke/. "$REPORTS/$era/"
  fi
  "${buildah[@]}" rm "$last_container" >/dev/null
done

if ((${#failed[@]})); then
  say "failed: ${failed[*]}"
  exit 1
fi
say "all passed"
