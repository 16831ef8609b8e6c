# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tensorrt_llm_ext import (
    LLM,
    CudaGraphConfig,
    Eagle3DecodingConfig,
    EagleDecodingConfig,
    KvCacheConfig,
    SamplingParams,
)
from tensorrt_llm_ext.engine.llm import LLMArgs
from tensorrt_llm_ext.errors import (
    CheckpointError,
    ConfigError,
    RequestError,
    UnsupportedError,
)
from tests.support.cycling_models import write_cycling_checkpoints
from tests.support.tiny_tokenizers import byte_level_tokenizer

TEXT = "Tom has 3 apples. "
CYCLE = byte_level_tokenizer().encode(TEXT)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_cycling_checkpoints(tmp_path_factory.mktemp("models"), CYCLE)


def test_a_script_for_the_host_runs_by_its_import_line(folders: tuple[Path, Path]) -> None:
    target, draft = folders
    with LLM(
        model=str(target),
        speculative_config=EagleDecodingConfig(max_draft_len=2, speculative_model_dir=str(draft)),
        kv_cache_config=KvCacheConfig(enable_block_reuse=False, free_gpu_memory_fraction=0.5),
        cuda_graph_config=CudaGraphConfig(max_batch_size=4),
        tensor_parallel_size=1,
        attn_backend="TRTLLM",
        disable_overlap_scheduler=True,
        max_batch_size=2,
        device="cpu",
    ) as llm:
        outputs = llm.generate([TEXT, TEXT + "Tom"], SamplingParams(max_tokens=10))
    assert (
        outputs[0].outputs[0].text == "Tom has 3 apples. Tom has"[: len(outputs[0].outputs[0].text)]
    )
    assert outputs[1].outputs[0].text.startswith(" has 3 apples")
    assert outputs[0].acceptance.acceptance_length == 2.0


def test_mappings_are_configs_as_in_the_yaml_of_the_host(folders: tuple[Path, Path]) -> None:
    target, draft = folders
    yaml = {
        "speculative_config": {
            "decoding_type": "Eagle3",
            "max_draft_len": 1,
            "speculative_model": str(draft),
            "eagle3_layers_to_capture": [0, 1, 2],
        },
        "kv_cache_config": {"max_tokens": 256, "tokens_per_block": 16},
        "cuda_graph_config": {"max_batch_size": 2},
    }
    args = LLMArgs(model=target, **yaml)  # type: ignore[arg-type]
    assert isinstance(args.speculative_config, Eagle3DecodingConfig)
    assert isinstance(args.cuda_graph_config, CudaGraphConfig)
    with LLM(target, device="cpu", **yaml) as llm:
        assert llm.generate(TEXT, SamplingParams(max_tokens=6)).acceptance.num_steps > 0
        config = llm._service._core.config
        assert (config.block_size, config.num_blocks, config.max_draft_len) == (16, 16, 1)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"max_batchsize": 1}, ConfigError, "did you mean 'max_batch_size'"),
        ({"kv_cache_cfg": {}}, ConfigError, "did you mean 'kv_cache_config'"),
        ({"tensor_parallel_size": 2}, UnsupportedError, "tensor_parallel_size=2.*one device"),
        ({"enable_attention_dp": True}, UnsupportedError, "enable_attention_dp"),
        ({"max_beam_width": 4}, UnsupportedError, "beam search"),
        ({"load_format": "dummy"}, UnsupportedError, "safetensors"),
        ({"revision": "main"}, UnsupportedError, "folders"),
        ({"backend": "tensorrt"}, UnsupportedError, "embedded"),
        ({"dtype": "int8"}, ConfigError, "dtype is 'int8'"),
        ({"device": "tpu"}, ConfigError, "device"),
        ({"max_batch_size": 0}, ConfigError, "max_batch_size must be at least 1"),
        ({"max_seq_len": 1.5}, ConfigError, "max_seq_len must be an integer"),
        ({"max_seq_len": 100000}, ConfigError, "max_position_embeddings"),
        ({"trust_remote_code": "yes"}, ConfigError, "trust_remote_code"),
        ({"tokenizer_mode": "fast"}, ConfigError, "tokenizer_mode"),
        ({"seed": -1}, ConfigError, "seed"),
        ({"kv_cache_config": 3}, UnsupportedError, "KvCacheConfig"),
        ({"kv_cache_config": {"dtyp": "auto"}}, ConfigError, "did you mean 'dtype'"),
        ({"speculative_config": {"max_draft_len": 3}}, ConfigError, "decoding_type"),
        (
            {"speculative_config": EagleDecodingConfig(max_draft_len=3)},
            ConfigError,
            "draft's folder",
        ),
        ({"max_num_tokens": 2, "max_batch_size": 4}, ConfigError, "max_num_tokens"),
        ({"tokenizer": 5}, ConfigError, "encode"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(
    folders: tuple[Path, Path], arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        LLM(folders[0], **{"device": "cpu", **arguments})


@pytest.mark.parametrize(
    "arguments",
    [
        {"attn_backend": "FLASHINFER"},
        {"moe_config": {"backend": "CUTLASS"}},
        {"disable_overlap_scheduler": False},
        {"print_iter_log": True},
        {"moe_expert_parallel_size": 1},
        {"enable_iter_perf_stats": True},
        {"load_format": "auto"},
        {"backend": "pytorch"},
        {"lora_config": None},
    ],
)
def test_fields_of_the_host_that_change_no_result_are_accepted(
    folders: tuple[Path, Path], arguments: dict[str, Any]
) -> None:
    LLMArgs(model=folders[0], **arguments)


def test_limits_hold(folders: tuple[Path, Path]) -> None:
    with LLM(folders[0], device="cpu", max_input_len=4, max_seq_len=12, dtype="float64") as llm:
        with pytest.raises(RequestError, match="max_input_len"):
            llm.generate([5] * 5)
        output = llm.generate(CYCLE[-4:], SamplingParams(max_tokens=32)).outputs[0]
        assert (output.length, output.finish_reason) == (8, "length")
        assert str(llm._models.dtype) == "torch.float64"


def test_a_model_that_is_no_folder(tmp_path: Path, folders: tuple[Path, Path]) -> None:
    with pytest.raises(CheckpointError, match=r"does not exist.*hub"):
        LLM("moonshotai/Kimi-K2.5")
    with pytest.raises(ConfigError, match="from_loaded"):
        LLM(5)  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match=r"config\.json"):
        LLM(tmp_path)
    (tmp_path / "config.json").write_bytes((folders[0] / "config.json").read_bytes())
    with pytest.raises(CheckpointError, match=r"no tokenizer.*skip_tokenizer_init"):
        LLM(tmp_path)


def test_skip_tokenizer_init_works_with_token_ids(folders: tuple[Path, Path]) -> None:
    with LLM(folders[0], skip_tokenizer_init=True, device="cpu") as llm:
        output = llm.generate(CYCLE, SamplingParams(max_tokens=3)).outputs[0]
        assert output.token_ids == CYCLE[:3]
        assert output.text == ""
        assert llm.tokenizer is None


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    hf_tokenizer = byte_level_tokenizer().hf_tokenizer
    hf_tokenizer.save_pretrained(tmp_path)
    path = tmp_path / "tokenizer.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    number = len(hf_tokenizer)
    extra = {**document["added_tokens"][0], "id": number, "content": "<extra>", "special": True}
    document["added_tokens"].append(extra)
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(CheckpointError, match=f"{number + 1} tokens, the model embeds {number}"):
        LLM(folders[0], tokenizer=tmp_path, device="cpu")
