# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The host's own Eagle3 drafts, and the target base class that drafts in the same engine."""

from __future__ import annotations

import inspect
import re
from typing import Any

import torch
from torch import nn

import trtllm_double
from trtllm_double import models
from trtllm_double.args import ModelConfig
from trtllm_double.attention import MLA
from trtllm_double.linear import (
    Embedding,
    GatedMLP,
    Linear,
    LMHead,
    RMSNorm,
    TensorParallelMode,
    parameter,
)
from trtllm_double.models import (
    BaseWeightMapper,
    DecoderModel,
    DecoderModelForCausalLM,
    DeepseekV3WeightLoader,
    register_draft_model,
    rope_of,
    stream_argument,
)
from trtllm_double.spec import SpeculativeDecodingMode


def steps(spec_config: Any) -> int:
    """Rows that a request verifies at once."""
    if trtllm_double.ERA == "E1":
        return spec_config.max_total_draft_tokens + 1
    return spec_config.tokens_per_gen_step


class Eagle3MLAttention(MLA):
    """MLA with an input twice as wide; rope is always yarn."""

    def __init__(
        self,
        model_config: ModelConfig,
        layer_idx: int | None = None,
        next_layer_regular: bool = False,
        **_: Any,
    ) -> None:
        config = model_config.pretrained_config
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
            predicted_tokens_per_seq=steps(model_config.spec_config),
            max_position_embeddings=config.max_position_embeddings,
            bias=False,
            pos_embd_params=rope_of(config, is_yarn=True),
            layer_idx=layer_idx,
            dtype=model_config.torch_dtype,
            config=model_config,
            **stream_argument(),
        )
        if not next_layer_regular:
            size = self.q_lora_rank + self.kv_lora_rank + self.qk_rope_head_dim
            self.kv_a_proj_with_mqa = Linear(
                2 * config.hidden_size,
                size,
                bias=False,
                dtype=model_config.torch_dtype,
                quant_config=model_config.get_quant_config(),
                skip_create_weights_in_init=model_config.skip_create_weights_in_init,
            )


class Eagle3Attention(nn.Module):
    """Grouped-query attention of Llama-style drafts: weights; the double has no kernel for it."""

    def __init__(
        self,
        model_config: ModelConfig,
        layer_idx: int | None = None,
        next_layer_regular: bool = False,
    ) -> None:
        super().__init__()
        config, dtype = model_config.pretrained_config, model_config.torch_dtype
        head = getattr(config, "head_dim", config.hidden_size // config.num_attention_heads)
        rows = (config.num_attention_heads + 2 * config.num_key_value_heads) * head
        width = config.hidden_size * (1 if next_layer_regular else 2)
        self.qkv_proj = Linear(width, rows, bias=False, dtype=dtype)
        self.o_proj = Linear(
            config.num_attention_heads * head, config.hidden_size, bias=False, dtype=dtype
        )
        model_config.extra_attrs.setdefault("attn_layers", {})[str(layer_idx)] = models.weak(self)


class Eagle3DecoderLayer(nn.Module):
    """One layer of the host's own draft."""

    def __init__(
        self,
        model_config: ModelConfig,
        layer_idx: int = 0,
        is_first_layer: bool = True,
        use_mla: bool = False,
        aux_stream: Any = None,
    ) -> None:
        super().__init__()
        config, dtype = model_config.pretrained_config, model_config.torch_dtype
        self.layer_idx = layer_idx
        self._next_layer_regular = not is_first_layer
        attention = Eagle3MLAttention if use_mla else Eagle3Attention
        self.self_attn = attention(
            model_config, layer_idx=layer_idx, next_layer_regular=self._next_layer_regular
        )
        one = 1 if model_config.mapping.enable_attention_dp else None
        self.mlp = GatedMLP(
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            bias=False,
            dtype=dtype,
            config=model_config,
            overridden_tp_size=one,
        )

        def norm() -> RMSNorm:
            return RMSNorm(hidden_size=config.hidden_size, eps=config.rms_norm_eps, dtype=dtype)

        if not self._next_layer_regular:
            self.input_layernorm = norm()
        self.hidden_norm, self.post_attention_layernorm = norm(), norm()

    def forward(
        self,
        position_ids: torch.Tensor,
        embeds: torch.Tensor,
        hidden_states: torch.Tensor,
        attn_metadata: Any,
        spec_metadata: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        residual = hidden_states
        hidden_states = self.hidden_norm(hidden_states)
        if not self._next_layer_regular:
            hidden_states = torch.cat([self.input_layernorm(embeds), hidden_states], -1)
        hidden_states = self.self_attn(position_ids, hidden_states, attn_metadata)
        hidden_states, residual = self.post_attention_layernorm(hidden_states, residual)
        return self.mlp(hidden_states), residual


class Eagle3DraftModel(DecoderModel):
    """The body of the host's own draft."""

    def __init__(
        self, model_config: ModelConfig, start_layer_idx: int = 0, use_mla: bool = False
    ) -> None:
        super().__init__(model_config)
        config, self.spec_config = model_config.pretrained_config, model_config.spec_config
        self.hidden_size = config.hidden_size
        self.hidden_size_in = getattr(config, "target_hidden_size", config.hidden_size)
        count = self.spec_config.num_capture_layers
        if count > 1:
            # E1 gives it no quantization config at all.
            quant = None if trtllm_double.ERA == "E1" else model_config.get_quant_config()
            self.fc = Linear(
                self.hidden_size_in * count,
                config.hidden_size,
                bias=False,
                dtype=self.dtype,
                quant_config=quant,
            )
        knows_31 = trtllm_double.ERA == "E3"
        self._use_fc_norm = knows_31 and bool(getattr(config, "fc_norm", False))
        self._return_hidden_post_norm = knows_31 and bool(getattr(config, "norm_output", False))
        if self._use_fc_norm:
            self.fc_norm = nn.ModuleList(
                RMSNorm(hidden_size=self.hidden_size_in, eps=config.rms_norm_eps, dtype=self.dtype)
                for _ in range(count)
            )
        self.num_layers = config.num_hidden_layers
        layers = [
            Eagle3DecoderLayer(model_config, start_layer_idx + i, i == 0, use_mla)
            for i in range(self.num_layers)
        ]
        self.midlayer = layers[0] if len(layers) == 1 else nn.ModuleList(layers)
        self.norm = RMSNorm(
            hidden_size=config.hidden_size, eps=config.rms_norm_eps, dtype=self.dtype
        )
        vocabulary = getattr(config, "draft_vocab_size", config.vocab_size)
        if vocabulary != config.vocab_size:
            self.d2t = parameter((vocabulary,), torch.int32)
        self.embed_tokens: nn.Module | None = None
        if self.hidden_size_in != config.hidden_size:
            self.embed_tokens = Embedding(config.vocab_size, config.hidden_size, dtype=self.dtype)

    def forward(
        self,
        attn_metadata: Any,
        input_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        spec_metadata: Any = None,
        hidden_states: torch.Tensor | None = None,
        all_rank_num_tokens: Any = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        embeds = self.embed_tokens(input_ids)
        layers = [self.midlayer] if self.num_layers == 1 else list(self.midlayer)
        residual = None
        for layer in layers:
            if residual is not None:
                hidden_states = hidden_states + residual
            hidden_states, residual = layer(
                position_ids, embeds, hidden_states, attn_metadata, spec_metadata
            )
        hidden_states, to_save = self.norm(hidden_states, residual)
        return hidden_states, hidden_states if self._return_hidden_post_norm else to_save


class Eagle3ForCausalLM(DecoderModelForCausalLM):
    """The host's own draft."""

    load_lm_head_from_target = True

    def __init__(self, model_config: ModelConfig, start_layer_idx: int = 0) -> None:
        config = model_config.pretrained_config
        if not hasattr(config, "draft_vocab_size"):
            config.draft_vocab_size = config.vocab_size
        self._use_mla = bool(getattr(config, "kv_lora_rank", 0))
        body = Eagle3DraftModel(model_config, start_layer_idx, self._use_mla)
        DecoderModelForCausalLM.__init__(
            self,
            body,
            config=model_config,
            hidden_size=config.hidden_size,
            vocab_size=config.draft_vocab_size,
        )
        self.load_lm_head_from_target = True

    def load_weights(
        self, weights: dict[str, torch.Tensor], weight_mapper: BaseWeightMapper
    ) -> None:
        renamed = {}
        for name, tensor in weights.items():
            new = name
            if trtllm_double.ERA != "E1":
                new = re.sub(r"^layers\.0\.", "midlayer.", new)
            if "lm_head" in new:
                self.load_lm_head_from_target = False
            if new == "t2d":
                continue
            renamed[new if "lm_head" in new else f"model.{new}"] = tensor
        if self._use_mla:
            skip = ["lm_head"] if self.load_lm_head_from_target else []
            DeepseekV3WeightLoader(self, is_draft_model=True).load_weights(renamed, skip)
            return
        for name, module in self.named_modules():
            own = models._of(renamed, name)
            if own and isinstance(module, Linear) and set(own) >= {"weight"}:
                module.load_weights([own])

    def load_weights_from_target_model(self, target_model: nn.Module) -> None:
        if self.model.embed_tokens is None:
            self.model.embed_tokens = target_model.model.embed_tokens
        if self.load_lm_head_from_target:
            self.lm_head = target_model.lm_head

    def apply_eagle3_fc(self, hidden_states: torch.Tensor) -> torch.Tensor:
        body = self.model
        if hidden_states.shape[-1] == body.hidden_size:
            return hidden_states
        if body._use_fc_norm:
            chunks = hidden_states.chunk(len(body.fc_norm), -1)
            normed = [norm(part) for norm, part in zip(body.fc_norm, chunks, strict=True)]
            hidden_states = torch.cat(normed, -1)
        return body.fc(hidden_states)


def build_default(
    model_config: ModelConfig, draft_config: ModelConfig, lm_head: LMHead, model: nn.Module
) -> nn.Module:
    """The host's own builder."""
    return Eagle3ForCausalLM(draft_config, model_config.pretrained_config.num_hidden_layers)


def get_draft_model(
    model_config: ModelConfig, draft_config: ModelConfig, lm_head: LMHead, model: nn.Module
) -> nn.Module:
    """E1, E2: fixed branches. E3: the registered builder."""
    mode = model_config.spec_config.spec_dec_mode
    if trtllm_double.ERA != "E3":
        return build_default(model_config, draft_config, lm_head, model)
    builder = models.get_registered_draft_model_builder(mode)
    if builder is None:
        raise NotImplementedError(f"no draft builder for {mode}")
    return builder(model_config, draft_config, lm_head, model)


class SpecDecOneEngineForCausalLM(DecoderModelForCausalLM):
    """A target that drafts in its own forward pass."""

    def __init__(
        self,
        model: nn.Module,
        model_config: ModelConfig,
        hidden_size: int | None = None,
        vocab_size: int | None = None,
    ) -> None:
        config = model_config.pretrained_config
        DecoderModelForCausalLM.__init__(
            self,
            model,
            config=model_config,
            hidden_size=hidden_size or config.hidden_size,
            vocab_size=vocab_size or config.vocab_size,
        )
        self.draft_model, self.draft_config = None, None
        spec = model_config.spec_config
        if trtllm_double.ERA != "E1":
            self.spec_worker = None
        if spec is not None and spec.spec_dec_mode.use_one_engine():
            self._build_draft(model_config, spec)

    def _build_draft(self, model_config: ModelConfig, spec: Any) -> None:
        from trtllm_double import modules

        draft = ModelConfig.from_pretrained(
            str(spec.speculative_model),
            trust_remote_code=True,
            attn_backend=model_config.attn_backend,
            moe_backend=model_config.moe_backend,
            mapping=model_config.mapping,
            spec_config=spec,
            max_num_tokens=model_config.max_num_tokens,
            moe_max_num_tokens=model_config.moe_max_num_tokens,
            dtype=model_config.pretrained_config.torch_dtype,
        )
        draft.quant_config.kv_cache_quant_algo = model_config.quant_config.kv_cache_quant_algo
        self.draft_config = draft
        if trtllm_double.ERA == "E3":
            spec._num_draft_hidden_layers = draft.pretrained_config.num_hidden_layers
        if trtllm_double.ERA != "E1":
            draft.extra_attrs = model_config.extra_attrs
        place = modules.namespace("_torch.models.modeling_speculative")
        self.draft_model = place["get_draft_model"](model_config, draft, self.lm_head, self.model)
        if trtllm_double.ERA == "E1":
            for key, value in draft.extra_attrs.items():
                assert key in ("attn_layers", "mla_layers")
                assert key in model_config.extra_attrs
                model_config.extra_attrs[key].update(value)
        worker = place["get_spec_worker"]
        self.spec_worker = worker(spec, model_config, model_config.mapping)
        if trtllm_double.ERA == "E3":
            self.spec_worker.set_draft_model(self.draft_model)
        self.epilogue += [self.draft_model, self.spec_worker]

    def forward(
        self,
        attn_metadata: Any,
        input_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        return_context_logits: bool = False,
        spec_metadata: Any = None,
        resource_manager: Any = None,
        **_: Any,
    ) -> Any:
        hidden = self.model(
            attn_metadata=attn_metadata,
            input_ids=input_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            spec_metadata=spec_metadata,
        )
        worker = getattr(self, "spec_worker", None)
        if worker is None or self.draft_model is None:
            return self.logits_processor(hidden, self.lm_head, attn_metadata, return_context_logits)
        rows = hidden[spec_metadata.gather_ids]
        logits = self.logits_processor(rows, self.lm_head, attn_metadata, True)
        extra = {} if trtllm_double.ERA == "E1" else {"resource_manager": resource_manager}
        return worker(
            input_ids=input_ids,
            position_ids=position_ids,
            hidden_states=hidden,
            logits=logits,
            attn_metadata=attn_metadata,
            spec_metadata=spec_metadata,
            draft_model=self.draft_model,
            **extra,
        )

    def load_draft_weights(
        self, weights: dict[str, torch.Tensor], weight_mapper: Any = None
    ) -> None:
        load = self.draft_model.load_weights
        named = "weight_mapper" in inspect.getfullargspec(load).args
        if trtllm_double.ERA == "E1" or named:
            load(weights=weights, weight_mapper=weight_mapper)
        else:
            load(weights=weights)
        self.draft_model.load_weights_from_target_model(self)


def register_default_builder() -> None:
    """E3: the built-in registration."""
    if trtllm_double.ERA == "E3":
        build_default.__module__ = "tensorrt_llm._torch.models.modeling_speculative"
        register_draft_model(SpeculativeDecodingMode.EAGLE3_ONE_MODEL)(build_default)


TP_COLUMN = TensorParallelMode.COLUMN
