#!/usr/bin/env bash
# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
#
# Runs a command, and makes TensorRT-LLM import this package first: `--custom_module_dirs DIR` is put
# at the end of each line that serves or benchmarks. Other lines run as they are.
#
#   trtllm-serve [serve] MODEL ...              gets the option
#   trtllm-bench ... throughput|latency ...     gets the option
#   trtllm-llmapi-launch trtllm-serve MODEL ... gets it too, as below mpirun, env, numactl and so on
#   bash -c "trtllm-serve MODEL ..."            does not: one word is not taken apart
set -euo pipefail

# Where health.py finds the port; absent in a container that does not serve.
port_file=${TMPDIR:-/tmp}/trtllm_ext_port

words=("$@")

register_dir() {
  python3 -c 'import importlib.util, os, sys
spec = importlib.util.find_spec("tensorrt_llm_ext")
if spec is None:
    sys.exit("entrypoint.sh: tensorrt_llm_ext is not installed for python3; install its wheel.")
print(os.path.join(spec.submodule_search_locations[0], "_custom_modules", "trtllm_ext_register"))'
}

# Prints the index of the host's command among the words; nothing when there is none.
find_command() {
  local index
  for index in "${!words[@]}"; do
    case "${words[index]##*/}" in
      trtllm-serve | trtllm-bench) echo "$index" && return ;;
      env | mpiexec | mpirun | nice | nsys | numactl | srun | taskset | timeout | trtllm-llmapi-launch) ;;
      *) ((index == 0)) && return ;;
    esac
  done
  return 0
}

# takes_modules COMMAND ARGUMENT...: whether that subcommand has the option.
takes_modules() {
  local command=${1##*/} word
  shift
  if [[ $command == trtllm-serve ]]; then
    case "${1:-}" in
      # Without a model, or another subcommand of one of the versions.
      "" | -* | disaggregated | disaggregated_mpi_worker | embeddings | grpc | mm_embedding_serve | rerank)
        return 1 ;;
    esac
    return 0
  fi
  for word in "$@"; do
    [[ $word == throughput || $word == latency ]] && return 0
  done
  return 1
}

# names_register_dir ARGUMENT...: whether the option with our folder is there already.
names_register_dir() {
  local previous="" word
  for word in "$@"; do
    case "$previous $word" in
      "--custom_module_dirs "*/trtllm_ext_register | "--custom_module_dirs "*/trtllm_ext_register/ | \
        *" --custom_module_dirs="*/trtllm_ext_register | *" --custom_module_dirs="*/trtllm_ext_register/)
        return 0 ;;
    esac
    previous=$word
  done
  return 1
}

# Puts the option at the end, or before a `--`. trtllm-serve takes its first word for a subcommand
# or the model, so an option cannot stand there.
add_register_dir() {
  local directory rewritten=() word is_added=
  directory=$(register_dir)
  for word in "${words[@]}"; do
    if [[ $word == -- && -z $is_added && ${#rewritten[@]} -gt $1 ]]; then
      rewritten+=(--custom_module_dirs "$directory")
      is_added=yes
    fi
    rewritten+=("$word")
  done
  [[ -n $is_added ]] || rewritten+=(--custom_module_dirs "$directory")
  words=("${rewritten[@]}")
}

# note_port ARGUMENT...: leaves the port of a server for health.py.
note_port() {
  local port=8000 previous="" word
  for word in "$@"; do
    [[ $previous == --port ]] && port=$word
    [[ $word == --port=* ]] && port=${word#--port=}
    previous=$word
  done
  echo "$port" >"$port_file"
}

command_at=$(find_command)
if [[ -n $command_at ]] && takes_modules "${words[@]:command_at}"; then
  [[ ${words[command_at]##*/} == trtllm-serve ]] && note_port "${words[@]:command_at}"
  names_register_dir "${words[@]}" || add_register_dir "$command_at"
fi

# What NVIDIA's image would have run first.
base_entrypoint=/opt/nvidia/nvidia_entrypoint.sh
if [[ -x $base_entrypoint ]]; then
  exec "$base_entrypoint" "${words[@]}"
fi
exec "${words[@]}"
