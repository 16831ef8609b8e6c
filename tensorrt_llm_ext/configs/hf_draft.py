# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Reads an MLA Eagle3 draft from its config.json and the shapes of its tensors.

Public configs say little and sometimes say it twice: flags stand at the top or in `eagle_config`,
and what a draft has (fc, embedding, head, vocabulary map) is decided by its tensors.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tensorrt_llm_ext.configs.boundaries import (
    EXPLICIT_KEY,
    BoundaryEvidence,
    resolve_boundaries,
)
from tensorrt_llm_ext.configs.draft import DraftConfig
from tensorrt_llm_ext.configs.draft_tensors import DraftTensors, mha_draft_error
from tensorrt_llm_ext.configs.hf_keys import HFKeys, findings_of
from tensorrt_llm_ext.configs.hf_rope import rope_config_from_hf
from tensorrt_llm_ext.configs.hf_target import MAX_LAYERS, mla_config_from_hf
from tensorrt_llm_ext.errors import ConfigError

_logger = logging.getLogger(__name__)

IDENTITY_D2T_KEY: Final = "trtllm_ext_identity_d2t"
# Keys of `eagle_config` that may also stand at the top of the file.
_IDS_KEYS: Final = ("eagle_aux_hidden_state_layer_ids", "layer_ids")
_AFTER_KEY: Final = "aux_hidden_states_layer_ids"
# Other names of a flag, from older engines.
_FLAG_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "fc_norm": ("fc_norm", "use_aux_norm"),
    "norm_output": ("norm_output", "return_hidden_post_norm"),
    "norm_before_fc": ("norm_before_fc",),
    "norm_before_residual": ("norm_before_residual",),
}
# What transformers gives DeepSeek-V3 style configs that do not say it.
_DEFAULT_LENGTH: Final = 4096
# The check that a contradiction about a flag belongs to.
_FLAG_CHECKS: Final[Mapping[str, str]] = {
    "fc_norm": "V18",
    "norm_output": "V19",
    "norm_before_fc": "V20",
    "norm_before_residual": "V3",
}
# Present value, other than these: another function than the one we compute.
_ONLY: Final[Mapping[str, tuple[tuple[Any, ...], str]]] = {
    "hidden_act": (("silu", "swish"), "the MLP is SwiGLU"),
    "attention_bias": ((False,), "MLA projections have no bias here"),
    "mlp_bias": ((False,), "MLPs have no bias here"),
    "bias": ((False,), "fc has no bias here"),
    "fc_bias": ((False,), "fc has no bias here"),
    "mla_use_nope": ((False,), "MLA without rotation (Kimi-K3 style) is another draft"),
    "mla_use_output_gate": ((False,), "gated MLA (Kimi-K3 style) is another draft"),
    "use_aux_hidden_state": ((True,), "the draft must read captured states (Eagle3)"),
    "use_input_layernorm_in_first_layer": ((True,), "the embedding is normed before attention"),
    "use_last_layernorm": ((True,), "the state is normed before the head"),
    "use_mtp_layernorm": ((False,), "the embedding and the state have one norm each"),
    "eh_proj_before_attn": ((False,), "embedding and state enter attention side by side"),
    "parallel_draft_step": ((1,), "one token is drafted per pass"),
}
# Inherited from targets or of no meaning at inference: a draft's layers are dense, by its tensors.
_HARMLESS_WORDS: Final = (
    "n_routed_experts n_shared_experts num_experts_per_tok moe_intermediate_size moe_layer_freq "
    "first_k_dense_replace n_group topk_group topk_method scoring_func norm_topk_prob "
    "routed_scaling_factor num_nextn_predict_layers num_mtp_layers bos_token_id eos_token_id "
    "parallel_draft_heads_num_layers has_lm_head embed_requires_grad ttt_steps eagle_config "
    "next_layer_regular quantization_config max_position_embeddings tie_word_embeddings "
    f"{IDENTITY_D2T_KEY} speculators_config speculators_model_type speculators_version"
)
_HARMLESS: Final = frozenset(_HARMLESS_WORDS.split())


def draft_config_from_hf(
    config: Mapping[str, Any],
    *,
    tensors: Mapping[str, Sequence[int]] | None = None,
    num_target_layers: int | None = None,
    target_hidden_size: int | None = None,
    boundaries: Sequence[int] | None = None,
    producer: BoundaryEvidence | None = None,
) -> DraftConfig:
    """Reads a draft's config.json.

    Args:
        config: The parsed config.json.
        tensors: Shape of each tensor by canonical name (`checkpoints.names`). When None, the config
            is read alone: shapes are not cross-checked, and the draft is taken to have an fc, a
            head of its own, and a vocabulary map iff `draft_vocab_size` is smaller.
        num_target_layers: Number of target layers, which decides what default layer ids mean.
        target_hidden_size: Width of the target, where neither config nor tensors say it.
        boundaries: The user's override of the captured boundaries.
        producer: Marks of the program that wrote the draft: `convention`, `fingerprint`, `weak` and
            `against` say what its layer ids mean; the rest is read here.

    Returns:
        The draft; `boundaries_evidence` says how its captured layers were resolved.

    Raises:
        ConfigError: If a key is missing or of the wrong type, or evidence contradicts itself.
        UnsupportedError: If the draft is no MLA draft, or computes something that we do not.
    """
    top = HFKeys(config, "config.json")
    eagle = top.section("eagle_config") or HFKeys({}, "config.json: eagle_config")
    found = DraftTensors.from_shapes(tensors) if tensors is not None else None
    _check_kind(top, eagle, found)
    num_layers = top.integer("num_hidden_layers", minimum=1, maximum=MAX_LAYERS)
    _check_layers(eagle, top, num_layers)
    resolved, reason = resolve_boundaries(
        _evidence(top, eagle, producer or BoundaryEvidence()),
        num_target_layers=num_target_layers,
        override=boundaries,
    )
    hidden_size = top.integer("hidden_size", minimum=1)
    vocab_size = top.integer("vocab_size", minimum=1)
    draft_vocab_size = top.integer("draft_vocab_size", vocab_size, minimum=1)
    flags = {
        name: _flag(top, eagle, aliases, _FLAG_CHECKS[name])
        for name, aliases in _FLAG_NAMES.items()
    }
    with findings_of("V15"):
        eps = top.positive_number("rms_norm_eps")
    with findings_of("V16"):
        rope = rope_config_from_hf(top, default_length=_DEFAULT_LENGTH)
    result = DraftConfig(
        hidden_size=hidden_size,
        target_hidden_size=_target_width(top, found, len(resolved), target_hidden_size),
        num_layers=num_layers,
        intermediate_size=top.integer("intermediate_size", minimum=1),
        vocab_size=vocab_size,
        draft_vocab_size=draft_vocab_size,
        rms_norm_eps=eps,
        mla=mla_config_from_hf(top, rope, rms_norm_eps=eps),
        boundaries=resolved,
        has_fc=found.has_fc if found else True,
        has_own_embedding=found.has_embedding if found else False,
        has_own_lm_head=found.has_lm_head if found else True,
        has_d2t=found.has_d2t if found else draft_vocab_size < vocab_size,
        boundaries_evidence=reason,
        **flags,
    )
    _check_counts(top, result)
    if found is not None:
        found.check(result, tied=top.boolean("tie_word_embeddings", False))
    doubt = half_of_eagle_3_1(result)
    if doubt is not None:
        _logger.warning("%s", doubt)
    top.warn_unknown(_HARMLESS)
    eagle.warn_unknown(_HARMLESS)
    return result


def half_of_eagle_3_1(draft: DraftConfig) -> str | None:
    """Returns a warning (V19) when only one of EAGLE-3.1's two flags is set, else None."""
    if draft.fc_norm == draft.norm_output:
        return None
    return (
        f"The draft has fc_norm={draft.fc_norm} but norm_output={draft.norm_output}; EAGLE-3.1 "
        "drafts have both. No tensor shows norm_output: if acceptance falls from the second draft "
        "token on, it is wrong; `trtllm-ext canary` measures both."
    )


def _check_kind(top: HFKeys, eagle: HFKeys, found: DraftTensors | None) -> None:
    """Refuses drafts that are no MLA Eagle3 draft, or that vary it in a way we do not compute."""
    if found is not None:
        found.check_kind()
    elif not top.has("kv_lora_rank"):
        raise mha_draft_error("its config.json has no kv_lora_rank")
    with findings_of("V2"):
        _check_function(top, eagle)


def _check_function(top: HFKeys, eagle: HFKeys) -> None:
    for key, (allowed, reason) in _ONLY.items():
        top.require_value(key, allowed, reason)
        eagle.require_value(key, allowed, reason)


def _check_layers(eagle: HFKeys, top: HFKeys, num_layers: int) -> None:
    if num_layers == 1:
        return
    for section in (top, eagle):
        section.require_value(
            "next_layer_regular", (True,), "layers after the first read the residual stream alone"
        )


def _merged(top: HFKeys, eagle: HFKeys, names: Sequence[str]) -> dict[str, Any]:
    """Every present spelling of a setting, as {where: value}; nested ones first."""
    return {
        f"{section.source}: {name}": section.raw(name)
        for section in (eagle, top)
        for name in names
        if section.has(name)
    }


def _flag(top: HFKeys, eagle: HFKeys, names: Sequence[str], check: str) -> bool:
    values = _merged(top, eagle, names)
    for where, value in values.items():
        if not isinstance(value, bool):
            raise ConfigError(f"{where} must be true or false, got {value!r}.", check=check)
    if len(set(values.values())) > 1:
        listing = ", ".join(f"{where}={value}" for where, value in values.items())
        raise ConfigError(
            f"The draft's config contradicts itself: {listing}. Keep the value the draft was "
            "trained with; a wrong one costs acceptance silently.",
            check=check,
        )
    return next(iter(values.values()), False)


def _evidence(top: HFKeys, eagle: HFKeys, producer: BoundaryEvidence) -> BoundaryEvidence:
    spellings: dict[str, tuple[int, ...]] = {}
    for section in (eagle, top):
        for key in _IDS_KEYS:
            ids = section.integers(key)
            if ids is not None:
                spellings[f"{section.source}: {key}"] = ids
    # AngelSlim writes after-layer ids under this name, beside the boundaries.
    after = top.integers(_AFTER_KEY) or eagle.integers(_AFTER_KEY)
    if after is not None and not spellings:
        spellings[f"config.json: {_AFTER_KEY}"] = after
    if len(set(spellings.values())) > 1:
        listing = ", ".join(f"{where}={list(ids)}" for where, ids in spellings.items())
        raise ConfigError(
            f"The draft's config names different captured layers: {listing}. Keep one of them.",
            check="V9",
        )
    if after is not None and spellings:
        ids = next(iter(spellings.values()))
        if after not in (ids, tuple(i - 1 for i in ids)):
            raise ConfigError(
                f"config.json: {_AFTER_KEY} {list(after)} are neither equal to nor "
                f"one below {next(iter(spellings))} {list(ids)}. Keep one of them.",
                check="V10",
            )
    where, ids_or_none = next(iter(spellings.items()), ("", None))
    return dataclasses.replace(
        producer,
        ids=ids_or_none,
        ids_key=where.removeprefix("config.json: "),
        explicit=_explicit(top, eagle),
    )


def _explicit(top: HFKeys, eagle: HFKeys) -> tuple[int, ...] | None:
    found = [ids for s in (eagle, top) if (ids := s.integers(EXPLICIT_KEY)) is not None]
    if len(set(found)) > 1:
        raise ConfigError(
            f"{EXPLICIT_KEY} is given twice with different values: {[list(f) for f in found]}. "
            "Keep the right one.",
            check="V10",
        )
    return found[0] if found else None


def _target_width(
    top: HFKeys, found: DraftTensors | None, num_captured: int, given: int | None
) -> int:
    """Target width: from the config, from fc's columns, from the caller, or the draft's own."""
    from_config = top.optional_integer("target_hidden_size", minimum=1)
    columns = found.fc_columns if found is not None else None
    from_fc = columns // num_captured if columns and columns % num_captured == 0 else None
    if columns is not None and (
        from_fc is None or (from_config is not None and from_config != from_fc)
    ):
        raise ConfigError(
            f"fc.weight has {columns} columns, which is not {num_captured} captured layers times "
            f"target_hidden_size {from_config or 'of any integer width'}. Either the number of "
            "captured layers or target_hidden_size is wrong.",
            check="V14",
        )
    return from_config or from_fc or given or top.integer("hidden_size", minimum=1)


def _check_counts(top: HFKeys, draft: DraftConfig) -> None:
    declared = top.optional_integer("num_aux_hidden_states", minimum=1)
    if declared is not None and declared != draft.num_captured:
        raise ConfigError(
            f"config.json: num_aux_hidden_states is {declared}, but {draft.num_captured} layers "
            f"are captured: boundaries {list(draft.boundaries)}. Correct whichever is wrong.",
            check="V14",
        )
    if draft.draft_vocab_size > draft.vocab_size:
        raise ConfigError(
            f"config.json: draft_vocab_size ({draft.draft_vocab_size}) exceeds vocab_size "
            f"({draft.vocab_size}); a draft's vocabulary is a subset of its target's. Correct the "
            "number, or choose a draft made for this vocabulary.",
            check="V8",
        )
