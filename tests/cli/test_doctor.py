# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tensorrt_llm_ext.checkpoints.checks import ALL_CHECKS
from tests.support.catalogue import build
from tests.support.header_only import write_header_only
from tests.support.hub_stub import HubStub, serve
from tests.support.tiny_checkpoints import model_config

TINY_KIMI = Path(__file__).parents[2] / "examples" / "tiny_kimi"
TARGET, DRAFT = str(TINY_KIMI / "target"), str(TINY_KIMI / "draft")
EMBEDDING = {"language_model.model.embed_tokens.weight": ("BF16", (163840, 7168))}


@pytest.fixture
def run(run_cli: Any) -> Any:
    """Runs the command; returns exit code, standard output and standard error."""
    return partial(run_cli, "doctor")


@pytest.fixture(scope="module")
def kimi(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A target of public size; only its config matters here."""
    folder = tmp_path_factory.mktemp("kimi")
    return str(write_header_only(folder, model_config("moonshotai/Kimi-K2.5"), EMBEDDING))


def faulty_draft(folder: Path, **changes: Any) -> str:
    """tiny_kimi's draft with other keys in config.json."""
    shutil.copytree(DRAFT, folder)
    path = folder / "config.json"
    config = {**json.loads(path.read_text(encoding="utf-8")), **changes}
    path.write_text(json.dumps(config), encoding="utf-8")
    return str(folder)


def test_a_healthy_pair_passes_and_the_facts_are_shown(run: Any) -> None:
    code, out, err = run(TARGET, DRAFT)
    assert (code, err) == (0, "")
    assert "captures after target layers [2, 4, 6] (0-based)" in out
    assert "boundaries [3, 5, 7]" in out
    assert all(check.check_id in out for check in ALL_CHECKS)
    assert "nothing wrong found" in out
    assert "not run" in out  # the hosts are judged from their sources
    assert "(--deep)" in out
    assert "0 warning(s), 0 error(s)" in out


def test_json_has_every_check_and_the_bytes(run: Any) -> None:
    code, out, _ = run(TARGET, DRAFT, "--json")
    assert code == 0
    report = json.loads(out)
    assert {f["id"] for f in report["findings"]} == {check.check_id for check in ALL_CHECKS}
    assert report["captured"]["boundaries"] == [3, 5, 7]
    # 8 target layers and one of the draft, 512 + 64 values of two bytes each.
    assert report["kv_bytes_per_token"] == {
        "bytes_per_value": 2,
        "without_draft": 8 * 576 * 2,
        "with_draft": 9 * 576 * 2,
    }
    assert report["draft_step_bytes"]["head"] == 896 * 256 * 2
    assert [host["era"] for host in report["hosts"]] == ["1.2", "1.3", "1.4"]
    assert {host["source"] for host in report["hosts"]} == {"from source, not run"}


def test_deep_loads_the_weights(run: Any) -> None:
    code, out, _ = run(TARGET, DRAFT, "--deep", "--json")
    assert code == 0
    loaded = [f for f in json.loads(out)["findings"] if f["id"] == "V30"]
    assert {f["status"] for f in loaded} == {"passed"}


def test_an_error_exits_with_one_and_names_the_check(run: Any, tmp_path: Path) -> None:
    folder = faulty_draft(tmp_path / "draft", fc_norm=False, eagle_config={"fc_norm": False})
    code, out, _ = run(TARGET, folder, "--json")
    assert code == 1
    errors = {f["id"]: f["message"] for f in json.loads(out)["findings"] if f["status"] == "error"}
    assert list(errors) == ["V18"]
    assert "3 fc_norm tensors" in errors["V18"]
    code, out, _ = run(TARGET, folder)
    assert code == 1
    assert "not fit to run" in out


def test_a_config_of_a_host_is_compared(run: Any) -> None:
    code, out, _ = run(TARGET, DRAFT, "--layers-to-capture", "[1,3,4]", "--json")
    assert code == 1
    errors = [f for f in json.loads(out)["findings"] if f["status"] == "error"]
    assert [f["id"] for f in errors] == ["V12"]
    assert run(TARGET, DRAFT, "--layers-to-capture", "2,4,6")[0] == 0


def test_drafted_tokens_need_room_in_the_rotary_table_too(run: Any) -> None:
    assert run(TARGET, DRAFT, "--max-seq-len", "4093", "--max-draft-len", "3")[0] == 0
    code, out, _ = run(TARGET, DRAFT, "--max-seq-len", "4093", "--max-draft-len", "4", "--json")
    assert code == 1
    (error,) = (f for f in json.loads(out)["findings"] if f["status"] == "error")
    assert error["id"] == "V28"
    assert "4093 tokens and 4 drafted ones need 4097" in error["message"]


def test_a_llama_draft_gets_advice_instead_of_a_shape_error(
    run: Any, kimi: str, tmp_path: Path
) -> None:
    folder = build("lightseekorg/kimi-k2.5-eagle3", tmp_path / "draft")
    code, out, _ = run(kimi, str(folder), "--json")
    assert code == 1
    errors = {f["id"]: f["message"] for f in json.loads(out)["findings"] if f["status"] == "error"}
    assert "MHA draft" in errors["V2"]
    assert "built-in Eagle3 path" in errors["V2"]


def test_pickled_weights_are_a_finding(run: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    code, out, _ = run(TARGET, str(tmp_path))
    assert code == 1
    assert "never read" in " ".join(out.split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((TARGET,), "doctor judges a pair"),
        ((), "doctor judges a pair"),
        ((TARGET, "nowhere/at/all"), "nowhere/at/all"),
        ((TARGET, DRAFT, "--layers-to-capture", "one"), "integers with commas"),
    ],
)
def test_bad_usage_exits_with_two(run: Any, arguments: tuple[str, ...], words: str) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1


def test_an_absent_host_is_said(run: Any) -> None:
    code, out, _ = run("--trtllm")
    assert code == 1
    assert "not installed" in out


def test_a_draft_on_the_hub_is_judged_without_a_download(kimi: str, tmp_path: Path) -> None:
    """HF_ENDPOINT is read when huggingface_hub is imported, so this takes a fresh interpreter."""
    pytest.importorskip("huggingface_hub")
    folder = build("lightseekorg/kimi-k2.5-eagle3-mla", tmp_path / "draft")
    stub = HubStub()
    stub.add_folder(folder)
    settings = {"HF_HUB_OFFLINE": "0", "NO_PROXY": "127.0.0.1", "HF_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-m", "tensorrt_llm_ext", "doctor", kimi, "org/name"]
    with serve(stub):
        done = subprocess.run(
            [*command, "--json"],
            env={**os.environ, **settings, "HF_ENDPOINT": stub.endpoint},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["draft"].startswith("org/name@")
    assert report["captured"]["boundaries"] == [2, 30, 58]
    size = sum(path.stat().st_size for path in folder.iterdir())
    assert size > 6e9
    assert sum(request.sent for request in stub.requests) < 8 << 20
