# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Checks of what kind of model a draft is and how its config is written: V2, V3, V7 and V29."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from tensorrt_llm_ext.checkpoints.checks.base import CheckContext, Finding
from tensorrt_llm_ext.checkpoints.checks.examination import Examination
from tensorrt_llm_ext.checkpoints.checks.rules import check, info, passed
from tensorrt_llm_ext.configs.draft_tensors import DraftTensors
from tensorrt_llm_ext.errors import ConfigError

_MOE_KEYS: Final = (
    "n_routed_experts",
    "n_shared_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "moe_layer_freq",
    "first_k_dense_replace",
)
# Sections where null says something, as "not quantized".
_NULL_IS_A_VALUE: Final = ("quantization_config",)
_MAX_LISTED: Final = 8
_MTP_KEYS: Final = ("num_nextn_predict_layers", "num_mtp_layers")


@check("V2", "MLA attention")
def attention_kind(ctx: CheckContext, found: Examination) -> Iterable[Finding]:
    """The draft is MLA by its tensors, and its config agrees."""
    DraftTensors.from_shapes(ctx.draft.shapes).check_kind()
    rank = ctx.draft.config.get("kv_lora_rank")
    if not rank:
        raise ConfigError(
            "The draft's tensors are MLA (kv_a_proj_with_mqa), but config.json has no "
            "kv_lora_rank. Add the rank the draft was trained with: a host takes it for an MHA "
            "draft otherwise.",
            check="V2",
        )
    names = ctx.draft.raw.get("architectures")
    names = names if isinstance(names, list) and names else [names]
    yield passed(
        "V2",
        f"MLA by its tensors, kv_lora_rank {rank}; the architecture string {names[0]!r} decides "
        "nothing.",
        kv_lora_rank=rank,
        architectures=list(names),
    )


@check("V3", "config.json")
def config_is_json(ctx: CheckContext, found: Examination) -> Iterable[Finding]:
    """config.json was read as plain JSON; says which spellings were brought into one."""
    notes = list(_spellings(ctx.draft.raw))
    if ctx.target is not None:
        notes += [f"target: {note}" for note in _spellings(ctx.target.raw)]
    if notes:
        yield info("V3", f"Read as JSON; {'; '.join(notes)}.", notes=notes)
    else:
        yield passed("V3", "Read as JSON; nothing had to be brought into another form.")


def _spellings(raw: Mapping[str, Any]) -> Iterator[str]:
    text = raw.get("text_config")
    sections = {"": raw}
    if isinstance(text, Mapping):
        yield "text_config is the model"
        sections["text_config: "] = text
    for name in ("eagle_config", "transformer_layer_config", "speculators_config"):
        if isinstance(raw.get(name), Mapping):
            yield f"{name} merged with the top"
    for place, section in sections.items():
        present = [key for key in ("rope_scaling", "rope_parameters") if section.get(key)]
        if present:
            yield f"{place}rotary settings from {' and '.join(present)}"
        for key in _MTP_KEYS:
            if section.get(key) == 0:
                yield f"{place}{key} 0 means none"


@check("V7", "dense layers")
def dense_by_tensors(ctx: CheckContext, found: Examination) -> Iterable[Finding]:
    """Tensors decide that the MLP is dense; keys inherited from a MoE target are noise."""
    DraftTensors.from_shapes(ctx.draft.shapes).check_kind()
    inherited = {key: ctx.draft.config[key] for key in _MOE_KEYS if ctx.draft.config.get(key)}
    if not inherited:
        yield passed("V7", "Dense by its tensors; config.json says nothing else.")
        return
    listing = ", ".join(f"{key}={value}" for key, value in inherited.items())
    yield info(
        "V7",
        f"Dense by its tensors; keys inherited from the target are ignored: {listing}.",
        ignored=inherited,
    )


@check("V29", "null keys")
def null_keys(ctx: CheckContext, found: Examination) -> Iterable[Finding]:
    """Keys that are null are removed: engines ask whether a key is there, and then compute."""
    nulls = sorted(_nulls(ctx.draft.raw, ""))
    if not nulls:
        yield passed("V29", "No key of config.json is null.")
        return
    more = f" and {len(nulls) - _MAX_LISTED} more" if len(nulls) > _MAX_LISTED else ""
    listing = f"{', '.join(nulls[:_MAX_LISTED])}{more}"
    yield info(
        "V29",
        f"{listing} {'is' if len(nulls) == 1 else 'are'} null, which is taken as absent. "
        "A host tests for the key and fails on the value: `trtllm-ext convert` leaves such keys "
        "out.",
        null_keys=nulls,
    )


def _nulls(values: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for key, value in values.items():
        if value is None:
            yield f"{prefix}{key}"
        elif isinstance(value, Mapping) and key not in _NULL_IS_A_VALUE:
            yield from _nulls(value, f"{prefix}{key}.")
