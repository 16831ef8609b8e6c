# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""What each program that loads or trains MLA Eagle3 drafts wants of their files, as data.

Read in the sources of the programs, not run, except vLLM. Two kinds of misfit are kept apart: what
the receiver's files cannot say is refused (the draft would be another one), what the receiver's
code does not run, or runs differently, is a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from tensorrt_llm_ext.configs.draft import DraftConfig
from tensorrt_llm_ext.configs.quant import QuantConfig
from tensorrt_llm_ext.errors import ConfigError, unknown_key_error


class IdStyle(str, Enum):
    """How a receiver reads auxiliary layer ids."""

    AFTER_LAYER = "after-layer ids"
    BOUNDARY = "boundaries"
    # SGLang adds one to all ids if, and only if, the first is 1.
    SGLANG = "after-layer ids if the first is 1, else boundaries"


class Embedding(str, Enum):
    """What a receiver does with a draft's own embedding."""

    OWN = "used"
    TARGET = "replaced by the target's where the widths are equal"
    REFUSED = "not part of the layout"


@dataclass(frozen=True, kw_only=True, slots=True)
class Limit:
    """Something that the receiver's code does not do.

    Attributes:
        applies: Whether a draft needs it.
        message: What happens, and what to do.
    """

    applies: Callable[[DraftConfig, QuantConfig], bool]
    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Receiver:
    """One program and the files that it wants.

    Attributes:
        name: What `--to` calls it.
        title: What people call it.
        architecture: The class that it looks up in `architectures`.
        layer_prefix: Prefix of the only decoder layer.
        layers_prefix: Prefix of layer {index} where there are several.
        later_norm: Name of the input norm of layers after the first.
        id_style: How it reads ids in `eagle_config`.
        top_level_ids: Whether it looks for the ids at the top of config.json too.
        embedding: What it does with the draft's own embedding.
        needs_lm_head: Whether a missing head is not taken from the target.
        has_t2d: Whether `t2d` may be in the files.
        keeps_draft_vocab_size: Whether a draft without a head of its own may say
            `draft_vocab_size`; otherwise the receiver would expect a head.
        eagle_config: Further keys that it expects in `eagle_config`.
        norm_output_config: Further keys there for a draft with norm_output.
        module_root: What precedes a module's name (but `lm_head`) where it matches quantization
            metadata; None when its names cannot be told from the files, so that patterns are due.
        fuses_gate_up: Whether it matches the names of its fused projections, not of their parts.
        quantized_head: What it does with a quantized head, where it does not simply run it.
        limits: What its code does not do.
        notes: What the user has to do besides, with {after_layers} and {boundaries}.
    """

    name: str
    title: str
    architecture: str
    layer_prefix: str
    layers_prefix: str
    later_norm: str = "input_layernorm"
    id_style: IdStyle
    top_level_ids: bool = False
    embedding: Embedding = Embedding.OWN
    needs_lm_head: bool = False
    has_t2d: bool = True
    keeps_draft_vocab_size: bool = True
    eagle_config: Mapping[str, object] = field(default_factory=dict)
    norm_output_config: Mapping[str, object] = field(default_factory=dict)
    module_root: str | None = ""
    fuses_gate_up: bool = True
    quantized_head: str = ""
    limits: tuple[Limit, ...] = ()
    notes: tuple[str, ...] = ()

    def layer_ids(self, boundaries: Sequence[int]) -> tuple[int, ...]:
        """Returns the ids that this receiver reads as these boundaries.

        Args:
            boundaries: Ascending.

        Raises:
            ConfigError: If no ids mean that to this receiver.
        """
        if boundaries[0] < 1:
            raise ConfigError(
                f"Boundaries {list(boundaries)} begin with 0, the bare token embeddings, which "
                f"{self.title} cannot be told to capture in a config.json. No conversion is "
                "possible; if the ids are after-layer ids, give the boundaries with --boundaries.",
                check="V13",
            )
        after = tuple(b - 1 for b in boundaries)
        if self.id_style is IdStyle.AFTER_LAYER:
            return after
        if self.id_style is IdStyle.BOUNDARY:
            return tuple(boundaries)
        if boundaries[0] == 1:
            raise ConfigError(
                f"Boundaries {list(boundaries)} cannot be written for SGLang: it adds one to all "
                "ids when the first is 1, so that boundary 1 as the first has no spelling. Serve "
                "this draft with another engine.",
                check="V10",
            )
        # Ids that begin with 1 mean the same to every version; older ones always added one.
        return after if after[0] == 1 else tuple(boundaries)


def _reduced(draft: DraftConfig, _quant: QuantConfig) -> bool:
    return draft.draft_vocab_size != draft.vocab_size


def _three_one(draft: DraftConfig, _quant: QuantConfig) -> bool:
    return draft.fc_norm or draft.norm_output


def _norm_before_fc(draft: DraftConfig, _quant: QuantConfig) -> bool:
    return draft.norm_before_fc


def _norm_before_residual(draft: DraftConfig, _quant: QuantConfig) -> bool:
    return draft.norm_before_residual


def _full_rank_query(draft: DraftConfig, _quant: QuantConfig) -> bool:
    return draft.mla.q_lora_rank is None


def _several_layers(draft: DraftConfig, _quant: QuantConfig) -> bool:
    return draft.num_layers > 1


def _quantized(_draft: DraftConfig, quant: QuantConfig) -> bool:
    return quant.is_quantized


def _nvfp4(_draft: DraftConfig, quant: QuantConfig) -> bool:
    return quant.algo is not None and ("FP4" in quant.algo or quant.algo == "MIXED_PRECISION")


def _mixed(_draft: DraftConfig, quant: QuantConfig) -> bool:
    return quant.algo == "MIXED_PRECISION"


def _no_head(draft: DraftConfig, _quant: QuantConfig) -> bool:
    return not draft.has_own_lm_head


def _one_captured(draft: DraftConfig, _quant: QuantConfig) -> bool:
    return draft.num_captured == 1


_EAGLE_FLAGS: Final[Mapping[str, object]] = {
    "use_aux_hidden_state": True,
    "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True,
    "use_mtp_layernorm": False,
}
_IGNORED_BEFORE_RESIDUAL: Final = (
    "norm_before_residual is not read: the residual would be the un-normed state, at a silent cost "
    "in acceptance"
)
_FLOAT_HEAD: Final = "its draft class has a float lm_head, and does not load a quantized one"

_TRTLLM: Final = Receiver(
    name="trtllm",
    title="TensorRT-LLM",
    architecture="Eagle3DeepSeekV3ForCausalLM",
    layer_prefix="midlayer.",
    layers_prefix="midlayer.{index}.",
    later_norm="hidden_norm",
    id_style=IdStyle.AFTER_LAYER,
    embedding=Embedding.TARGET,
    eagle_config={**_EAGLE_FLAGS, "next_layer_regular": True},
    norm_output_config={"return_hidden_post_norm": True},
    module_root="model.",
    quantized_head="only its newest version can load a quantized lm_head; serve others with this "
    "extension",
    limits=(
        Limit(
            applies=_reduced,
            message="the stock loader cannot load d2t beside MLA; serve it with this extension",
        ),
        Limit(applies=_norm_before_residual, message=_IGNORED_BEFORE_RESIDUAL),
        Limit(
            applies=lambda draft, quant: _three_one(draft, quant) or draft.norm_before_fc,
            message="fc_norm, norm_output and norm_before_fc are ignored, or refused, before "
            "late 1.3; serve older versions with this extension",
        ),
        Limit(applies=_full_rank_query, message="the stock draft class needs q_lora_rank"),
        Limit(
            applies=_one_captured,
            message="the stock draft class builds no fc for a single captured layer",
        ),
        Limit(
            applies=_quantized,
            message="a quantized MLA draft does not load in the stock releases as shipped; serve "
            "it with this extension",
        ),
    ),
    notes=(
        "TensorRT-LLM does not read layer ids from config.json: set "
        "speculative_config.eagle3_layers_to_capture to {after_layers} (`trtllm-ext config` "
        "writes it).",
    ),
)
_VLLM: Final = Receiver(
    name="vllm",
    title="vLLM",
    architecture="Eagle3DeepseekV2ForCausalLM",
    layer_prefix="layers.0.",
    layers_prefix="layers.{index}.",
    id_style=IdStyle.BOUNDARY,
    top_level_ids=True,
    eagle_config=_EAGLE_FLAGS,
    module_root=None,
    quantized_head=_FLOAT_HEAD,
    limits=(
        Limit(
            applies=_norm_before_fc,
            message="norm_before_fc is not implemented in its MLA draft class",
        ),
        Limit(
            applies=_mixed,
            message="it numbers the draft's layers after the target's, so that per-module formats "
            "of MIXED_PRECISION are not found",
        ),
    ),
)
_SGLANG: Final = Receiver(
    name="sglang",
    title="SGLang",
    architecture="Eagle3DeepseekV2ForCausalLM",
    layer_prefix="midlayer.",
    layers_prefix="midlayer.{index}.",
    id_style=IdStyle.SGLANG,
    embedding=Embedding.TARGET,
    keeps_draft_vocab_size=False,
    eagle_config=_EAGLE_FLAGS,
    module_root=None,
    quantized_head=_FLOAT_HEAD,
    limits=(
        Limit(
            applies=lambda draft, _quant: draft.boundaries[0] != 2,
            message="releases before 2026-05-16 add one to all layer ids; use a newer one",
        ),
        Limit(applies=_several_layers, message="its MLA draft class has exactly one layer"),
        Limit(applies=_full_rank_query, message="its MLA draft class needs q_lora_rank"),
        Limit(applies=_norm_before_fc, message="norm_before_fc is not implemented for MLA drafts"),
        Limit(applies=_norm_before_residual, message=_IGNORED_BEFORE_RESIDUAL),
        Limit(
            applies=_nvfp4,
            message="it drops NVFP4 settings for this class and would read the packed weights as "
            "bf16; convert the bf16 draft instead",
        ),
    ),
)
_SPECFORGE: Final = Receiver(
    name="specforge",
    title="SpecForge",
    architecture="DeepseekV3ForCausalLMEagle3",
    layer_prefix="midlayer.",
    layers_prefix="midlayer.{index}.",
    id_style=IdStyle.AFTER_LAYER,
    eagle_config=_EAGLE_FLAGS,
    fuses_gate_up=False,
    quantized_head=_FLOAT_HEAD,
    limits=(
        Limit(
            applies=lambda _draft, _quant: True,
            message="its main branch has no MLA draft class; TorchSpec and the branches that have "
            "one read these names",
        ),
        Limit(applies=_several_layers, message="its draft classes have exactly one layer"),
        Limit(applies=_norm_before_residual, message=_IGNORED_BEFORE_RESIDUAL),
        Limit(applies=_no_head, message="it trains a head of its own and expects lm_head.weight"),
        Limit(applies=_quantized, message="it trains float weights and does not read scales"),
    ),
)
_MODELOPT: Final = Receiver(
    name="modelopt",
    title="NVIDIA ModelOpt",
    architecture="Eagle3DeepseekV2ForCausalLM",
    layer_prefix="layers.0.",
    layers_prefix="layers.{index}.",
    id_style=IdStyle.AFTER_LAYER,
    embedding=Embedding.REFUSED,
    needs_lm_head=True,
    has_t2d=False,
    eagle_config={
        **_EAGLE_FLAGS,
        "next_layer_regular": True,
        "parallel_draft_step": 1,
        "parallel_draft_heads_num_layers": 0,
    },
    fuses_gate_up=False,
    limits=(
        Limit(
            applies=_three_one,
            message="its draft has neither fc_norm nor norm_output; training there would change "
            "the draft",
        ),
        Limit(applies=_norm_before_fc, message="its draft has no norm before fc"),
        Limit(applies=_norm_before_residual, message=_IGNORED_BEFORE_RESIDUAL),
        Limit(applies=_full_rank_query, message="its exporter requires q_a_proj"),
    ),
)
RECEIVERS: Final[Mapping[str, Receiver]] = {
    receiver.name: receiver for receiver in (_TRTLLM, _VLLM, _SGLANG, _SPECFORGE, _MODELOPT)
}


def receiver_named(name: str) -> Receiver:
    """Returns a receiver.

    Raises:
        ConfigError: If there is none of that name.
    """
    if name not in RECEIVERS:
        raise unknown_key_error("--to", name, RECEIVERS)
    return RECEIVERS[name]


def limits_of(receiver: Receiver, draft: DraftConfig, quant: QuantConfig) -> tuple[str, ...]:
    """Returns what the receiver's code does not do for this draft, one sentence each."""
    return tuple(
        f"{receiver.title}: {limit.message}."
        for limit in receiver.limits
        if limit.applies(draft, quant)
    )
