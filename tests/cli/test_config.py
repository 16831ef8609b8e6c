# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.catalogue import build
from tests.support.header_only import write_header_only
from tests.support.tiny_checkpoints import model_config

LIGHTSEEK, NVIDIA = "lightseekorg/kimi-k2.5-eagle3-mla", "nvidia/Kimi-K2.5-Thinking-Eagle3"
HOST = ["--trtllm-version", "1.3", "--gpus", "8", "--max-seq-len", "4000"]
EMBEDDING = {"model.embed_tokens.weight": ("BF16", (163840, 7168))}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Header-only folders of public size; nothing of a target is read but its config."""
    root = tmp_path_factory.mktemp("models")
    wrapped = model_config("moonshotai/Kimi-K2.5")
    text = {**copy.deepcopy(wrapped["text_config"]), "model_type": "kimi_k2"}
    del text["quantization_config"]
    quant = {"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}}
    targets: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "kimi25": (wrapped, {}),
        "kimi2": (text, {}),
        "fp8_kv": (text, {"hf_quant_config.json": quant}),
    }
    found = {
        name: write_header_only(root / name, config, EMBEDDING, extra_json=extra)
        for name, (config, extra) in targets.items()
    }
    found |= {
        "lightseek": build(LIGHTSEEK, root / "lightseek"),
        "nvidia": build(NVIDIA, root / "nv"),
    }
    return {name: str(path) for name, path in found.items()}


@pytest.fixture
def run(run_cli: Any, folders: dict[str, str]) -> Any:
    """Runs the command, names of `folders` replaced; returns exit code and both outputs."""

    def call(*arguments: str) -> tuple[int, str, str]:
        return run_cli("config", *(folders.get(word, word) for word in arguments))

    return call


@pytest.mark.parametrize("draft", ["lightseek", "nvidia"])
@pytest.mark.parametrize("version", ["1.2", "1.3", "1.4"])
def test_both_spellings_of_the_ids_give_the_same_layers(
    run: Any, folders: dict[str, str], draft: str, version: str
) -> None:
    code, out, err = run(
        "kimi2", draft, "--trtllm-version", version, "--gpus", "8", "--max-seq-len", "4000"
    )
    assert code == 0
    values = yaml.safe_load(out)
    speculative = values["speculative_config"]
    assert speculative["eagle3_layers_to_capture"] == [1, 29, 57]
    assert speculative["speculative_model_dir"] == folders[draft]
    assert speculative["max_draft_len"] == 3
    assert values["tensor_parallel_size"] == 8
    assert values["enable_attention_dp"] is False
    assert f"#   trtllm-serve {folders['kimi2']} --backend pytorch" in out
    # Both are stored as layers.0.*, which 1.2 does not load.
    assert ("1.2 cannot serve this pair" in err) == (version == "1.2")
    for line in err.splitlines():
        assert line.startswith("warning: ")
        assert line.removeprefix("warning: ") in out.replace("\n#   ", " ")


def test_options_reach_the_values(run: Any) -> None:
    code, out, _ = run(
        *("kimi2", "lightseek", *HOST, "--layout", "adp", "--max-draft-len", "4"),
        *("--draft-len-schedule", "1:4, 16:2", "--kv-dtype", "fp8", "--max-batch-size", "32"),
        *("--max-num-tokens", "4096", "--free-gpu-memory-fraction", "0.7", "--no-block-reuse"),
        *("--chunked-prefill", "--guided-decoding", "--disaggregated", "--expert-parallel", "4"),
        *("--env", "NCCL_DEBUG=INFO", "--env", "EMPTY="),
    )
    assert code == 0
    values = yaml.safe_load(out)
    assert values["enable_attention_dp"] is True
    assert values["moe_expert_parallel_size"] == 4
    assert values["speculative_config"]["draft_len_schedule"] == {1: 4, 16: 2}
    assert values["speculative_config"]["max_draft_len"] == 4
    assert values["kv_cache_config"] == {
        "dtype": "fp8",
        "free_gpu_memory_fraction": 0.7,
        "enable_block_reuse": False,
    }
    assert values["max_batch_size"] == values["cuda_graph_config"]["batch_sizes"][-1] == 32
    assert (values["max_num_tokens"], values["max_seq_len"]) == (4096, 4000)
    assert values["enable_chunked_prefill"] is True
    assert values["guided_decoding_backend"] == "xgrammar"
    assert values["env_overrides"] == {"NCCL_DEBUG": "INFO", "EMPTY": ""}
    for number in ("#14825", "#15022", "#17371"):
        assert number in out


@pytest.mark.parametrize(
    ("version", "title"), [("1.2.1", "1.2.x"), ("1.3.0rc20", "1.3.0rc"), ("v1.4.0", "1.4.0rc")]
)
def test_full_versions_are_understood(run: Any, version: str, title: str) -> None:
    code, out, _ = run("kimi2", "nvidia", "--trtllm-version", version, "--gpus", "8")
    assert code == 0
    assert out.startswith(f"# TensorRT-LLM {title}, 8 GPUs")


def test_json(run: Any) -> None:
    code, out, err = run("fp8_kv", "nvidia", *HOST, "--json")
    assert code == 0
    plan = json.loads(out)
    assert plan["values"] == yaml.safe_load(plan["yaml"])
    assert plan["kv_dtype"] == "fp8"
    assert plan["launch"].startswith("trtllm-serve ")
    assert plan["warnings"] == [line.removeprefix("warning: ") for line in err.splitlines()]
    host = plan["host"]
    assert (host["era"], host["source"], host["extension"]) == (
        "1.3",
        "from source, not run",
        "run on the host doubles, not on TensorRT-LLM",
    )


def test_output_file(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "my extra.yaml"
    code, out, _ = run("kimi2", "lightseek", *HOST, "--output", str(file))
    assert code == 0
    assert yaml.safe_load(file.read_text())["tensor_parallel_size"] == 8
    assert out.startswith("trtllm-serve ")
    assert f"--config '{file}'" in out
    code, out, err = run("kimi2", "lightseek", *HOST, "--output", str(tmp_path / "no" / "f"))
    assert (code, out) == (2, "")
    assert "cannot be written" in err


def test_a_version_that_cannot_serve_the_pair_exits_with_1(run: Any) -> None:
    code, out, err = run("kimi25", "lightseek", "--trtllm-version", "1.2", "--gpus", "8")
    assert code == 1
    assert yaml.safe_load(out)["tensor_parallel_size"] == 8
    assert "Not even this package's extension would" in err
    code, out, err = run("kimi25", "lightseek", *HOST)
    assert code == 0
    assert "--reasoning_parser kimi_k25" in out
    assert "text only" in err


def test_ids_that_are_not_said_can_be_given(run: Any, tmp_path: Path) -> None:
    draft = str(build(LIGHTSEEK, tmp_path / "draft", without=["eagle_config"]))
    code, out, err = run("kimi2", draft, *HOST)
    assert (code, out) == (2, "")
    assert "does not say which target layers" in err
    code, out, _ = run("kimi2", draft, *HOST, "--boundaries", "5,31,60")
    assert code == 0
    assert yaml.safe_load(out)["speculative_config"]["eagle3_layers_to_capture"] == [4, 30, 59]
    assert "not the host's default" in out


def test_a_quantized_draft_is_judged_by_its_tensors(run: Any, tmp_path: Path) -> None:
    draft = str(build("modelopt/nvfp4-draft", tmp_path / "draft"))
    code, out, _ = run("fp8_kv", draft, *HOST, "--json")
    assert code == 0
    host = json.loads(out)["host"]
    assert host["can_serve"] is False
    assert host["with_extension"] is True
    # Its patterns are canonical names, which are not the host's.
    assert {"nvfp4_draft", "kv_b_not_excluded", "layers_names"} <= set(host["features"])
    assert not {"kv_b_quantized", "quantized_head", "nvfp4_fc"} & set(host["features"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["kimi2", "lightseek", "--gpus", "8"], "--trtllm-version"),
        (["kimi2", "lightseek", "--trtllm-version", "1.1", "--gpus", "8"], "1.1"),
        (["kimi2", "lightseek", *HOST, "--gpus", "0"], "--gpus"),
        (["kimi2", "lightseek", *HOST, "--layout", "pp"], "layout"),
        (["kimi2", "lightseek", *HOST, "--max-draft-len", "9"], "max-draft-len"),
        (["kimi2", "lightseek", *HOST, "--draft-len-schedule", "8"], "BATCH:LENGTH"),
        (["kimi2", "lightseek", *HOST, "--draft-len-schedule", "8:3,8:1"], "BATCH:LENGTH"),
        (["kimi2", "lightseek", *HOST, "--draft-len-schedule", "8:1"], "smallest size 8"),
        (["kimi2", "lightseek", *HOST, "--boundaries", "a"], "--boundaries"),
        (["kimi2", "lightseek", *HOST, "--env", "A"], "NAME=VALUE"),
        (["kimi2", "lightseek", *HOST, "--env", "a b=1"], "no environment variable"),
        (["fp8_kv", "lightseek", *HOST, "--kv-dtype", "bf16"], "refuses to override"),
        (["kimi2", "kimi2", *HOST], "error:"),
        (["kimi2", "/nowhere/at/all", *HOST], "/nowhere/at/all"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    run: Any, arguments: list[str], message: str
) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err
    if err.startswith("error:"):
        assert len(err.strip().splitlines()) == 1


def test_help_loads_neither_torch_nor_transformers() -> None:
    code = (
        "import sys; sys.argv = ['trtllm-ext', 'config', '--help']\n"
        "from tensorrt_llm_ext.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit as stop: assert not stop.code\n"
        "print([m for m in ('torch', 'transformers', 'numpy', 'yaml') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert "--trtllm-version" in done.stdout


def test_gpus_that_cannot_hold_the_pair_are_no_success(run: Any) -> None:
    arguments = ("--trtllm-version", "1.3", "--gpus", "3", "--max-seq-len", "4000")
    code, out, err = run("kimi2", "lightseek", *arguments)
    assert code == 1
    assert "64 attention heads cannot be split over 3 GPUs" in err.splitlines()[0]
    assert yaml.safe_load(out)["tensor_parallel_size"] == 3
