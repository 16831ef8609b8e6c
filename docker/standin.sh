#!/usr/bin/env bash
# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
#
# Makes a bare image with Python and pip, for machines that reach Debian's packages but no image
# registry: it stands in for python:3.12-slim below Dockerfile.standin and Dockerfile.cpu.
#
#   docker/standin.sh [NAME]      NAME: localhost/trtllm-ext-python:slim
#
# Needs root, debootstrap and buildah. BUILDAH: the command with its global options.
set -euo pipefail

name=${1:-localhost/trtllm-ext-python:slim}
suite=${DEBIAN_SUITE:-bookworm}
read -r -a buildah <<<"${BUILDAH:-buildah}"

for tool in debootstrap "${buildah[0]}"; do
  if ! command -v "$tool" >/dev/null; then
    echo "standin.sh: $tool was not found. Install the Debian package of that name." >&2
    exit 2
  fi
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

debootstrap --variant=minbase --include=python3,python3-pip,python3-venv,ca-certificates \
  "$suite" "$work/root" >"$work/log" || { tail -n 20 "$work/log" >&2; exit 1; }
rm -rf "$work"/root/var/cache/apt/archives/*.deb "$work"/root/var/lib/apt/lists/*
# The official Python images have no such marker either.
rm -f "$work"/root/usr/lib/python3*/EXTERNALLY-MANAGED

container=$("${buildah[@]}" from scratch)
"${buildah[@]}" add --quiet "$container" "$work/root" / >/dev/null
"${buildah[@]}" config --cmd python3 --env LANG=C.UTF-8 "$container"
"${buildah[@]}" commit --quiet --rm --format docker "$container" "$name" >/dev/null
echo "$name"
