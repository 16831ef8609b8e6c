# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""What each TensorRT-LLM version does with each kind of MLA Eagle3 draft, as data.

Read in the sources of NVIDIA/TensorRT-LLM, not run. One row per feature: which pairs have it, what
the stock host of each version does about it, and what is left with this package's extension
(DESIGN section 7), which was run on the host doubles.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from tensorrt_llm_ext.planning import host_pairing as hp
from tensorrt_llm_ext.planning.host_pairing import KIMI_WRAPPER, Pairing

ERAS: Final = ("1.2", "1.3", "1.4")


class Level(str, Enum):
    """What a feature does to serving."""

    OK = "ok"
    CAUTION = "caution"  # it works under a condition that the text names
    BLOCKS = "blocks"  # it fails, or loads and drafts wrong tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class HostFeature:
    """One row of the matrix.

    Attributes:
        name: Stable name.
        found: Returns what this pair has, in words; None when the row is not about it.
        stock: What the stock host does, per era, in the order of `ERAS`.
        says: What happens there, in words, for all eras or one per era; completes "<found>: ...".
        extended: The same with this package's extension.
        evidence: Where it was read.
    """

    name: str
    found: Callable[[Pairing], str | None]
    stock: tuple[Level, Level, Level]
    says: str | tuple[str, str, str]
    extended: tuple[Level, Level, Level]
    evidence: str

    def text(self, index: int) -> str:
        """What happens in the era with that index in `ERAS`."""
        return self.says if isinstance(self.says, str) else self.says[index]


_OK, _CAUTION, _BLOCKS = Level.OK, Level.CAUTION, Level.BLOCKS
_ALWAYS_OK: Final = (_OK, _OK, _OK)
_NEVER: Final = (_BLOCKS, _BLOCKS, _BLOCKS)
_LOADER: Final = "modeling_speculative.Eagle3ForCausalLM.load_weights"
_LAYER: Final = "modeling_speculative.Eagle3DecoderLayer"
_MODEL: Final = "modeling_speculative.Eagle3DraftModel"


def _when(text: str, condition: Callable[[Pairing], bool]) -> Callable[[Pairing], str | None]:
    return lambda pair: text if condition(pair) else None


FEATURES: Final[tuple[HostFeature, ...]] = (
    HostFeature(
        name="target",
        found=hp.other_target,
        stock=_NEVER,
        says="only DeepSeek-V3 style targets capture the states of an MLA Eagle3 draft",
        extended=_NEVER,
        evidence="modeling_deepseekv3, modeling_kimi_k25",
    ),
    HostFeature(
        name="kimi_k25_wrapper",
        found=_when(
            f"the target is a {KIMI_WRAPPER}", lambda p: p.target.architecture == KIMI_WRAPPER
        ),
        stock=(_BLOCKS, _CAUTION, _CAUTION),
        says=(
            "1.2.x does not know the class (Unknown architecture); serve a copy that is unwrapped "
            "to DeepseekV3ForCausalLM",
            "drafting is for text only, and tags before about 1.3.0rc15 do not hand the draft "
            "through",
            "drafting is for text only",
        ),
        extended=(_BLOCKS, _CAUTION, _CAUTION),
        evidence="NVIDIA/TensorRT-LLM#11816, #12788, #14379",
    ),
    HostFeature(
        name="latent_size",
        found=hp.latent,
        stock=_NEVER,
        says="the attention kernels need 512 and 64",
        extended=_NEVER,
        evidence="checks of the C++ AttentionOp",
    ),
    HostFeature(
        name="q_lora_rank_null",
        found=_when("the draft's q_lora_rank is null", lambda p: p.draft.mla.q_lora_rank is None),
        stock=_NEVER,
        says="the fused a-projection is built with hidden_size in its place and split wrongly",
        extended=_NEVER,
        evidence="modeling_speculative.Eagle3MLAttention.__init__",
    ),
    HostFeature(
        name="layers_names",
        found=_when("tensors are called layers.0.*", lambda p: p.traits.uses_layers_names),
        stock=(_BLOCKS, _CAUTION, _OK),
        says=("only midlayer.* is loaded", "only late 1.3.0rc rename them to midlayer.*", ""),
        extended=_ALWAYS_OK,
        evidence=_LOADER,
    ),
    HostFeature(
        name="stored_prefix",
        found=lambda p: (
            f"tensors are stored with {p.traits.stored_prefix!r} in front"
            if p.traits.stored_prefix
            else None
        ),
        stock=_NEVER,
        says="the loader puts model. in front of every name again",
        extended=_ALWAYS_OK,
        evidence=_LOADER,
    ),
    HostFeature(
        name="eagle31_flags",
        found=hp.flags,
        stock=(_BLOCKS, _CAUTION, _OK),
        says=("they are ignored, and wrong tokens drafted", "known since June 2026 only", ""),
        extended=_ALWAYS_OK,
        evidence="NVIDIA/TensorRT-LLM#14988",
    ),
    HostFeature(
        name="norm_before_residual",
        found=_when("the draft sets norm_before_residual", lambda p: p.draft.norm_before_residual),
        stock=_NEVER,
        says="the residual is always taken before hidden_norm",
        extended=_ALWAYS_OK,
        evidence=f"{_LAYER}.forward",
    ),
    HostFeature(
        name="reduced_vocabulary",
        found=hp.reduced_vocabulary,
        stock=_NEVER,
        says="d2t makes the DeepSeek loader copy the whole draft by its own names, which fails; "
        "whether the newest does is not verified",
        extended=_ALWAYS_OK,
        evidence="modeling_deepseekv3.DeepseekV3WeightLoader.load_weights",
    ),
    HostFeature(
        name="layers",
        found=hp.layers,
        stock=_NEVER,
        says="the MLA path looks for hidden_norm in every layer, which later layers do not have",
        extended=_ALWAYS_OK,
        evidence=_LAYER,
    ),
    HostFeature(
        name="moe_draft",
        found=_when("the draft's MLP is a mixture of experts", lambda p: p.traits.has_experts),
        stock=_NEVER,
        says="the draft's MLP is always dense",
        extended=_NEVER,
        evidence=_LAYER,
    ),
    HostFeature(
        name="capture_ids",
        found=hp.ids,
        stock=(_CAUTION, _CAUTION, _CAUTION),
        says="no version reads the draft's ids; eagle3_layers_to_capture must be given, as the "
        "generated config does",
        extended=_ALWAYS_OK,
        evidence="speculative.eagle3.Eagle3OneModelSpecMetadata",
    ),
    HostFeature(
        name="embeddings_captured",
        found=_when("the draft captures the bare embeddings", lambda p: 0 in p.draft.boundaries),
        stock=_NEVER,
        says="states are captured after layers, and -1 is the state after the final norm",
        extended=_NEVER,
        evidence="speculative.eagle3.Eagle3OneModelSpecMetadata",
    ),
    HostFeature(
        name="one_captured_layer",
        found=hp.single,
        stock=_NEVER,
        says="fc exists only for more than one captured layer; the tensor is ignored silently",
        extended=_ALWAYS_OK,
        evidence=_MODEL,
    ),
    HostFeature(
        name="square_fc",
        found=hp.square_fc,
        stock=_NEVER,
        says="the test by width skips fc silently",
        extended=_ALWAYS_OK,
        evidence="modeling_speculative.Eagle3ForCausalLM.apply_eagle3_fc",
    ),
    HostFeature(
        name="hidden_size_mismatch",
        found=hp.narrow,
        stock=(_CAUTION, _CAUTION, _CAUTION),
        says="config.json must say target_hidden_size",
        extended=_ALWAYS_OK,
        evidence=_MODEL,
    ),
    HostFeature(
        name="hidden_size_mismatch_shared",
        found=hp.narrow_without_own,
        stock=_NEVER,
        says="the target's, of another width, is used in its place",
        extended=_NEVER,
        evidence="modeling_speculative.Eagle3ForCausalLM.load_weights_from_target_model",
    ),
    HostFeature(
        name="own_embedding",
        found=_when("the draft brings its own embed_tokens", hp.own_embedding),
        stock=(_CAUTION, _CAUTION, _CAUTION),
        says="it is ignored and the target's is used: harmless only if both are equal",
        extended=_ALWAYS_OK,
        evidence="modeling_speculative.Eagle3ForCausalLM.load_weights_from_target_model",
    ),
    HostFeature(
        name="null_target_hidden_size",
        found=_when(
            "config.json has target_hidden_size: null",
            lambda p: "target_hidden_size" in p.traits.null_keys,
        ),
        stock=_NEVER,
        says="the key is tested for presence, and null is multiplied",
        extended=_ALWAYS_OK,
        evidence=_MODEL,
    ),
    HostFeature(
        name="no_max_position_embeddings",
        found=_when(
            "config.json has no max_position_embeddings",
            lambda p: not p.traits.has_max_position_embeddings,
        ),
        stock=(_CAUTION, _CAUTION, _CAUTION),
        says="it is read unconditionally; whether a default takes its place is not verified",
        extended=_ALWAYS_OK,
        evidence="modeling_speculative.Eagle3MLAttention",
    ),
    HostFeature(
        name="model_type_kimi_k2",
        found=_when("model_type is kimi_k2", lambda p: p.traits.model_type == "kimi_k2"),
        stock=(_CAUTION, _CAUTION, _OK),
        says="the transformers of that version may not read such a config without code (not "
        "verified)",
        extended=_ALWAYS_OK,
        evidence="model_config.ModelConfig.from_pretrained",
    ),
    HostFeature(
        name="rope_without_yarn",
        found=_when("the draft's rope is not scaled", lambda p: p.draft.mla.rope.yarn is None),
        stock=(_CAUTION, _CAUTION, _CAUTION),
        says="the draft's attention is always built as yarn, which at scale 1 equals plain rope "
        "(inferred)",
        extended=_ALWAYS_OK,
        evidence="modeling_speculative.Eagle3MLAttention",
    ),
    HostFeature(
        name="nvfp4_draft",
        found=_when("the draft is NVFP4", lambda p: p.is_nvfp4),
        stock=(_BLOCKS, _BLOCKS, _CAUTION),
        says="as shipped it does not work end to end, or is fragile: exclude names, the target's "
        "excludes applied to the draft, the route of kv_b_proj",
        extended=_ALWAYS_OK,
        evidence="modeling_utils.apply_quant_config_exclude_modules, DeepseekV3WeightLoader",
    ),
    HostFeature(
        name="nvfp4_fc",
        found=hp.fc_quantized,
        stock=(_BLOCKS, _CAUTION, _OK),
        says=("fc is built without a quantization config", "only late 1.3.0rc quantize it", ""),
        extended=_ALWAYS_OK,
        evidence=_MODEL,
    ),
    HostFeature(
        name="nvfp4_fc_not_excluded",
        found=hp.fc_not_excluded,
        stock=(_OK, _CAUTION, _BLOCKS),
        says="where fc takes the draft's quantization config it is built quantized, and the BF16 "
        "tensor does not fit",
        extended=_ALWAYS_OK,
        evidence=_MODEL,
    ),
    HostFeature(
        name="kv_b_not_excluded",
        found=hp.kv_b_not_excluded,
        stock=_NEVER,
        says="kv_b_proj is built quantized although its tensor is not",
        extended=_ALWAYS_OK,
        evidence="QuantConfig.is_module_excluded_from_quantization",
    ),
    HostFeature(
        name="kv_b_bare_exclude",
        found=hp.kv_b_bare,
        stock=(_BLOCKS, _BLOCKS, _CAUTION),
        says="the loader then takes the FP8 route and asks for kv_b_proj.weight_scale_inv",
        extended=_ALWAYS_OK,
        evidence="modeling_deepseekv3.DeepseekV3WeightLoader",
    ),
    HostFeature(
        name="kv_b_quantized",
        found=hp.kv_b_quantized,
        stock=_NEVER,
        says="it is absorbed into two batched products, which are floating point",
        extended=_NEVER,
        evidence="MLA.create_weights",
    ),
    HostFeature(
        name="quantized_head",
        found=hp.head_quantized,
        stock=(_BLOCKS, _BLOCKS, _CAUTION),
        says="LMHead takes no quantization config; only the newest does",
        extended=_ALWAYS_OK,
        evidence="modules.embedding.LMHead",
    ),
    HostFeature(
        name="other_quantization",
        found=hp.other_quant,
        stock=(_CAUTION, _CAUTION, _CAUTION),
        says="no source was read for an MLA draft in this format",
        extended=(_CAUTION, _CAUTION, _CAUTION),
        evidence="none",
    ),
    HostFeature(
        name="hopper_block_table",
        found=lambda p: "on Hopper (FlashMLA)",
        stock=(_CAUTION, _OK, _OK),
        says="the draft loop does not reorder the block table, so drafts of new requests are "
        "suspect (inferred)",
        extended=(_CAUTION, _OK, _OK),
        evidence="_prepare_flash_mla_generation_layout, absent in 1.2.x",
    ),
)
