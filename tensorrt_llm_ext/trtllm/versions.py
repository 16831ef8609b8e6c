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
        why: What it is needed for, in a few words.
    """

    name: str
    places: tuple[str, ...]
    members: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    method: str = ""
    why: str


SYMBOLS: Final[tuple[HostSymbol, ...]] = (
    HostSymbol(
        name="MLA",
        places=(f"{_TORCH}.modules.mla:MLA", f"{_TORCH}.modules.attention:MLA"),
        why="latent attention, which the draft's layer derives from",
    ),
    HostSymbol(
        name="Eagle3MLAttention",
        places=(f"{_SPECULATIVE}:Eagle3MLAttention",),
        why="the draft's attention, whose input is twice as wide",
    ),
    HostSymbol(
        name="Eagle3ForCausalLM",
        places=(f"{_SPECULATIVE}:Eagle3ForCausalLM",),
        members=("apply_eagle3_fc", "load_weights", "load_weights_from_target_model"),
        why="the draft as the worker calls it",
    ),
    HostSymbol(
        name="SpecDecOneEngineForCausalLM",
        places=(f"{_SPECULATIVE}:SpecDecOneEngineForCausalLM",),
        members=("load_draft_weights",),
        why="targets that draft in the same engine",
    ),
    HostSymbol(
        name="draft builder",
        places=(
            f"{_TORCH}.models.modeling_utils:register_draft_model",
            f"{_SPECULATIVE}:get_draft_model",
        ),
        why="where a draft class is put in",
    ),
    HostSymbol(
        name="register_auto_model",
        places=(f"{_TORCH}.models.modeling_utils:register_auto_model",),
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
    HostSymbol(
        name="Eagle3OneModelSpecMetadata",
        places=(f"{_TORCH}.speculative.eagle3:Eagle3OneModelSpecMetadata",),
        members=("is_layer_capture", "maybe_capture_hidden_states"),
        why="captured states of the target",
    ),
    HostSymbol(
        name="Eagle3OneModelWorker",
        places=(f"{_TORCH}.speculative.eagle3:Eagle3OneModelWorker",),
        why="the draft loop",
    ),
    HostSymbol(
        name="Eagle3 config",
        places=("llmapi.llm_args:Eagle3DecodingConfig", "llmapi.llm_args:EagleDecodingConfig"),
        members=("eagle3_layers_to_capture",),
        why="the option that names the captured layers",
    ),
)
