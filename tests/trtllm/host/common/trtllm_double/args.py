# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Settings: of a model, of speculation, of a server."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, PrivateAttr, model_validator

import trtllm_double
from trtllm_double.basics import Mapping, QuantAlgo, QuantConfig
from trtllm_double.recorded import adopt

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}
Strict = ConfigDict(extra="forbid", arbitrary_types_allowed=True)


class HFConfig:
    """A config.json by attribute, as transformers gives it."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.__dict__.update(values)

    def to_dict(self) -> dict[str, Any]:
        return dict(self.__dict__)


def load_config(folder: str, trust_remote_code: bool) -> HFConfig:
    """Reads a folder's config through transformers' table of model types.

    `kimi_k2` is in it for the newest era only, unless somebody registers it.
    """
    from transformers import AutoConfig, DeepseekV3Config
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if trtllm_double.ERA == "E3" and "kimi_k2" not in CONFIG_MAPPING:
        AutoConfig.register(
            "kimi_k2", type("KimiK2", (DeepseekV3Config,), {"model_type": "kimi_k2"})
        )
    values = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    kind = values.get("model_type")
    has_code = trust_remote_code and "auto_map" in values
    if kind not in CONFIG_MAPPING and kind != "kimi_k25" and not has_code:
        raise ValueError(
            f"The checkpoint you are trying to load has model type {kind!r} but Transformers does "
            "not recognize this architecture."
        )
    return HFConfig(values)


@dataclass
class ModelConfig:
    """Settings of one model; frozen but for four attributes."""

    pretrained_config: Any = None
    mapping: Mapping = field(default_factory=Mapping)
    quant_config: QuantConfig = field(default_factory=QuantConfig)
    quant_config_dict: dict[str, QuantConfig] | None = None
    skip_create_weights_in_init: bool = False
    spec_config: Any = None
    is_generation: bool = True
    max_num_tokens: int = 8192
    max_seq_len: int | None = None
    moe_max_num_tokens: int | None = None
    attn_backend: str = "TRTLLM"
    moe_backend: str = "CUTLASS"
    lm_head_gather_output: bool = True
    extra_attrs: dict[str, Any] = field(default_factory=dict, init=False)
    _frozen: bool = field(default=False, init=False)

    def __setattr__(self, key: str, value: Any) -> None:
        free = ("_frozen", "extra_attrs", "pretrained_config", "quant_config")
        if getattr(self, "_frozen", False) and key not in free:
            raise AttributeError(f"cannot set {key}: the ModelConfig is frozen")
        object.__setattr__(self, key, value)

    @property
    def torch_dtype(self) -> torch.dtype:
        name = getattr(self.pretrained_config, "torch_dtype", "bfloat16")
        return name if isinstance(name, torch.dtype) else DTYPES[name]

    @property
    def enable_flash_mla(self) -> bool:
        return False

    def get_quant_config(self, name: str | None = None) -> QuantConfig:
        return self.quant_config

    @classmethod
    def from_pretrained(
        cls, checkpoint_dir: str, trust_remote_code: bool = False, **kwargs: Any
    ) -> ModelConfig:
        config = load_config(checkpoint_dir, trust_remote_code)
        dtype = kwargs.pop("dtype", None)
        if dtype not in (None, "auto"):
            config.torch_dtype = dtype
            if isinstance(getattr(config, "text_config", None), dict):
                config.text_config["torch_dtype"] = dtype
        quant, layers = _quant_config(Path(checkpoint_dir))
        made = cls(pretrained_config=config, quant_config=quant, quant_config_dict=layers, **kwargs)
        made._frozen = True
        return made


def _quant_config(folder: Path) -> tuple[QuantConfig, dict[str, QuantConfig] | None]:
    path = folder / "hf_quant_config.json"
    if not path.is_file():
        return QuantConfig(), None
    found = json.loads(path.read_text(encoding="utf-8"))["quantization"]
    kv = found.get("kv_cache_quant_algo")
    kv = QuantAlgo(kv) if kv else None
    common = {"kv_cache_quant_algo": kv, "group_size": found.get("group_size")}
    algo = QuantAlgo(found["quant_algo"]) if found.get("quant_algo") else None
    layers = None
    if algo is QuantAlgo.MIXED_PRECISION:
        layers = {
            name: QuantConfig(quant_algo=QuantAlgo(row["quant_algo"]), **common)
            for name, row in found["quantized_layers"].items()
        }
    made = QuantConfig(quant_algo=algo, exclude_modules=found.get("exclude_modules"), **common)
    return made, layers


class DecodingBaseConfig(BaseModel):
    """What all ways of speculation share."""

    model_config = Strict
    max_draft_len: int | None = Field(default=None, ge=0)
    max_total_draft_tokens: int | None = None
    speculative_model: str | Path | None = Field(
        default=None, validation_alias=AliasChoices("speculative_model", "speculative_model_dir")
    )
    max_concurrency: int | None = None
    draft_len_schedule: dict[int, int] | None = None
    load_format: str | None = None
    acceptance_window: int | None = None
    acceptance_length_threshold: float | None = None
    allow_advanced_sampling: bool = False
    _allow_chain_drafter: bool = PrivateAttr(True)
    _allow_greedy_draft_tokens: bool = PrivateAttr(True)
    _allow_separate_draft_kv_cache: bool = PrivateAttr(True)

    @property
    def tokens_per_gen_step(self) -> int:
        return 1 + (self.max_total_draft_tokens or 0)

    def supports_backend(self, backend: str) -> bool:
        return backend == "pytorch"


class EagleDecodingConfig(DecodingBaseConfig):
    """Eagle3, by its older name."""

    decoding_type: Literal["Eagle"] = "Eagle"
    eagle_choices: list[list[int]] | None = None
    greedy_sampling: bool | None = True
    posterior_threshold: float | None = None
    use_dynamic_tree: bool | None = False
    dynamic_tree_max_topK: int | None = None
    num_eagle_layers: int | None = None
    max_non_leaves_per_layer: int | None = None
    eagle3_one_model: bool | None = True
    eagle3_layers_to_capture: set[int] | None = None
    eagle3_model_arch: Literal["llama3", "mistral_large3"] = "llama3"
    _num_draft_hidden_layers: int | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _check(self) -> EagleDecodingConfig:
        if not self.speculative_model or not self.max_draft_len:
            raise ValueError("speculative_model and max_draft_len > 0 are required")
        object.__setattr__(self, "max_total_draft_tokens", self.max_draft_len)
        if trtllm_double.ERA in ("E1", "E2"):
            object.__setattr__(self, "num_eagle_layers", self.max_draft_len)
        return self

    @cached_property
    def spec_dec_mode(self) -> Any:
        from trtllm_double.spec import SpeculativeDecodingMode

        one = self.eagle3_one_model
        return SpeculativeDecodingMode.EAGLE3_ONE_MODEL if one else SpeculativeDecodingMode.EAGLE3

    @cached_property
    def num_capture_layers(self) -> int:
        return len(self.eagle3_layers_to_capture) if self.eagle3_layers_to_capture else 3


class Eagle3DecodingConfig(EagleDecodingConfig):
    """Eagle3."""

    decoding_type: Literal["Eagle3"] = "Eagle3"


class KvCacheConfig(BaseModel):
    """The paged cache."""

    model_config = Strict
    enable_block_reuse: bool = True
    max_tokens: int | None = None
    free_gpu_memory_fraction: float | None = 0.9
    tokens_per_block: int = 32
    dtype: str = "auto"


class LoadFormat(enum.Enum):
    """Where weights come from."""

    AUTO = 0
    DUMMY = 1


class TorchLlmArgs(BaseModel):
    """The arguments of `LLM` and the keys of the YAML file."""

    model_config = Strict
    model: str | Path
    tokenizer: Any = None
    skip_tokenizer_init: bool = False
    trust_remote_code: bool = False
    dtype: str = "auto"
    tensor_parallel_size: int = 1
    moe_expert_parallel_size: int | None = None
    enable_attention_dp: bool = False
    backend: str = "pytorch"
    attn_backend: str = "TRTLLM"
    moe_config: dict[str, Any] | None = None
    kv_cache_config: KvCacheConfig = Field(default_factory=KvCacheConfig)
    cuda_graph_config: dict[str, Any] | None = None
    speculative_config: Any = None
    guided_decoding_backend: str | None = None
    max_batch_size: int = 8
    max_num_tokens: int = 8192
    max_seq_len: int | None = None
    enable_chunked_prefill: bool = False
    disable_overlap_scheduler: bool = False
    env_overrides: dict[str, str] | None = None
    load_format: Any = LoadFormat.AUTO
    enable_iter_perf_stats: bool = False

    @model_validator(mode="after")
    def _convert(self) -> TorchLlmArgs:
        given = self.speculative_config
        if isinstance(given, dict):
            kinds = {"Eagle": EagleDecodingConfig, "Eagle3": Eagle3DecodingConfig}
            self.speculative_config = kinds[given["decoding_type"]](**given)
        # An object of exactly this type is made anew; private attributes are lost.
        if type(self.speculative_config) is EagleDecodingConfig:
            values = self.speculative_config.model_dump()
            values.pop("decoding_type")
            self.speculative_config = Eagle3DecodingConfig(**values)
        return self


def update_llm_args_with_extra_dict(
    llm_args: dict[str, Any], llm_args_dict: dict[str, Any], extra_llm_api_options: Any = None
) -> dict[str, Any]:
    """Lays the YAML over the command line."""
    return {**llm_args, **llm_args_dict}


for _cls in (
    DecodingBaseConfig,
    EagleDecodingConfig,
    Eagle3DecodingConfig,
    KvCacheConfig,
    TorchLlmArgs,
):
    adopt(_cls, "llmapi.llm_args")
adopt(ModelConfig, "_torch.model_config")
