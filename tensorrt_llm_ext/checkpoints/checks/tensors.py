# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Checks of tensor names and shapes: V4 to V6."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from tensorrt_llm_ext.checkpoints.checks.base import CheckContext, Finding
from tensorrt_llm_ext.checkpoints.checks.examination import DRAFT, Examination
from tensorrt_llm_ext.checkpoints.checks.rules import check, error, info, passed
from tensorrt_llm_ext.checkpoints.names import shape_keys
from tensorrt_llm_ext.checkpoints.normalize import DraftCheckpoint
from tensorrt_llm_ext.checkpoints.quantized import SCALE_SUFFIXES
from tensorrt_llm_ext.configs.draft import DraftConfig
from tensorrt_llm_ext.configs.draft_tensors import expected_shapes
from tensorrt_llm_ext.errors import nearest

_MAX_LISTED: Final = 8
# The inverse of d2t, which no module takes: it is compared (V21) and not needed.
_BESIDE: Final = "t2d"
_KV_SCALES: Final = ("k_scale", "v_scale", "q_scale", "output_scale")


@check("V4", "tensor names")
def tensor_names(ctx: CheckContext, found: Examination) -> Iterable[Finding]:
    """Says which layout the names are of, and what became of them."""
    draft, refs = ctx.draft, ctx.draft.tensors.refs
    renamed = sum(ref.name != canonical for canonical, ref in refs.items() if ref.rows is None)
    split = len({ref.name for ref in refs.values() if ref.rows is not None})
    parts = [f"layout {draft.detection.format.title}"]
    if draft.detection.evidence:
        parts.append(f"known by {'; '.join(draft.detection.evidence)}")
    if renamed:
        parts.append(f"{renamed} of {len(refs)} names brought into canonical form")
    if split:
        parts.append(f"{split} fused tensors split")
    parts += [f"{count} {what} left out" for what, count in draft.tensors.skipped.items()]
    yield info(
        "V4",
        f"{', '.join(parts)}.",
        format=draft.detection.format.name,
        renamed=renamed,
        split=split,
        skipped=dict(draft.tensors.skipped),
    )
    for fact in draft.detection.facts:
        yield info("V4", fact)


@check("V5", "tensor set", needs=(DRAFT,))
def tensor_set(ctx: CheckContext, found: Examination) -> Iterable[Finding]:
    """Every tensor that the draft needs is there, and every tensor that is there is used."""
    if found.draft is None:
        return
    shapes, expected = ctx.draft.shapes, expected_shapes(found.draft)
    missing = sorted(expected.keys() - shapes.keys())
    left = _leftovers(ctx.draft, expected)
    if missing:
        yield error(
            "V5",
            f"{len(missing)} of {len(expected)} tensors are missing: "
            f"{_described(missing, expected, left)}. The checkpoint is incomplete, or its config "
            "describes another draft: download it again, or correct the config.",
            missing=missing,
        )
    if left:
        stored = {name: shape for name, (_, shape) in ctx.draft.stored.items()}
        yield error(
            "V5",
            f"{len(left)} tensors belong to no part of the draft: "
            f"{_described(left, stored, missing)}. The draft that was trained uses them: the "
            "config lacks a flag, or the names are of a layout that this package does not know. "
            "Name its producer in an issue, or remove what does not belong to the draft.",
            unexpected=left,
        )
    if not missing and not left:
        yield passed(
            "V5",
            f"All {len(expected)} tensors that the draft needs are there, and each of the "
            f"{len(ctx.draft.files.entries)} stored ones has its place.",
            needed=len(expected),
            stored=len(ctx.draft.files.entries),
        )
    if ctx.draft.files.extra_files:
        yield info(
            "V5",
            "Files that the index does not mention are ignored: "
            f"{', '.join(ctx.draft.files.extra_files)}.",
        )


def _described(
    names: Sequence[str], shapes: Mapping[str, Sequence[int]], candidates: Collection[str]
) -> str:
    """Names with shapes, each with the nearest of the candidates that it may be."""
    shown = []
    for name in names[:_MAX_LISTED]:
        close = nearest(name, candidates)
        shown.append(f"{name} {list(shapes[name])}" + (f" (near {close})" if close else ""))
    more = f"; and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return "; ".join(shown) + more


def _leftovers(draft: DraftCheckpoint, expected: Collection[str]) -> list[str]:
    """Tensors that are neither a weight of the draft nor a scale of one, sorted."""
    left = sorted(draft.tensors.refs.keys() - expected - {_BESIDE})
    return [name for name in left if not _is_scale(name, expected)]


def _is_scale(name: str, expected: Collection[str]) -> bool:
    """Whether a tensor is part of a quantized weight, or a scale of the KV cache."""
    module, _, kind = name.rpartition(".")
    if kind not in SCALE_SUFFIXES:
        return False
    return f"{module}.weight" in expected or (".self_attn" in module and kind in _KV_SCALES)


@check("V6", "tensor shapes", needs=(DRAFT,))
def tensor_shapes(ctx: CheckContext, found: Examination) -> Iterable[Finding]:
    """Shapes that follow from the config are those of the tensors."""
    if found.draft is None:
        return
    shapes = ctx.draft.shapes
    misfits = {
        name: (shapes[name], wanted)
        for name, wanted in expected_shapes(found.draft).items()
        if name in shapes and shapes[name] != wanted
    }
    derived = _derived(shapes, found.draft)
    if misfits:
        described = [
            f"{name} has shape {list(got)}, expected {list(wanted)} from the config "
            f"({shape_keys(name)})"
            for name, (got, wanted) in misfits.items()
        ]
        more = f"; and {len(misfits) - _MAX_LISTED} more" if len(misfits) > _MAX_LISTED else ""
        yield error(
            "V6",
            f"{len(misfits)} tensors do not fit the config: {'; '.join(described[:_MAX_LISTED])}"
            f"{more}. By the tensors: {_listed(derived)}. Correct config.json, or download it "
            "again with the weights.",
            misfits=sorted(misfits),
            derived=derived,
        )
        return
    yield passed("V6", f"Shapes agree with the config: {_listed(derived)}.", derived=derived)


def _listed(values: Mapping[str, int]) -> str:
    return ", ".join(f"{key} {value}" for key, value in values.items())


def _derived(shapes: Mapping[str, Sequence[int]], config: DraftConfig) -> dict[str, int]:
    """Sizes that the tensors alone tell, in the keys of a config."""
    attention = "layers.0.self_attn."

    def size(name: str, dim: int) -> int:
        shape = shapes.get(f"{name}.weight", ())
        return shape[dim] if dim < len(shape) else 0

    mla = config.mla
    value_heads = size(f"{attention}o_proj", 1) / mla.v_head_dim
    heads = {
        "q_b_proj": size(f"{attention}q_b_proj", 0) / mla.qk_head_dim,
        "kv_b_proj": size(f"{attention}kv_b_proj", 0) / (mla.qk_nope_head_dim + mla.v_head_dim),
        "o_proj": value_heads,
    }
    rank = size(f"{attention}kv_a_layernorm", 0)
    found: dict[str, Any] = {
        "hidden_size": size("layers.0.hidden_norm", 0),
        "target_hidden_size": size("fc", 1) / config.num_captured,
        "q_lora_rank": size(f"{attention}q_a_layernorm", 0),
        "kv_lora_rank": rank,
        "qk_rope_head_dim": size(f"{attention}kv_a_proj_with_mqa", 0) - rank,
        "intermediate_size": size("layers.0.mlp.gate_proj", 0),
        "draft_vocab_size": size("lm_head", 0),
        **{f"num_attention_heads by {name}": count for name, count in heads.items() if count},
    }
    if len({count for count in heads.values() if count}) == 1:
        found = {k: v for k, v in found.items() if not k.startswith("num_attention_heads by")}
        found["num_attention_heads"] = value_heads
    return {key: int(value) for key, value in found.items() if value > 0 and value == int(value)}
