# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Lines that the images cannot do without; `make docker-check` builds and runs them."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docker"
NAMES = ("Dockerfile", "Dockerfile.cpu", "Dockerfile.standin")


def lines(name: str) -> list[str]:
    """The instructions of a Dockerfile, continued lines joined and comments left out."""
    text = (FOLDER / name).read_text(encoding="utf-8")
    text = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    joined = re.sub(r"\\\n\s*", "", text)
    return [line for line in joined.splitlines() if line.strip()]


def one(name: str, start: str) -> str:
    """The only instruction that begins so."""
    found = [line for line in lines(name) if line.startswith(start)]
    assert len(found) == 1, found
    return found[0]


def test_base_image_is_nvidias_release_and_can_be_chosen() -> None:
    argument = one("Dockerfile", "ARG BASE_IMAGE=")
    assert re.fullmatch(
        r"ARG BASE_IMAGE=nvcr\.io/nvidia/tensorrt-llm/release:\d+\.\d+\.\d+\w*", argument
    )
    stages = [line for line in lines("Dockerfile") if line.startswith("FROM ")]
    assert stages == ["FROM ${BASE_IMAGE} AS wheel", "FROM ${BASE_IMAGE}"]


def test_the_host_keeps_its_versions() -> None:
    install = next(line for line in lines("Dockerfile") if "pip install" in line)
    assert "pip install --no-deps /tmp/wheels/" in install
    rest = install.split("--no-deps")[1]
    assert "pip install --constraint /tmp/host.txt" in rest


def test_entry_point_and_health_check_are_in_the_image() -> None:
    folder = "/opt/tensorrt_llm_ext/docker"
    assert one("Dockerfile", "ENTRYPOINT") == f'ENTRYPOINT ["{folder}/entrypoint.sh"]'
    check = one("Dockerfile", "HEALTHCHECK")
    assert check.endswith(f'CMD ["python3", "{folder}/health.py"]')
    assert "--start-period" in check
    assert '/health"' in (FOLDER / "health.py").read_text(encoding="utf-8")
    copied = one("Dockerfile", "COPY docker/")
    for script in FOLDER.glob("smoke*"):
        assert f"docker/{script.name} " in copied


def test_the_embedded_image_runs_as_a_user_and_installs_torch_first() -> None:
    assert one("Dockerfile.cpu", "USER") == "USER 1000"
    installs = [line for line in lines("Dockerfile.cpu") if "pip install" in line]
    assert "${TORCH_SPEC}" in installs[0]
    assert "/tmp/wheels/" in installs[1]
    assert one("Dockerfile.cpu", "ENTRYPOINT") == 'ENTRYPOINT ["trtllm-ext"]'


@pytest.mark.parametrize("name", NAMES)
def test_what_is_copied_exists(name: str) -> None:
    for line in lines(name):
        words = line.split()
        if words[0] != "COPY" or words[1].startswith("--from"):
            continue
        for source in words[1:-1]:
            path = ROOT / source.replace("${ERA}", "e1")
            assert path.exists(), f"{name} copies {source}, which does not exist"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.sh")), ids=lambda path: path.name)
def test_scripts_can_be_run_and_stop_at_errors(path: Path) -> None:
    assert os.access(path, os.X_OK)
    text = path.read_text(encoding="utf-8")
    assert text.startswith("#!/usr/bin/env bash\n")
    assert "\nset -euo pipefail\n" in text
