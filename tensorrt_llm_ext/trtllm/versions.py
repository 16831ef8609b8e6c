# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""What an MLA Eagle3 draft needs of a TensorRT-LLM, and where each version keeps it.

Eras: E1 is 1.2.x, E2 the 1.3 release candidates, E3 1.4 and later. Names moved between them and
release candidates differ, so every known place is tried and nothing is decided by a version number.
The places were read in the sources of the three eras.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

PACKAGE: Final = "tensorrt_llm"
_TORCH: Final = "_torch"
_SPECULATIVE: Final = f"{_TORCH}.models.modeling_speculative"


@dataclass(frozen=True, kw_only=True, slots=True)
class HostSymbol:
    """Something of the host that a draft relies on.

    Attributes:
        name: Short stable name, used in messages.
        places: `module:attribute` below the package, newest first; one of them must exist. A dot in
            the attribute leads into a class.
        members: What the class found there must have: methods, properties or attributes that its
            constructor sets.
        parameters: What the function found there must accept; `**` alone asks for free keywords.
        method: The method of the class whose `parameters` are meant; empty for the symbol itself.
        is_optional: Whether some versions do without it; the probe does not miss it then.
        why: What it is needed for, in a few words.
    """

    name: str
    places: tuple[str, ...]
    members: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    method: str = ""
    is_optional: bool = False
    why: str


_MODULES: Final = f"{_TORCH}.modules"
_UTILS: Final = f"{_TORCH}.models.modeling_utils"
_BACKEND: Final = f"{_TORCH}.attention_backend.interface"

SYMBOLS: Final[tuple[HostSymbol, ...]] = (
    # Building blocks of the draft.
    HostSymbol(
        name="MLA",
        places=(f"{_MODULES}.mla:MLA", f"{_MODULES}.attention:MLA"),
        members=("create_weights", "kv_a_proj_with_mqa", "k_b_proj_trans", "v_b_proj", "kv_b_proj"),
        method="__init__",
        parameters=("predicted_tokens_per_seq", "pos_embd_params", "layer_idx", "config"),
        why="latent attention, which the draft's layer is built on",
    ),
    HostSymbol(
        name="Linear",
        places=(f"{_MODULES}.linear:Linear",),
        members=("create_weights", "load_weights"),
        method="__init__",
        parameters=(
            "mapping",
            "tensor_parallel_mode",
            "gather_output",
            "quant_config",
            "skip_create_weights_in_init",
        ),
        why="projections, split over GPUs and quantized",
    ),
    HostSymbol(
        name="TensorParallelMode",
        places=(f"{_MODULES}.linear:TensorParallelMode",),
        why="how a projection is split",
    ),
    HostSymbol(
        name="Embedding",
        places=(f"{_MODULES}.embedding:Embedding",),
        why="a draft's own embedding",
    ),
    HostSymbol(name="LMHead", places=(f"{_MODULES}.embedding:LMHead",), why="a draft's own head"),
    HostSymbol(name="RMSNorm", places=(f"{_MODULES}.rms_norm:RMSNorm",), why="norms"),
    HostSymbol(
        name="GatedMLP",
        places=(f"{_MODULES}.gated_mlp:GatedMLP",),
        members=("gate_up_proj", "down_proj"),
        method="__init__",
        parameters=("config", "overridden_tp_size"),
        why="the draft's MLP",
    ),
    HostSymbol(
        name="PositionalEmbeddingParams",
        places=(f"{_BACKEND}:PositionalEmbeddingParams",),
        why="how positions enter attention",
    ),
    HostSymbol(
        name="RopeParams", places=(f"{_BACKEND}:RopeParams",), why="the draft's own rotary table"
    ),
    HostSymbol(
        name="PositionEmbeddingType",
        places=("functional:PositionEmbeddingType",),
        why="the kind of the rotary table",
    ),
    HostSymbol(
        name="RotaryScalingType",
        places=("functional:RotaryScalingType",),
        why="whether the rotary table is scaled",
    ),
    HostSymbol(
        name="QuantConfig",
        places=("models.modeling_utils:QuantConfig",),
        why="the format of each projection",
    ),
    HostSymbol(name="QuantAlgo", places=("quantization.mode:QuantAlgo",), why="names of formats"),
    HostSymbol(
        name="get_sm_version",
        places=("_utils:get_sm_version",),
        is_optional=True,
        why="whether the GPU multiplies FP4",
    ),
    # The draft as the host sees it.
    HostSymbol(
        name="Eagle3ForCausalLM",
        places=(f"{_SPECULATIVE}:Eagle3ForCausalLM",),
        members=("apply_eagle3_fc", "load_weights", "load_weights_from_target_model"),
        why="the draft as the worker calls it",
    ),
    HostSymbol(
        name="DecoderModelForCausalLM",
        places=(f"{_UTILS}:DecoderModelForCausalLM",),
        method="__init__",
        parameters=("model", "config", "hidden_size", "vocab_size"),
        why="what every model with a head derives from",
    ),
    HostSymbol(
        name="SpecDecOneEngineForCausalLM",
        places=(f"{_SPECULATIVE}:SpecDecOneEngineForCausalLM",),
        members=("load_draft_weights",),
        why="targets that draft in the same engine",
    ),
    HostSymbol(
        name="draft builder",
        places=(f"{_UTILS}:register_draft_model", f"{_SPECULATIVE}:get_draft_model"),
        why="where a draft class is put in",
    ),
    HostSymbol(
        name="register_draft_model",
        places=(f"{_UTILS}:register_draft_model",),
        is_optional=True,
        why="the registry of drafts, from 1.4 on",
    ),
    HostSymbol(
        name="get_registered_draft_model_builder",
        places=(f"{_UTILS}:get_registered_draft_model_builder",),
        is_optional=True,
        why="who built drafts before us, from 1.4 on",
    ),
    HostSymbol(
        name="get_draft_model",
        places=(f"{_SPECULATIVE}:get_draft_model",),
        parameters=("model_config", "draft_config", "lm_head", "model"),
        why="who builds drafts, up to 1.3",
    ),
    HostSymbol(
        name="SpeculativeDecodingMode",
        places=(f"{_TORCH}.speculative.interface:SpeculativeDecodingMode",),
        members=("EAGLE3_ONE_MODEL",),
        why="the mode that drafts are registered for",
    ),
    # Targets.
    HostSymbol(
        name="register_auto_model",
        places=(f"{_UTILS}:register_auto_model",),
        parameters=("name",),
        why="registration that reaches worker processes",
    ),
    HostSymbol(
        name="DeepseekV3ForCausalLM",
        places=(f"{_TORCH}.models.modeling_deepseekv3:DeepseekV3ForCausalLM",),
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
        why="the Kimi-K2.5 wrapper, which must hand drafting through to its text model",
    ),
    # The loop.
    HostSymbol(
        name="Eagle3OneModelSpecMetadata",
        places=(f"{_TORCH}.speculative.eagle3:Eagle3OneModelSpecMetadata",),
        members=("is_layer_capture", "maybe_capture_hidden_states", "prepare", "request_ids"),
        why="captured states of the target",
    ),
    HostSymbol(
        name="Eagle3OneModelWorker",
        places=(f"{_TORCH}.speculative.eagle3:Eagle3OneModelWorker",),
        why="the draft loop",
    ),
    HostSymbol(
        name="get_spec_worker",
        places=(f"{_TORCH}.speculative.utils:get_spec_worker",),
        is_optional=True,
        why="its parameters tell 1.2 from 1.3",
    ),
    HostSymbol(
        name="Eagle3 config",
        places=("llmapi.llm_args:Eagle3DecodingConfig", "llmapi.llm_args:EagleDecodingConfig"),
        members=("eagle3_layers_to_capture",),
        why="the option that names the captured layers",
    ),
)
