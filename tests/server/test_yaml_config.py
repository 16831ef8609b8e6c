# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The three classes of fields of the YAML for trtllm-serve."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import yaml

from tensorrt_llm_ext import LLM
from tensorrt_llm_ext.configs import host_fields
from tensorrt_llm_ext.engine.llm_args import LLMArgs
from tensorrt_llm_ext.errors import ConfigError, ExtError
from tensorrt_llm_ext.server.yaml_config import engine_arguments, read_yaml
from tests.server.running import EXAMPLE

TARGET = str(EXAMPLE / "target")
HONOURED = {
    "max_batch_size": 4,
    "max_seq_len": 256,
    "max_num_tokens": 512,
    "enable_chunked_prefill": True,
    "kv_cache_config": {"enable_block_reuse": False, "tokens_per_block": 16},
    "cuda_graph_config": {"enable_padding": True, "max_batch_size": 4},
    "speculative_config": {
        "decoding_type": "Eagle3",
        "max_draft_len": 2,
        "speculative_model": str(EXAMPLE / "draft"),
    },
}
WITHOUT_EFFECT = {
    "tensor_parallel_size": 8,
    "moe_expert_parallel_size": 8,
    "enable_attention_dp": True,
    "env_overrides": {"TRTLLM_EXT_ACCEPT_STATS_DIR": "/tmp"},
    "moe_config": {"backend": "TRTLLM"},
    "attn_backend": "TRTLLM",
    "disable_overlap_scheduler": True,
    "print_iter_log": True,
    "stream_interval": 4,
}
REFUSED = {
    "max_beam_width": 4,
    "enable_lora": True,
    "kv_cache_compression_config": {"a": 1},
    "guided_decoding": "xgrammar",
    "max_bach_size": 4,
    "sparse_attention_config": {"algorithm": "dsa"},
}


def write(folder: Path, values: object) -> Path:
    path = folder / "extra.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


def test_honoured(tmp_path: Path) -> None:
    arguments = engine_arguments(read_yaml(write(tmp_path, HONOURED)))
    args = LLMArgs(model=TARGET, **arguments)
    assert (args.max_batch_size, args.max_seq_len, args.max_num_tokens) == (4, 256, 512)
    assert args.kv_cache_config is not None
    assert args.kv_cache_config.tokens_per_block == 16
    assert args.speculative_config is not None
    assert args.speculative_config.draft_len == 2
    with LLM(model=TARGET, **arguments) as llm:
        assert llm.max_seq_len == 256
        assert llm.generate([1, 2, 3]).acceptance.num_drafted > 0


@pytest.mark.parametrize("key", WITHOUT_EFFECT)
def test_without_effect_is_one_line_in_the_log(
    key: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    host_fields._noted.clear()
    values = read_yaml(write(tmp_path, {key: WITHOUT_EFFECT[key]}))
    with caplog.at_level(logging.INFO):
        LLMArgs(model=TARGET, **engine_arguments(values))
    lines = [r.getMessage() for r in caplog.records if "no effect here" in r.getMessage()]
    assert len(lines) == 1
    assert key in lines[0]


@pytest.mark.parametrize("key", REFUSED)
def test_refused_by_name(key: str, tmp_path: Path) -> None:
    values = read_yaml(write(tmp_path, {key: REFUSED[key]}))
    with pytest.raises(ExtError, match=key):
        LLMArgs(model=TARGET, **engine_arguments(values))


@pytest.mark.parametrize("text", ["- a\n- b\n", "a: [", "1: 2\n"])
def test_no_mapping_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "extra.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"extra\.yaml"):
        read_yaml(path)


def test_an_empty_file_sets_nothing(tmp_path: Path) -> None:
    path = tmp_path / "extra.yaml"
    path.touch()
    assert read_yaml(path) == {}
