# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Checks of rotary settings and lengths: V16, V17 and V28."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from tensorrt_llm_ext.checkpoints.checks.base import CheckContext, Finding
from tensorrt_llm_ext.checkpoints.checks.examination import DRAFT, ROPE, TARGET, Examination
from tensorrt_llm_ext.checkpoints.checks.rules import check, info, passed, warning
from tensorrt_llm_ext.configs.hf_keys import HFKeys
from tensorrt_llm_ext.configs.hf_rope import rope_config_from_hf
from tensorrt_llm_ext.configs.mla import MLAConfig, RopeConfig
from tensorrt_llm_ext.configs.pairing import check_table_length, context_warnings
from tensorrt_llm_ext.models.rotary import rotary_frequencies

_SHOWN_PAIRS: Final = 4
_SAME: Final = 1e-6  # relative; tables are float32
# Trainers that leave mscale out of the softmax scale, by the name of their layout.
_WITHOUT_MSCALE: Final = ("automodel",)


@check("V16", "rotary table")
def rotary_table(ctx: CheckContext, found: Examination) -> Iterable[Finding]:
    """The draft's rotary settings are understood; says how its table differs from the target's."""
    rope = rope_config_from_hf(HFKeys(ctx.draft.config, "config.json"))
    draft = found.draft
    if draft is None:
        yield passed("V16", f"Rotary settings understood: {_described(rope)}.")
        return
    mla = draft.mla
    frequencies = rotary_frequencies(rope, mla.qk_rope_head_dim).tolist()
    data: dict[str, Any] = {
        "softmax_scale": mla.softmax_scale,
        "magnitude": mla.rope_magnitude,
        "inv_freq": frequencies,
    }
    sample = _sampled(len(frequencies))
    pairs = ", ".join(f"{i}: {frequencies[i]:.4e}" for i in sample)
    message = (
        f"{_described(rope)}; softmax scale {mla.softmax_scale:.5f}; inv_freq of pairs {pairs}."
    )
    if found.target is not None:
        comparison, data["differs_from_target"] = _compared(frequencies, found.target.mla)
        message += f" {comparison}"
    yield passed("V16", message, **data)
    yield from _untrained_mscale(ctx, mla)


def _described(rope: RopeConfig) -> str:
    yarn = rope.yarn
    if yarn is None:
        return f"theta {rope.theta:g}, no scaling"
    return (
        f"theta {rope.theta:g}, yarn factor {yarn.factor:g} over "
        f"{yarn.original_max_position_embeddings}, beta {yarn.beta_fast:g}/{yarn.beta_slow:g}"
    )


def _sampled(count: int) -> list[int]:
    """A few pairs spread over the table, the first and the last among them."""
    last = min(_SHOWN_PAIRS, count) - 1
    return sorted({round(i * (count - 1) / max(last, 1)) for i in range(last + 1)})


def _compared(draft: Sequence[float], target: MLAConfig) -> tuple[str, list[int]]:
    """Says at which pairs the draft's table is another one than the target's."""
    other = rotary_frequencies(target.rope, target.qk_rope_head_dim).tolist()
    if len(other) != len(draft):
        return f"The target rotates {2 * len(other)} values, the draft {2 * len(draft)}.", []
    ratios = [own / theirs for own, theirs in zip(draft, other, strict=True)]
    differing = [i for i, ratio in enumerate(ratios) if abs(ratio - 1) > _SAME]
    if not differing:
        return "The target's table is the same.", []
    worst = max(differing, key=lambda i: max(ratios[i], 1 / ratios[i]))
    return (
        f"The target's table differs at {len(differing)} of {len(draft)} pairs "
        f"({_ranges(differing)}), most at pair {worst} by a factor of {ratios[worst]:.3f}: the "
        "draft must be given its own.",
        differing,
    )


def _ranges(numbers: Sequence[int]) -> str:
    """Rising numbers as ranges: "9-19, 21"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ", ".join("-".join(map(str, run)) for run in runs)


def _untrained_mscale(ctx: CheckContext, mla: MLAConfig) -> Iterable[Finding]:
    name = ctx.draft.detection.format.name
    plain = mla.qk_head_dim**-0.5
    if name in _WITHOUT_MSCALE and mla.softmax_scale != plain:
        yield warning(
            "V16",
            f"The layout is that of a trainer ({name}) which leaves mscale out of the softmax "
            f"scale ({plain:.5f}), but config.json asks for {mla.softmax_scale:.5f}, "
            f"{mla.softmax_scale / plain:.3f} times as much. Set mscale_all_dim to 0 in "
            "rope_scaling if the draft was trained so; `trtllm-ext canary` measures both.",
            trained_scale=plain,
            declared_scale=mla.softmax_scale,
        )


@check("V17", "long context", needs=(DRAFT, ROPE, TARGET))
def long_context(ctx: CheckContext, found: Examination) -> Iterable[Finding]:
    """A draft without scaling beside a target with YaRN fails beyond the original length."""
    if found.draft is None or found.target is None:
        return
    draft, target = found.draft.mla.rope, found.target.mla.rope
    fault = dict(context_warnings(found.draft, found.target)).get("V17")
    if fault is None:
        both = "Both scale" if target.yarn is not None else "The target does not scale"
        yield passed("V17", f"{both} positions: the draft needs no other scaling.")
        return
    yield warning(
        "V17",
        fault,
        original_max_position_embeddings=target.yarn
        and target.yarn.original_max_position_embeddings,
        max_position_embeddings=found.target.max_position_embeddings,
        draft_theta=draft.theta,
    )


@check("V28", "sequence length", needs=(DRAFT, ROPE))
def sequence_length(ctx: CheckContext, found: Examination) -> Iterable[Finding]:
    """The draft's rotary table reaches as far as requests do."""
    if found.draft is None:
        return
    rope = found.draft.mla.rope
    length = rope.max_position_embeddings
    data: dict[str, Any] = {"rope_table": length, "max_seq_len": ctx.max_seq_len}
    declared = HFKeys(ctx.draft.config, "config.json").has("max_position_embeddings")
    origin = "max_position_embeddings" if declared else "YaRN's factor x original length"
    if ctx.max_seq_len is not None:
        check_table_length(
            found.draft, max_seq_len=ctx.max_seq_len, max_draft_len=ctx.max_draft_len
        )
    fault = None
    if found.target is not None and ctx.max_seq_len is None:
        fault = dict(context_warnings(found.draft, found.target)).get("V28")
    if fault is not None:
        advice = (
            "Serve shorter requests (--max-seq-len), or raise max_position_embeddings in the "
            "draft's config.json if it was trained for more."
        )
        yield warning("V28", f"{fault} {advice}", **data)
    else:
        yield passed("V28", f"The draft's rotary table has {length} positions.", **data)
    trained = rope.yarn.original_max_position_embeddings if rope.yarn is not None else None
    reach = ctx.max_seq_len or length
    if trained is not None and reach > trained:
        yield info(
            "V28",
            f"The draft's original length is {trained}; drafts are trained on rows of about that "
            f"length, so expect acceptance to fall towards {reach}, whatever the engine does.",
            original_max_position_embeddings=trained,
        )
    if not declared:
        yield info(
            "V28",
            f"config.json has no max_position_embeddings; {length} ({origin}) is used here, but a "
            "host reads the key or its class default. `trtllm-ext convert` writes it.",
        )
