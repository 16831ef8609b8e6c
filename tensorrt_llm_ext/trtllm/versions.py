# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Every symbol of TensorRT-LLM that this package uses, and where each version keeps it.

Eras: E1 is 1.2.x, E2 the 1.3 release candidates, E3 1.4 and later. Names moved between them and
release candidates differ, so every known place is tried and nothing is decided by a version number.
The places were read in the sources of the three eras.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

PACKAGE: Final = "tensorrt_llm"
_TORCH: Final = "_torch"
_MODELS: Final = f"{_TORCH}.models.modeling_utils"
_SPECULATIVE: Final = f"{_TORCH}.models.modeling_speculative"
_EAGLE3: Final = f"{_TORCH}.speculative.eagle3"
_LINEAR: Final = f"{_TORCH}.modules.linear"
_INTERFACE: Final = f"{_TORCH}.attention_backend.interface"


@dataclass(frozen=True, kw_only=True, slots=True)
class HostSymbol:
    """Something of the host that a draft relies on.

    Attributes:
        name: Short stable name, used in messages and by `host.Host.symbol`.
        places: `module:attribute` below the package, newest first; one of them must exist. A dot in
            the attribute leads into a class.
        members: What the class found there must have: methods, properties or attributes that its
            constructor sets.
        parameters: What the function found there must accept; `**` alone asks for free keywords.
        method: The method of the class whose `parameters` are meant; empty for the symbol itself.
        optional: Whether some version lacks it and the package does without; what is there must
            still be whole.
        why: What it is needed for, in a few words.
    """

    name: str
    places: tuple[str, ...]
    members: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    method: str = ""
    optional: bool = False
    why: str


SYMBOLS: Final[tuple[HostSymbol, ...]] = (
    HostSymbol(
        name="MLA",
        places=(f"{_TORCH}.modules.mla:MLA", f"{_TORCH}.modules.attention:MLA"),
        members=("create_weights",),
        parameters=(
            "hidden_size",
            "num_attention_heads",
            "num_key_value_heads",
            "qk_nope_head_dim",
            "qk_rope_head_dim",
            "v_head_dim",
            "q_lora_rank",
            "kv_lora_rank",
            "predicted_tokens_per_seq",
            "max_position_embeddings",
            "bias",
            "pos_embd_params",
            "layer_idx",
            "dtype",
            "config",
        ),
        method="__init__",
        why="latent attention, which the draft's layer derives from",
    ),
    HostSymbol(
        name="Eagle3MLAttention",
        places=(f"{_SPECULATIVE}:Eagle3MLAttention",),
        parameters=("model_config", "layer_idx", "next_layer_regular"),
        method="__init__",
        why="the draft's attention, whose input is twice as wide",
    ),
    HostSymbol(
        name="Eagle3ForCausalLM",
        places=(f"{_SPECULATIVE}:Eagle3ForCausalLM",),
        members=("apply_eagle3_fc", "load_weights", "load_weights_from_target_model"),
        why="the draft as the worker calls it",
    ),
    HostSymbol(
        name="Eagle3DraftModel.forward",
        places=(f"{_SPECULATIVE}:Eagle3DraftModel.forward",),
        parameters=(
            "attn_metadata",
            "input_ids",
            "position_ids",
            "inputs_embeds",
            "spec_metadata",
            "hidden_states",
        ),
        why="the call of the draft by the worker; its last parameter tells E1 and E2 apart",
    ),
    HostSymbol(
        name="SpecDecOneEngineForCausalLM",
        places=(f"{_SPECULATIVE}:SpecDecOneEngineForCausalLM",),
        members=("load_draft_weights",),
        why="targets that draft in the same engine",
    ),
    HostSymbol(
        name="draft builder",
        places=(f"{_MODELS}:register_draft_model", f"{_SPECULATIVE}:get_draft_model"),
        why="where a draft class is put in",
    ),
    HostSymbol(
        name="get_registered_draft_model_builder",
        places=(f"{_MODELS}:get_registered_draft_model_builder",),
        parameters=("mode",),
        optional=True,
        why="who built drafts before us",
    ),
    HostSymbol(
        name="get_draft_model",
        places=(f"{_SPECULATIVE}:get_draft_model",),
        parameters=("model_config", "draft_config", "lm_head", "model"),
        why="where older versions choose the draft",
    ),
    HostSymbol(
        name="register_auto_model",
        places=(f"{_MODELS}:register_auto_model",),
        parameters=("name",),
        why="registration that reaches worker processes",
    ),
    HostSymbol(
        name="DecoderModelForCausalLM",
        places=(f"{_MODELS}:DecoderModelForCausalLM",),
        parameters=("model", "config", "hidden_size", "vocab_size"),
        method="__init__",
        why="base of the draft class",
    ),
    HostSymbol(
        name="DeepseekV3ForCausalLM",
        places=(f"{_TORCH}.models.modeling_deepseekv3:DeepseekV3ForCausalLM",),
        parameters=("model_config",),
        method="__init__",
        why="the target",
    ),
    HostSymbol(
        name="KimiK25ForConditionalGeneration",
        places=(
            f"{_TORCH}.models.modeling_kimi_k25:KimiK25ForConditionalGeneration",
            f"{_TORCH}.models.modeling_deepseekv3:KimiK25ForConditionalGeneration",
        ),
        members=("draft_config", "draft_model", "load_draft_weights", "model", "lm_head"),
        parameters=("**",),
        method="forward",
        optional=True,
        why="the Kimi-K2.5 wrapper, which must hand drafting through to its text model",
    ),
    HostSymbol(
        name="Eagle3OneModelSpecMetadata",
        places=(f"{_EAGLE3}:Eagle3OneModelSpecMetadata",),
        members=("is_layer_capture", "maybe_capture_hidden_states", "layers_to_capture"),
        why="captured states of the target",
    ),
    HostSymbol(
        name="Eagle3OneModelSpecMetadata.prepare",
        places=(f"{_EAGLE3}:Eagle3OneModelSpecMetadata.prepare",),
        why="called on the host side before each pass, with the ids of its requests",
    ),
    HostSymbol(
        name="ModelLoader.load",
        places=(f"{_TORCH}.pyexecutor.model_loader:ModelLoader.load",),
        why="where the settings of speculation are still those that the executor keeps",
    ),
    HostSymbol(
        name="Eagle3OneModelWorker",
        places=(f"{_EAGLE3}:Eagle3OneModelWorker",),
        why="the draft loop",
    ),
    HostSymbol(
        name="SpeculativeDecodingMode",
        places=(f"{_TORCH}.speculative.interface:SpeculativeDecodingMode",),
        members=("EAGLE3_ONE_MODEL", "is_eagle3_one_model"),
        why="the key of the draft builders",
    ),
    HostSymbol(
        name="Eagle3 config",
        places=("llmapi.llm_args:Eagle3DecodingConfig", "llmapi.llm_args:EagleDecodingConfig"),
        members=("eagle3_layers_to_capture", "max_draft_len", "speculative_model"),
        why="the options of speculation, with the captured layers among them",
    ),
    HostSymbol(
        name="ModelConfig",
        places=(f"{_TORCH}.model_config:ModelConfig",),
        members=("pretrained_config", "spec_config", "quant_config", "mapping", "extra_attrs"),
        why="settings of one model",
    ),
    HostSymbol(
        name="Linear",
        places=(f"{_LINEAR}:Linear",),
        members=("create_weights", "load_weights"),
        parameters=(
            "in_features",
            "out_features",
            "bias",
            "dtype",
            "mapping",
            "tensor_parallel_mode",
            "gather_output",
            "quant_config",
            "weights_loading_config",
            "reduce_output",
            "skip_create_weights_in_init",
        ),
        method="__init__",
        why="tensor-parallel and quantized projections",
    ),
    HostSymbol(
        name="TensorParallelMode",
        places=(f"{_LINEAR}:TensorParallelMode",),
        members=("COLUMN", "ROW"),
        why="how a projection is split",
    ),
    HostSymbol(
        name="WeightsLoadingConfig",
        places=(f"{_LINEAR}:WeightsLoadingConfig",),
        parameters=("weight_mode",),
        why="how the shards of a fused projection are given",
    ),
    HostSymbol(
        name="WeightMode",
        places=(f"{_LINEAR}:WeightMode",),
        why="kinds of fused projections",
    ),
    HostSymbol(
        name="GatedMLP",
        places=(f"{_TORCH}.modules.gated_mlp:GatedMLP",),
        parameters=(
            "hidden_size",
            "intermediate_size",
            "bias",
            "dtype",
            "config",
            "overridden_tp_size",
        ),
        method="__init__",
        why="the draft's MLP",
    ),
    HostSymbol(
        name="RMSNorm",
        places=(f"{_TORCH}.modules.rms_norm:RMSNorm",),
        parameters=("hidden_size", "eps", "dtype"),
        method="__init__",
        why="norms, fused with the residual",
    ),
    HostSymbol(
        name="Embedding",
        places=(f"{_TORCH}.modules.embedding:Embedding",),
        parameters=(
            "num_embeddings",
            "embedding_dim",
            "dtype",
            "mapping",
            "tensor_parallel_mode",
            "gather_output",
        ),
        method="__init__",
        why="the draft's own embedding",
    ),
    HostSymbol(
        name="LMHead",
        places=(f"{_TORCH}.modules.embedding:LMHead",),
        parameters=(
            "num_embeddings",
            "embedding_dim",
            "dtype",
            "mapping",
            "tensor_parallel_mode",
            "gather_output",
        ),
        method="__init__",
        why="the draft's head",
    ),
    HostSymbol(
        name="LogitsProcessor",
        places=(f"{_TORCH}.modules.logits_processor:LogitsProcessor",),
        why="from the draft's states to its scores",
    ),
    HostSymbol(
        name="PositionalEmbeddingParams",
        places=(f"{_INTERFACE}:PositionalEmbeddingParams",),
        parameters=("type", "rope", "is_neox"),
        why="rotary settings of the attention",
    ),
    HostSymbol(
        name="RopeParams",
        places=(f"{_INTERFACE}:RopeParams",),
        members=("from_config",),
        why="rotary frequencies",
    ),
    HostSymbol(
        name="PositionEmbeddingType",
        places=("functional:PositionEmbeddingType",),
        members=("yarn", "rope_gptj"),
        why="kinds of rotary embeddings",
    ),
    HostSymbol(
        name="RotaryScalingType",
        places=("functional:RotaryScalingType",),
        why="whether the draft's rotary table is scaled",
    ),
    HostSymbol(
        name="QuantConfig",
        places=("models.modeling_utils:QuantConfig",),
        members=("quant_algo", "exclude_modules", "kv_cache_quant_algo"),
        why="format of a projection",
    ),
    HostSymbol(
        name="QuantAlgo",
        places=("quantization.mode:QuantAlgo",),
        members=("NVFP4",),
        why="names of formats",
    ),
    HostSymbol(
        name="Mapping",
        places=("mapping:Mapping",),
        members=("tp_size", "tp_rank", "enable_attention_dp"),
        why="ranks of one server",
    ),
    HostSymbol(
        name="get_sm_version",
        places=("_utils:get_sm_version",),
        why="whether the GPU multiplies NVFP4",
    ),
)


def symbol_named(name: str) -> HostSymbol:
    """Returns the row of a name; a name without one is a mistake of ours."""
    for symbol in SYMBOLS:
        if symbol.name == name:
            return symbol
    raise KeyError(f"{name!r} has no row in trtllm/versions.py; add one with its places and why")
