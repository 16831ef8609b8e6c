# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Registries, the decoder base classes, DeepSeek-V3, its loader, and the Kimi wrapper."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

import trtllm_double
from trtllm_double.args import HFConfig, ModelConfig
from trtllm_double.attention import MLA
from trtllm_double.basics import Mapping, all_reduce, requantize
from trtllm_double.linear import (
    Embedding,
    GatedMLP,
    Linear,
    LMHead,
    LogitsProcessor,
    RMSNorm,
    TensorParallelMode,
    parameter,
)
from trtllm_double.rope import PositionalEmbeddingParams, PositionEmbeddingType, RopeParams

MODEL_CLASS_MAPPING: dict[str, type] = {}
MODEL_CLASS_MAPPER_MAPPING: dict[str, type] = {}
DRAFT_MODEL_BUILDER_MAPPING: dict[Any, Callable[..., nn.Module]] = {}


def _is_builtin(cls: Any) -> bool:
    return cls.__module__.startswith("tensorrt_llm.")


def register_auto_model(name: str) -> Callable[[type], type]:
    """E1: the last one wins. E3: one from outside always does."""

    def decorator(cls: type) -> type:
        known = MODEL_CLASS_MAPPING.get(name)
        if trtllm_double.ERA == "E3" and known and _is_builtin(cls) and not _is_builtin(known):
            return cls
        MODEL_CLASS_MAPPING[name] = cls
        return cls

    return decorator


def get_registered_model_class(model_arch: str) -> type | None:
    """E3's look-up."""
    return MODEL_CLASS_MAPPING.get(model_arch)


def register_mapper(format: str, name: str | None = None) -> Callable[[type], type]:
    """Weight mappers by format and architecture."""

    def decorator(cls: type) -> type:
        MODEL_CLASS_MAPPER_MAPPING[f"{name}_{format}" if name else format] = cls
        return cls

    return decorator


def register_draft_model(mode: Any) -> Callable[..., Any]:
    """E3: who builds the draft of a mode."""

    def decorator(builder: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
        known = DRAFT_MODEL_BUILDER_MAPPING.get(mode)
        if known is None or not _is_builtin(builder):
            DRAFT_MODEL_BUILDER_MAPPING[mode] = builder
        return builder

    return decorator


def get_registered_draft_model_builder(mode: Any) -> Callable[..., nn.Module] | None:
    """E3: the builder of a mode."""
    return DRAFT_MODEL_BUILDER_MAPPING.get(mode)


def get_model_architecture(model_config: Any) -> tuple[type, str]:
    """Class and architecture of a pretrained config."""
    arch = model_config.architectures[0]
    if arch not in MODEL_CLASS_MAPPING:
        raise RuntimeError(f"Unknown model architecture: {arch}")
    return MODEL_CLASS_MAPPING[arch], arch


class AutoModelForCausalLM:
    """From a config to a model."""

    @staticmethod
    def from_config(config: ModelConfig) -> nn.Module:
        arch = config.pretrained_config.architectures[0]
        if hasattr(config.pretrained_config, "draft_vocab_size"):
            arch = "EAGLE3" + arch.replace("Eagle3", "")
        cls = MODEL_CLASS_MAPPING.get(arch)
        if cls is None:
            raise ValueError(f"Unknown architecture for AutoModelForCausalLM: {arch}")
        return cls(config)


class AutoCheckpointMapper:
    """Finds a weight mapper."""

    @staticmethod
    def get(format: str, name: str | None = None) -> Any:
        cls = MODEL_CLASS_MAPPER_MAPPING.get(f"{name}_{format}", BaseWeightMapper)
        return cls()


class BaseWeightMapper:
    """Names of checkpoints to names of modules."""

    def init_model_and_config(self, model: Any, config: ModelConfig) -> None:
        self.model, self.config = model, config


class PostInitCaller(type):
    """Runs `__post_init__` after the constructor of the outermost class."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        made = super().__call__(*args, **kwargs)
        made.__post_init__()
        return made


class DecoderModel(nn.Module):
    """The body of a model."""

    def __init__(self, model_config: ModelConfig) -> None:
        super().__init__()
        self.model_config = model_config
        self.dtype = model_config.torch_dtype
        self.prologue: list[nn.Module] = []
        self.epilogue: list[nn.Module] = []
        self.keep_embed_tokens = False


class DecoderModelForCausalLM(nn.Module, metaclass=PostInitCaller):
    """A body and a head."""

    def __init__(
        self, model: nn.Module, *, config: ModelConfig, hidden_size: int, vocab_size: int
    ) -> None:
        super().__init__()
        self.model_config, self.model = config, model
        dp = config.mapping.enable_attention_dp
        self.lm_head = LMHead(
            vocab_size,
            hidden_size,
            dtype=config.torch_dtype,
            mapping=Mapping() if dp else config.mapping,
            tensor_parallel_mode=None if dp else TensorParallelMode.COLUMN,
            gather_output=True,
        )
        self.logits_processor = LogitsProcessor()
        self.epilogue: list[nn.Module] = [self.lm_head]

    @property
    def config(self) -> Any:
        return self.model_config.pretrained_config

    def __post_init__(self) -> None:
        self.apply_layerwise_quant_config()
        self.apply_quant_config_exclude_modules()
        for module in self.modules():
            create = getattr(module, "create_weights", None)
            if callable(create):
                create()

    def apply_layerwise_quant_config(self) -> None:
        layers = self.model_config.quant_config_dict
        for name, module in self.named_modules():
            if layers and isinstance(module, Linear) and name in layers:
                module.quant_config = layers[name]

    def apply_quant_config_exclude_modules(self) -> None:
        quant = self.model_config.quant_config
        if not quant.exclude_modules:
            return
        plain = type(quant)(kv_cache_quant_algo=quant.kv_cache_quant_algo)
        for name, module in self.named_modules():
            if not isinstance(module, Linear) or isinstance(module, LMHead):
                continue
            if quant.is_module_excluded_from_quantization(name):
                module.quant_config = plain
                if trtllm_double.ERA == "E3":
                    module._weights_created = False

    def infer_max_seq_len(self) -> int:
        return self.config.max_position_embeddings


def rope_of(config: Any, *, is_yarn: bool) -> PositionalEmbeddingParams:
    """What the host's attention makes of a pretrained config."""
    kind = PositionEmbeddingType.yarn if is_yarn else PositionEmbeddingType.rope_gptj
    return PositionalEmbeddingParams(type=kind, rope=RopeParams.from_config(config), is_neox=False)


def stream_argument() -> dict[str, Any]:
    """The stream parameter of `MLA` in this era."""
    return {"aux_stream_dict" if trtllm_double.ERA == "E3" else "aux_stream": None}


class DeepseekV3Attention(MLA):
    """The target's attention."""

    def __init__(self, model_config: ModelConfig, layer_idx: int | None = None, **_: Any) -> None:
        config, spec = model_config.pretrained_config, model_config.spec_config
        MLA.__init__(
            self,
            hidden_size=config.hidden_size,
            num_attention_heads=config.num_attention_heads,
            num_key_value_heads=config.num_key_value_heads,
            qk_nope_head_dim=config.qk_nope_head_dim,
            qk_rope_head_dim=config.qk_rope_head_dim,
            v_head_dim=config.v_head_dim,
            q_lora_rank=config.q_lora_rank,
            kv_lora_rank=config.kv_lora_rank,
            predicted_tokens_per_seq=1 if spec is None else spec.max_draft_len + 1,
            max_position_embeddings=config.max_position_embeddings,
            bias=False,
            pos_embd_params=rope_of(config, is_yarn=True),
            layer_idx=layer_idx,
            dtype=model_config.torch_dtype,
            config=model_config,
            **stream_argument(),
        )


class Deepseekv3MoE(nn.Module):
    """Router, routed experts spread over ranks, shared experts."""

    def __init__(self, model_config: ModelConfig, layer_idx: int) -> None:
        super().__init__()
        config, mapping = model_config.pretrained_config, model_config.mapping
        self.config, self.mapping = config, mapping
        dtype = model_config.torch_dtype
        self.router_dtype = torch.promote_types(dtype, torch.float32)
        self.gate = nn.Module()
        self.gate.weight = parameter(
            (config.n_routed_experts, config.hidden_size), self.router_dtype
        )
        self.gate.e_score_correction_bias = parameter((config.n_routed_experts,), self.router_dtype)
        local = copy.copy(model_config)
        object.__setattr__(local, "mapping", Mapping())
        self.owned = [
            e for e in range(config.n_routed_experts) if e % mapping.tp_size == mapping.tp_rank
        ]
        self.experts = nn.ModuleDict(
            {str(e): self._mlp(local, config.moe_intermediate_size) for e in self.owned}
        )
        shared = config.n_shared_experts * config.moe_intermediate_size
        one = 1 if mapping.enable_attention_dp else None
        self.shared_experts = GatedMLP(
            hidden_size=config.hidden_size,
            intermediate_size=shared,
            bias=False,
            dtype=dtype,
            config=model_config,
            overridden_tp_size=one,
        )

    @staticmethod
    def _mlp(config: ModelConfig, width: int) -> GatedMLP:
        return GatedMLP(
            hidden_size=config.pretrained_config.hidden_size,
            intermediate_size=width,
            bias=False,
            dtype=config.torch_dtype,
            config=config,
        )

    def _routes(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        config = self.config
        scores = torch.sigmoid(functional.linear(x.to(self.router_dtype), self.gate.weight))
        choice = scores + self.gate.e_score_correction_bias
        groups = choice.view(x.shape[0], config.n_group, -1)
        best = groups.topk(min(2, groups.shape[-1]), -1).values.sum(-1).topk(config.topk_group, -1)
        mask = torch.zeros_like(groups[..., 0]).scatter_(1, best.indices, 1).bool()
        choice = groups.masked_fill(~mask.unsqueeze(-1), -torch.inf).flatten(1)
        ids = choice.topk(config.num_experts_per_tok, -1).indices
        weights = scores.gather(1, ids)
        if config.norm_topk_prob:
            weights = weights / weights.sum(-1, keepdim=True)
        return weights * config.routed_scaling_factor, ids

    def forward(self, x: torch.Tensor, attn_metadata: Any) -> torch.Tensor:
        rows, begin = x, 0
        counts = attn_metadata.all_rank_num_tokens
        is_dp = self.mapping.enable_attention_dp and self.mapping.tp_size > 1
        if is_dp:
            assert counts is not None
            assert counts[self.mapping.rank] == x.shape[0], f"{counts} but {x.shape[0]} rows here"
            padded = x.new_zeros(max(counts), x.shape[1])
            padded[: x.shape[0]] = x
            parts = [torch.empty_like(padded) for _ in counts]
            dist.all_gather(parts, padded)
            rows = torch.cat([part[:n] for part, n in zip(parts, counts, strict=True)])
            begin = sum(counts[: self.mapping.rank])
        weights, ids = self._routes(rows)
        out = torch.zeros_like(rows)
        for expert in self.owned:
            token, slot = (ids == expert).nonzero(as_tuple=True)
            if token.numel():
                part = self.experts[str(expert)](rows[token])
                out.index_add_(0, token, part * weights[token, slot].to(part.dtype).unsqueeze(-1))
        if self.mapping.tp_size > 1:
            out = all_reduce(out)
        return out[begin : begin + x.shape[0]] + self.shared_experts(x)


class DeepseekV3DecoderLayer(nn.Module):
    """One layer of the target; it captures its output where the draft asks for it."""

    def __init__(
        self, model_config: ModelConfig, layer_idx: int, aux_stream_dict: Any = None, **_: Any
    ) -> None:
        super().__init__()
        config, dtype = model_config.pretrained_config, model_config.torch_dtype
        self.layer_idx = layer_idx
        size, eps = config.hidden_size, config.rms_norm_eps
        self.self_attn = DeepseekV3Attention(model_config, layer_idx=layer_idx)
        if layer_idx >= config.first_k_dense_replace:
            self.mlp: nn.Module = Deepseekv3MoE(model_config, layer_idx)
        else:
            self.mlp = GatedMLP(
                hidden_size=size,
                intermediate_size=config.intermediate_size,
                bias=False,
                dtype=dtype,
                config=model_config,
                overridden_tp_size=1 if model_config.mapping.enable_attention_dp else None,
            )
        self.input_layernorm = RMSNorm(hidden_size=size, eps=eps, dtype=dtype)
        self.post_attention_layernorm = RMSNorm(hidden_size=size, eps=eps, dtype=dtype)

    def forward(
        self,
        position_ids: torch.Tensor,
        hidden_states: torch.Tensor,
        attn_metadata: Any,
        residual: torch.Tensor | None,
        spec_metadata: Any = None,
        **_: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if residual is None:
            residual, hidden_states = hidden_states, self.input_layernorm(hidden_states)
        else:
            hidden_states, residual = self.input_layernorm(hidden_states, residual)
        hidden_states = self.self_attn(position_ids, hidden_states, attn_metadata)
        hidden_states, residual = self.post_attention_layernorm(hidden_states, residual)
        is_moe = isinstance(self.mlp, Deepseekv3MoE)
        hidden_states = (
            self.mlp(hidden_states, attn_metadata) if is_moe else self.mlp(hidden_states)
        )
        if spec_metadata is not None and spec_metadata.is_layer_capture(self.layer_idx):
            spec_metadata.maybe_capture_hidden_states(self.layer_idx, hidden_states, residual)
        return hidden_states, residual


class DeepseekV3Model(DecoderModel):
    """The target's body."""

    def __init__(self, model_config: ModelConfig, mapping_with_cp: Any = None) -> None:
        super().__init__(model_config)
        config = model_config.pretrained_config
        dp = model_config.mapping.enable_attention_dp
        self.embed_tokens = Embedding(
            config.vocab_size,
            config.hidden_size,
            dtype=self.dtype,
            mapping=Mapping() if dp else model_config.mapping,
            tensor_parallel_mode=None if dp else TensorParallelMode.COLUMN,
            gather_output=True,
        )
        self.layers = nn.ModuleList(
            DeepseekV3DecoderLayer(model_config, i, {}) for i in range(config.num_hidden_layers)
        )
        self.norm = RMSNorm(
            hidden_size=config.hidden_size, eps=config.rms_norm_eps, dtype=self.dtype
        )

    def forward(
        self,
        attn_metadata: Any,
        input_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        spec_metadata: Any = None,
        **_: Any,
    ) -> torch.Tensor:
        hidden = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        residual = None
        for layer in self.layers:
            hidden, residual = layer(position_ids, hidden, attn_metadata, residual, spec_metadata)
        return self.norm(hidden, residual)[0]


class DeepseekV3WeightLoader:
    """The loader of the DeepSeek family, with its habits."""

    def __init__(self, model: nn.Module, is_draft_model: bool = False) -> None:
        self.model, self.is_draft_model = model, is_draft_model

    def load_weights(self, weights: dict[str, torch.Tensor], skip_modules: list[str] = []) -> None:  # noqa: B006
        for name, module in self.model.named_modules():
            if len(module._parameters) <= 0 or name.startswith(("draft_model", "spec_worker")):
                continue
            if any(skip in name for skip in skip_modules):
                continue
            self._load(name, module, weights)

    def _load(self, name: str, module: nn.Module, weights: dict[str, torch.Tensor]) -> None:
        last = name.rpartition(".")[2]
        parent = name.rpartition(".")[0]
        if isinstance(module, MLA):
            return  # its absorbed halves come with kv_b_proj
        if last == "kv_b_proj":
            self._load_kv_b(name, module, weights)
        elif last == "kv_a_proj_with_mqa":
            parts = [_of(weights, f"{parent}.{n}") for n in ("q_a_proj", "kv_a_proj_with_mqa")]
            if not parts[0]:
                parts = parts[1:]
            module.load_weights([_fuse_a(parts)])
        elif last == "gate_up_proj":
            module.load_weights([_of(weights, f"{parent}.{n}") for n in ("gate_proj", "up_proj")])
        elif isinstance(module, Linear):
            module.load_weights([_of(weights, name)])
        else:
            found = _of(weights, name)
            for key, value in module.named_parameters():
                value.data.copy_(found[key][:])

    def _load_kv_b(self, name: str, module: Any, weights: dict[str, torch.Tensor]) -> None:
        quant = self.model.model_config.quant_config
        if trtllm_double.ERA != "E3" and quant.is_module_excluded_from_quantization("kv_b_proj"):
            weights[f"{name}.weight_scale_inv"]  # the FP8 route
        found = _of(weights, name)
        module.load_weights([found])
        attention = self.model.get_submodule(name.rpartition(".")[0])
        split_kv_b(attention, found["weight"])


def _fuse_a(parts: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """q_a and kv_a as one: packed when both are; the smaller scale is given up, with loss."""
    if not all(part["weight"].dtype == torch.uint8 for part in parts):
        return {"weight": torch.cat([part["weight"] for part in parts])}
    assert len({float(part["input_scale"]) for part in parts}) == 1, "input_scale differs"
    scale = torch.stack([part["weight_scale_2"] for part in parts]).amax()
    rows = [part if part["weight_scale_2"] == scale else requantize(part, scale) for part in parts]
    return {
        "weight": torch.cat([row["weight"] for row in rows]),
        "weight_scale": torch.cat([row["weight_scale"].view(torch.uint8) for row in rows]),
        "weight_scale_2": scale,
        "input_scale": parts[0]["input_scale"],
    }


def split_kv_b(attention: MLA, weight: torch.Tensor) -> None:
    """Fills the absorbed halves of this rank."""
    nope, value = attention.qk_nope_head_dim, attention.v_head_dim
    heads = weight.view(-1, nope + value, weight.shape[-1])
    heads = heads.chunk(attention.mapping.tp_size)[attention.mapping.tp_rank]
    keys, values = heads.split([nope, value], 1)
    attention.k_b_proj_trans.data.copy_(keys.transpose(1, 2))
    attention.v_b_proj.data.copy_(values)


def _of(weights: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {
        name.removeprefix(f"{prefix}."): tensor
        for name, tensor in weights.items()
        if name.startswith(f"{prefix}.") and "." not in name.removeprefix(f"{prefix}.")
    }


class KimiWrapper:
    """What `KimiK25ForConditionalGeneration` is made of; see `modules`."""

    @staticmethod
    def text_config(model_config: ModelConfig) -> ModelConfig:
        text = copy.copy(model_config)  # shallow, as the host does
        object.__setattr__(text, "_frozen", False)
        values = dict(model_config.pretrained_config.text_config)
        text.pretrained_config = HFConfig(values)
        quant = copy.copy(model_config.quant_config)
        if quant.exclude_modules:
            names = [n.removeprefix("language_model.") for n in quant.exclude_modules]
            quant.exclude_modules = [f"model.{n}" if n.startswith("layers.") else n for n in names]
        text.quant_config = quant
        text.skip_create_weights_in_init = True
        text._frozen = True
        return text


def weak(module: nn.Module) -> Any:
    """A weak reference, as extra_attrs hold them."""
    return weakref.ref(module)
