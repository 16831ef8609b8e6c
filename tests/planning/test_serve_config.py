# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tensorrt_llm_ext.configs.quant import QuantConfig
from tensorrt_llm_ext.errors import ConfigError
from tensorrt_llm_ext.planning import serve_config
from tensorrt_llm_ext.planning.serve_config import (
    ServeOptions,
    ServePair,
    ServePlan,
    layers_to_capture,
    plan_serving,
)
from tensorrt_llm_ext.planning.serve_keys import HOST_KEYS, has_key, nested, render_yaml
from tests.planning.kimi_pairs import (
    FP8_KV,
    KIMI,
    NVFP4,
    draft,
    mla,
    pair,
    target,
    without_yarn,
)

ERAS = ("1.2", "1.3", "1.4")
# Fields that the host's classes were read to have, in every era unless named otherwise.
RECORDED = {
    "EagleDecodingConfig": {"decoding_type", "eagle3_layers_to_capture"},
    "DecodingBaseConfig": {
        "max_draft_len",
        "speculative_model",
        "allow_advanced_sampling",
        "draft_len_schedule",
    },
    "KvCacheConfig": {"dtype", "free_gpu_memory_fraction", "enable_block_reuse"},
    "CudaGraphConfig": {"batch_sizes", "enable_padding", "max_batch_size"},
    "BaseLlmArgs": {
        "tensor_parallel_size",
        "moe_expert_parallel_size",
        "enable_attention_dp",
        "max_batch_size",
        "max_num_tokens",
        "max_seq_len",
        "enable_chunked_prefill",
        "guided_decoding_backend",
        "env_overrides",
    },
    "TorchLlmArgs": {"enable_iter_perf_stats"},
}


def plan(serve_pair: ServePair | None = None, **options: Any) -> ServePlan:
    values: dict[str, Any] = {"era": "1.3", "gpus": 8, "max_seq_len": 4000}
    return plan_serving(serve_pair or pair(), ServeOptions(**{**values, **options}))


def warned(result: ServePlan, *parts: str) -> bool:
    return any(all(part in warning for part in parts) for warning in result.warnings)


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("layout", ["tp", "adp"])
def test_yaml_says_what_values_say(era: str, layout: str) -> None:
    result = plan(
        era=era,
        layout=layout,
        enable_chunked_prefill=True,
        guided_decoding=True,
        draft_len_schedule={32: 1, 1: 3},
        env={"NCCL_DEBUG": "INFO", "ZERO": "0"},
    )
    values = yaml.safe_load(result.yaml)
    assert values == result.values
    assert values["speculative_config"] == {
        "decoding_type": "Eagle",
        "max_draft_len": 3,
        "speculative_model_dir": "models/draft",
        "eagle3_layers_to_capture": [1, 29, 57],
        **({} if era == "1.4" else {"allow_advanced_sampling": True}),
        **({} if era == "1.2" else {"draft_len_schedule": {1: 3, 32: 1}}),
    }
    assert values["tensor_parallel_size"] == 8
    assert values["moe_expert_parallel_size"] == (8 if layout == "adp" else 1)
    assert values["enable_attention_dp"] is (layout == "adp")
    assert values["kv_cache_config"] == {
        "dtype": "auto",
        "free_gpu_memory_fraction": 0.8,
        "enable_block_reuse": True,
    }
    assert values["cuda_graph_config"]["batch_sizes"] == [1, 2, 4, *range(8, 65, 8)]
    assert values["cuda_graph_config"]["enable_padding"] is True
    assert (values["max_batch_size"], values["max_num_tokens"]) == (64, 8192)
    assert values["max_seq_len"] == 4000
    assert values["enable_chunked_prefill"] is True
    assert values["guided_decoding_backend"] == "xgrammar"
    assert values["enable_iter_perf_stats"] is True
    assert values["env_overrides"] == {"NCCL_DEBUG": "INFO", "ZERO": "0"}


def test_only_what_was_asked_for_is_written() -> None:
    values = plan(pair(target=target(moe=None)), max_seq_len=None, advanced_sampling=False).values
    absent = {"max_seq_len", "enable_chunked_prefill", "guided_decoding_backend", "env_overrides"}
    assert not {*absent, "moe_expert_parallel_size"} & set(values)
    assert "allow_advanced_sampling" not in values["speculative_config"]
    assert "draft_len_schedule" not in values["speculative_config"]


def test_every_key_was_read_in_the_host() -> None:
    for path, key in HOST_KEYS.items():
        _, kind, name, *_ = key.evidence.split(",")[0].split(".")
        assert name in RECORDED[kind], path
        assert path.split(".")[-1] in (name, "speculative_model_dir")
        assert set(key.eras) <= set(ERAS)
    with pytest.raises(ConfigError, match="not in the table"):
        has_key("kv_cache_config.dytpe", "1.3")


@pytest.mark.parametrize(
    ("boundaries", "ids"),
    [((2, 30, 58), [1, 29, 57]), ((1, 31, 61), [0, 30, 60]), ((58,), [57])],
)
def test_boundaries_become_the_hosts_ids(boundaries: tuple[int, ...], ids: list[int]) -> None:
    config = draft(boundaries=boundaries, boundaries_evidence="given by the user")
    result = plan(pair(draft=config))
    assert result.values["speculative_config"]["eagle3_layers_to_capture"] == ids
    assert f"boundaries {list(boundaries)}" in result.yaml
    assert "Evidence: given by the user." in result.yaml.replace("\n  # ", " ")


@pytest.mark.parametrize(
    ("boundaries", "message"), [((0, 30, 58), "no id says this"), ((2, 30, 62), "has 61 layers")]
)
def test_states_that_the_host_cannot_capture(boundaries: tuple[int, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        layers_to_capture(target(), draft(boundaries=boundaries))
    assert error.value.check == "V13"


def test_arguments_of_the_python_api() -> None:
    assert plan(era="1.4").speculative_arguments == {
        "max_draft_len": 3,
        "speculative_model_dir": "models/draft",
        "eagle3_layers_to_capture": [1, 29, 57],
    }


def test_launch_line_per_era() -> None:
    for era, option in (
        ("1.2", "--extra_llm_api_options"),
        ("1.3", "--config"),
        ("1.4", "--config"),
    ):
        result = plan(pair(target_ref="/models/it's $HOME"), era=era, config_file="my config.yaml")
        words = shlex.split(result.launch)
        assert words[:6] == [
            "trtllm-serve",
            "/models/it's $HOME",
            "--backend",
            "pytorch",
            option,
            "my config.yaml",
        ]
        assert words[6] == "--custom_module_dirs"
        assert result.launch.endswith('/_custom_modules/trtllm_ext_register"')
        assert f"#   {result.launch}\n" in result.yaml


def test_a_missing_module_folder_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_config, "has_module_dir", lambda: False)
    assert "this copy of the package lacks" in plan().yaml.replace("\n# ", " ")
    monkeypatch.setattr(serve_config, "has_module_dir", lambda: True)
    assert "this copy of the package lacks" not in plan().yaml.replace("\n# ", " ")


def test_parsers_and_tokenizer_are_comments() -> None:
    text = plan(pair(target=target(architecture=KIMI))).yaml.replace("\n# ", " ")
    assert "--reasoning_parser kimi_k25 --tool_parser kimi_k2" in text
    assert "--trust_remote_code" in text
    assert "--reasoning_parser kimi_k2 --tool_parser kimi_k2" in plan().yaml.replace("\n# ", " ")
    deepseek = plan(pair(target=target(vocab_size=129280))).yaml
    assert "--reasoning_parser deepseek-r1" in deepseek
    assert "kimi" not in deepseek


def test_warnings_are_comments_of_the_yaml() -> None:
    result = plan(layout="adp", disaggregated=True, enable_chunked_prefill=True)
    text = result.yaml.replace("\n#   ", " ")
    assert len(result.warnings) >= 3
    for warning in result.warnings:
        assert f"# - {warning}\n" in text


# One hazard per row: what asks for it, a way of serving without it, and what the warning says.
HAZARDS: list[tuple[dict[str, Any], dict[str, Any], tuple[str, ...]]] = [
    ({"enable_chunked_prefill": True}, {}, ("enable_chunked_prefill with Eagle3",)),
    (
        {"enable_chunked_prefill": True, "kv_dtype": "fp8"},
        {"enable_chunked_prefill": True},
        ("#14825",),
    ),
    (
        {"guided_decoding": True, "draft_len_schedule": {8: 3}},
        {"guided_decoding": True, "draft_len_schedule": {8: 3, 64: 1}},
        ("#15022",),
    ),
    (
        {"guided_decoding": True, "draft_len_schedule": {8: 3, 16: 0, 64: 0}},
        {"draft_len_schedule": {8: 3, 16: 0, 64: 0}},
        ("#15022",),
    ),
    ({"disaggregated": True}, {"disaggregated": True, "era": "1.2"}, ("#17371",)),
    ({"layout": "adp"}, {}, ("Attention-DP", "measure acceptance")),
    ({"layout": "adp", "gpus": 1}, {"layout": "adp"}, ("changes nothing",)),
    ({"gpus": 6}, {"gpus": 4}, ("target's 64 attention heads", "6 GPUs")),
    ({"gpus": 128}, {"gpus": 64}, ("draft's 64 attention heads", "128 GPUs")),
    (
        {"gpus": 6},
        {"gpus": 6, "layout": "adp"},
        ("An expert's 2048 columns", "6 GPUs"),
    ),
    (
        {"gpus": 5, "layout": "adp"},
        {"gpus": 6, "layout": "adp"},
        ("384 experts", "5 GPUs"),
    ),
    ({"max_batch_size": 256}, {"max_batch_size": 128}, ("256", "draft_len_schedule")),
    (
        {"max_batch_size": 256},
        {"max_batch_size": 256, "draft_len_schedule": {32: 3}},
        ("no gain",),
    ),
    (
        {"era": "1.2", "draft_len_schedule": {1: 3}},
        {"draft_len_schedule": {1: 3}},
        ("left out",),
    ),
    (
        {"draft_len_schedule": {8: 3}},
        {"era": "1.4", "draft_len_schedule": {8: 3}},
        ("Early 1.3.0rc", "key 1"),
    ),
    ({"kv_dtype": "fp8"}, {"kv_dtype": "bf16"}, ("FP8 KV", "forces the draft's")),
    ({"kv_dtype": "fp8", "era": "1.2"}, {"kv_dtype": "fp8"}, ("Hopper", "1.2.x", "FP8")),
    (
        {"max_num_tokens": 128},
        {"max_num_tokens": 256, "max_batch_size": 64},
        ("does not fit into one pass",),
    ),
    ({"max_seq_len": 10000}, {"max_seq_len": 8192}, ("10000", "without chunked prefill")),
    (
        {"max_seq_len": 262144},
        {"max_seq_len": 262141},
        ("max_position_embeddings is 262144", "need 262147"),
    ),
    ({"max_seq_len": 5000}, {"max_seq_len": 4096}, ("decay towards 5000",)),
    (
        {"env": {"TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS": "2"}},
        {"env": {"OTHER": "2"}},
        ("not real",),
    ),
]


@pytest.mark.parametrize(("with_it", "without", "parts"), HAZARDS)
def test_hazards(with_it: dict[str, Any], without: dict[str, Any], parts: tuple[str, ...]) -> None:
    assert warned(plan(**with_it), *parts)
    assert not warned(plan(**without), *parts)


def test_hazards_of_drafts() -> None:
    unscaled = pair(draft=draft(mla=without_yarn(mla())))
    assert warned(plan(unscaled, max_seq_len=5000), "acceptance will collapse", "4096")
    assert not warned(plan(unscaled), "acceptance will collapse")
    deep = pair(draft=draft(num_layers=4))
    assert warned(plan(deep), "4 layers", "Raise max_draft_len to 4")
    assert not warned(plan(deep, max_draft_len=4), "Raise max_draft_len")
    assert not warned(plan(deep, era="1.4"), "Raise max_draft_len")
    fp8 = pair(draft_quant=replace(NVFP4, kv_cache_algo="FP8"))
    assert warned(plan(fp8), "declares FP8 KV", "replaces")


def test_hosts_that_cannot_serve_are_said_first() -> None:
    pruned = plan(pair(draft=draft(draft_vocab_size=32000)))
    assert not pruned.verdict.can_serve
    assert "The stock host 1.3 cannot serve this pair (from source, not run)" in pruned.warnings[0]
    assert "run on the host doubles, not on TensorRT-LLM" in pruned.warnings[0]
    assert "d2t" in pruned.warnings[1]
    wrapped = pair(target=target(architecture=KIMI))
    never = plan(wrapped, era="1.2")
    assert not never.verdict.with_extension
    assert "Not even this package's extension would" in never.warnings[0]
    assert "Unknown architecture" in never.warnings[1]
    assert warned(plan(wrapped, era="1.4"), "1.4, take care", "text only")
    assert plan().verdict.can_serve
    assert not warned(plan(), "cannot serve")


def test_kv_dtypes() -> None:
    fp8_target = pair(target_quant=FP8_KV)
    asked = {
        ("auto", False): ("auto", "bf16"),
        ("fp8", False): ("fp8", "fp8"),
        ("bf16", False): ("auto", "bf16"),
        ("auto", True): ("auto", "fp8"),
        ("fp8", True): ("fp8", "fp8"),
    }
    for (word, is_fp8), (written, effective) in asked.items():
        result = plan(fp8_target if is_fp8 else pair(), kv_dtype=word)
        assert result.values["kv_cache_config"]["dtype"] == written
        assert result.kv_dtype == effective
        # 1.3 reserves max_draft_len layers: 61 + 3 rows of 576 values.
        size = 64 * 576 * (1 if effective == "fp8" else 2)
        assert f"{size} bytes per token with the draft" in result.yaml.replace("\n  # ", " ")
    assert f"{62 * 1152} bytes per token with the draft" in plan(era="1.4").yaml
    with pytest.raises(ConfigError, match="refuses to override a checkpoint"):
        plan(fp8_target, kv_dtype="bf16")
    nvfp4 = pair(target_quant=QuantConfig(method="modelopt", kv_cache_algo="NVFP4"))
    with pytest.raises(ConfigError, match="no version has for dense MLA"):
        plan(nvfp4)


def test_sizes() -> None:
    wide = ServeOptions(era="1.3", gpus=8, max_batch_size=4000, draft_len_schedule={300: 3, 9: 3})
    assert wide.num_tokens == 16000
    assert set(wide.graph_batch_sizes) == {
        *(1, 2, 4, 9, 300, 256, 512, 1024, 2048, 4000),
        *range(8, 129, 8),
    }
    assert list(wide.graph_batch_sizes) == sorted(wide.graph_batch_sizes)
    small = ServeOptions(era="1.3", gpus=8, max_batch_size=3)
    assert small.graph_batch_sizes == (1, 2, 3)
    assert ServeOptions(era="1.3", gpus=1, max_batch_size=1).graph_batch_sizes == (1,)
    assert plan(max_num_tokens=16384).values["max_num_tokens"] == 16384
    assert "672 MiB" in plan(max_num_tokens=16384).yaml
    assert plan(expert_parallel=4).values["moe_expert_parallel_size"] == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"era": "1.1"}, "none of 1.2"),
        ({"gpus": 0}, "gpus must be"),
        ({"layout": "dp"}, "layout is 'dp', expected one of tp, adp"),
        ({"kv_dtype": "nvfp4"}, "expected one of auto, fp8, bf16"),
        ({"max_draft_len": 0}, "max_draft_len"),
        ({"max_draft_len": 9}, "max_draft_len"),
        ({"max_batch_size": 0}, "max_batch_size"),
        ({"free_gpu_memory_fraction": 1.5}, "free_gpu_memory_fraction"),
        ({"free_gpu_memory_fraction": float("nan")}, "free_gpu_memory_fraction"),
        ({"expert_parallel": 3}, "must divide the 8 GPUs"),
        ({"draft_len_schedule": {8: 2}}, "maps its smallest size 8 to 2"),
        ({"draft_len_schedule": {8: 3, 9: 4}}, "draft_len_schedule value"),
        ({"draft_len_schedule": {0: 3}}, "draft_len_schedule key"),
        ({"env": {"a b": "1"}}, "no environment variable"),
        ({"env": {"A": "1\n"}}, "no environment variable"),
        ({"config_file": "a\nb"}, "printable"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan(**options)


@pytest.mark.parametrize("ref", ["", "-rf", "a\nb", "a\x00", "\ud800"])
def test_bad_names(ref: str) -> None:
    with pytest.raises(ConfigError, match="printable"):
        pair(draft_ref=ref)


@given(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(
        lambda text: text.isprintable() and not text.startswith("-")
    )
)
def test_any_printable_name_survives_yaml_and_shell(name: str) -> None:
    result = plan(pair(target_ref=name, draft_ref=name))
    assert yaml.safe_load(result.yaml) == result.values
    assert result.values["speculative_config"]["speculative_model_dir"] == name
    assert shlex.split(result.launch)[1] == name


def test_as_plain_data() -> None:
    result = plan()
    plain = json.loads(json.dumps(result.to_dict()))
    assert plain["values"] == result.values
    assert plain["yaml"] == result.yaml
    assert plain["host"]["era"] == "1.3"


def test_rendering_of_parts() -> None:
    values = {"max_batch_size": 4, "kv_cache_config.dtype": "fp8", "enable_attention_dp": False}
    text = render_yaml(values, {"max_batch_size": "Four."}, ["Title", "$ a  b", ""])
    assert text == (
        "# Title\n#   a  b\n\nenable_attention_dp: false\n\nkv_cache_config:\n  dtype: fp8\n\n"
        "# Four.\nmax_batch_size: 4\n"
    )
    assert yaml.safe_load(text) == nested(values)
    assert list(nested(values)) == ["enable_attention_dp", "kv_cache_config", "max_batch_size"]
