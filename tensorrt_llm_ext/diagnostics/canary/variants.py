# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The ways in which a draft may differ from what its files declare, as data.

A factor changes a `Setting`: the configuration, the tensors, or both. Each has a group, and a
combination takes at most one factor of a group. What a factor changes is exactly what `fix` writes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch

from tensorrt_llm_ext.configs.mla import MLAConfig, RopeConfig, YarnConfig, yarn_mscale
from tensorrt_llm_ext.configs.target import TargetConfig
from tensorrt_llm_ext.diagnostics.canary.opening import (
    STORED_D2T,
    Setting,
    inside,
    with_boundaries,
)

_MAX_ORDERS = 5  # all permutations of three chunks but the declared one
_FAMILY_BETA_FAST = (1.0, 32.0)


@dataclass(frozen=True, kw_only=True)
class Factor:
    """One deviation from the declared setting.

    Attributes:
        group: What it is about; factors of one group exclude each other.
        name: Short stable name, unique.
        title: The same in words.
        change: Returns the changed setting, or None where the factor does not apply to it.
        rank: Within a group, where two fit equally well, the lower one is named.
        is_rare: No public draft has it: not tried beside others unless it helps by itself.
    """

    group: str
    name: str
    title: str
    change: Callable[[Setting], Setting | None] = field(repr=False)
    rank: int = 0
    is_rare: bool = False


def all_factors(
    declared: Setting,
    target: TargetConfig,
    available: frozenset[int],
    *,
    target_embedding: torch.Tensor | None = None,
    heads: Mapping[str, torch.Tensor] | None = None,
    maps: Mapping[str, torch.Tensor] | None = None,
) -> tuple[tuple[Factor, ...], tuple[str, ...]]:
    """Lists the factors that apply to a draft.

    Args:
        declared: The draft as its files say it is.
        target: Its target.
        available: Boundaries of which there are states.
        target_embedding: The target's embedding, for drafts with one of their own.
        heads: Other heads that the weight checks suggest, by their title.
        maps: Other d2t tables that the weight checks suggest, by their title.

    Returns:
        The factors, and what could not be tested, in words.
    """
    # From what public drafts have had most often to what none has: where two settings fit equally
    # well, the earlier one is named.
    found = [
        *_shifts(declared, target),
        *_orders(declared),
        *_flags(declared, ("norm_output", "fc_norm", "norm_before_fc")),
        *_scales(declared),
        *_ropes(declared, target),
        *_vocabularies(declared, maps or {}),
        *_embeddings(declared, target_embedding),
        *_heads(heads or {}),
        *_single_shifts(declared, target),
        *_flags(declared, ("norm_before_residual",)),
    ]
    factors, skipped = [], []
    for factor in found:
        setting = factor.change(declared)
        if setting is None:
            continue
        missing = sorted(set(setting.config.boundaries) - available)
        if missing:
            skipped.append(f"{factor.title}: no states of boundaries {missing}")
        else:
            factors.append(factor)
    return tuple(factors), tuple(skipped)


def _shifts(declared: Setting, target: TargetConfig) -> Iterator[Factor]:
    """All captured layers one lower or one higher."""
    for shift, word in ((-1, "lower"), (1, "higher")):
        shifts = (shift,) * declared.config.num_captured
        yield _shift_factor(f"boundaries{shift:+d}", word, shifts, target)


def _single_shifts(declared: Setting, target: TargetConfig) -> Iterator[Factor]:
    """Each captured layer alone one lower or one higher."""
    count = declared.config.num_captured
    if count == 1:
        return
    for index, shift in itertools.product(range(count), (-1, 1)):
        shifts = tuple(shift if i == index else 0 for i in range(count))
        word = "lower" if shift < 0 else "higher"
        yield _shift_factor(f"boundary[{index}]{shift:+d}", word, shifts, target, index)


def _shift_factor(
    name: str, word: str, shifts: tuple[int, ...], target: TargetConfig, index: int | None = None
) -> Factor:
    def change(setting: Setting) -> Setting | None:
        # The order of the columns may have been changed by another factor: shift by rank.
        ranked = sorted(setting.config.boundaries)
        moved = {b: b + s for b, s in zip(ranked, shifts, strict=True)}
        values = tuple(moved[b] for b in setting.config.boundaries)
        is_valid = len(set(values)) == len(values) and all(
            1 <= b <= target.num_layers for b in values
        )
        return with_boundaries(setting, values) if is_valid else None

    which = "captured layers" if index is None else f"layer id {index + 1} alone"
    return Factor(
        group="boundaries",
        name=name,
        title=f"{which} one {word}",
        change=change,
        is_rare=index is not None,
    )


def _orders(declared: Setting) -> Iterator[Factor]:
    """Captured states in another order of the fc columns (`fc_norm` goes with them)."""
    count = declared.config.num_captured
    if count < 2 or not declared.config.has_fc:
        return
    identity = tuple(range(count))
    orders = [order for order in itertools.permutations(identity) if order != identity]
    if len(orders) > _MAX_ORDERS:
        rotations = [identity[i:] + identity[:i] for i in range(1, count)]
        orders = list(dict.fromkeys([identity[::-1], *rotations]))[:_MAX_ORDERS]
    for order in orders:

        def change(setting: Setting, order: tuple[int, ...] = order) -> Setting:
            values = setting.config.boundaries
            return with_boundaries(setting, tuple(values[i] for i in order))

        shown = ",".join(str(i + 1) for i in order)
        yield Factor(
            group="chunk order",
            name=f"order[{shown}]",
            title=f"fc columns in order {shown}",
            change=change,
        )


def _flags(declared: Setting, names: tuple[str, ...]) -> Iterator[Factor]:
    """Each of these flags the other way, where the tensors allow it."""
    config, tensors = declared.config, declared.tensors
    has_norms = all(f"fc_norm.{i}.weight" in tensors for i in range(config.num_captured))
    allowed = {
        "norm_output": True,
        "norm_before_residual": True,
        "fc_norm": has_norms and not config.norm_before_fc,
        "norm_before_fc": "input_norm.weight" in tensors and not config.fc_norm,
    }
    for flag in names:
        if allowed[flag]:
            value = not getattr(config, flag)

            def change(setting: Setting, flag: str = flag, value: bool = value) -> Setting:
                return replace(setting, config=replace(setting.config, **{flag: value}))  # type: ignore[arg-type]

            state = "on" if value else "off"
            yield Factor(
                group=flag,
                name=f"{flag}={state}",
                title=f"{flag} {state}",
                change=change,
                is_rare=flag == "norm_before_residual",
            )


def _effect(mla: MLAConfig) -> tuple[float, float]:
    """What YaRN's mscale multiplies the softmax scale and cos/sin by."""
    return mla.softmax_scale * mla.qk_head_dim**0.5, mla.rope_magnitude


def _scales(declared: Setting) -> Iterator[Factor]:
    """YaRN's attention scale: in the softmax, nowhere, or on cos and sin."""
    yarn = declared.config.mla.rope.yarn
    if yarn is None or yarn.factor <= 1:
        return
    factor = yarn_mscale(yarn.factor, 1.0)
    wanted = {
        "mscale=softmax": ((factor**2, 1.0), "mscale in the softmax scale"),
        "mscale=none": ((1.0, 1.0), "no mscale at all"),
        "mscale=rope": ((1.0, factor), "mscale on cos and sin only"),
    }
    now = _effect(declared.config.mla)
    for name, (effect, title) in wanted.items():
        if max(abs(a - b) for a, b in zip(now, effect, strict=True)) > 1e-6:

            def change(setting: Setting, effect: tuple[float, float] = effect) -> Setting:
                return with_attention_scale(setting, effect)

            yield Factor(group="mscale", name=name, title=title, change=change)


def with_attention_scale(setting: Setting, effect: tuple[float, float]) -> Setting:
    """The same draft with other factors on its softmax scale and on cos and sin.

    By `mscale` and `mscale_all_dim` where these can say it and every engine agrees; else by scaling
    the rows of the query projection, which is the same function: scores are linear in the query,
    and cos and sin enter the rotated part of a score twice.

    Args:
        setting: The draft.
        effect: Factor on the softmax scale, factor on cos and sin.
    """
    mla = setting.config.mla
    rope, yarn = mla.rope, mla.rope.yarn
    if yarn is not None:
        for mscale, all_dim in ((1.0, 1.0), (1.0, None)):
            new = replace(yarn, mscale=mscale, mscale_all_dim=all_dim)
            candidate = replace(mla, rope=replace(rope, yarn=new))
            if max(abs(a - b) for a, b in zip(_effect(candidate), effect, strict=True)) < 1e-6:
                return replace(setting, config=replace(setting.config, mla=candidate))
    softmax, magnitude = (want / have for want, have in zip(effect, _effect(mla), strict=True))
    factors = torch.full((mla.qk_head_dim,), softmax, dtype=torch.float64)
    factors[mla.qk_nope_head_dim :] *= magnitude**2
    tensors = dict(setting.tensors)
    part = "q_b_proj" if mla.q_lora_rank is not None else "q_proj"
    for index in range(setting.config.num_layers):
        name = f"layers.{index}.self_attn.{part}.weight"
        weight = tensors[name]
        scaled = weight.to(torch.float64) * factors.repeat(mla.num_heads).unsqueeze(1)
        tensors[name] = scaled.to(weight.dtype)
    return replace(setting, tensors=tensors)


def _ropes(declared: Setting, target: TargetConfig) -> Iterator[Factor]:
    """The target's rotary table, the family's two, and none."""
    rope = declared.config.mla.rope
    length = rope.max_position_embeddings
    candidates: dict[str, tuple[str, RopeConfig]] = {
        "rope=target": (
            "the target's rope",
            replace(target.mla.rope, max_position_embeddings=length),
        )
    }
    source = rope.yarn or target.mla.rope.yarn
    if source is not None:
        for beta in _FAMILY_BETA_FAST:
            yarn = replace(source, beta_fast=beta, beta_slow=1.0)
            candidates[f"rope=yarn({beta:g})"] = (
                f"yarn with beta_fast {beta:g}",
                replace(rope, yarn=yarn),
            )
    if rope.yarn is not None:
        candidates["rope=default"] = ("rope without scaling", replace(rope, yarn=None))
    if target.mla.rope.theta != rope.theta:
        candidates["rope=theta"] = (
            f"the target's rope_theta {target.mla.rope.theta:g}",
            replace(rope, theta=target.mla.rope.theta),
        )
    seen = {_angles(rope)}
    for name, (title, wanted) in candidates.items():
        if _angles(wanted) in seen:
            continue
        seen.add(_angles(wanted))

        def change(setting: Setting, wanted: RopeConfig = wanted) -> Setting:
            return _with_rope(setting, wanted)

        yield Factor(group="rope", name=name, title=title, change=change)


def _angles(rope: RopeConfig) -> tuple[float, YarnConfig | None]:
    """What decides the angles; mscale does not."""
    yarn = rope.yarn and replace(rope.yarn, mscale=None, mscale_all_dim=None)
    return rope.theta, yarn


def _with_rope(setting: Setting, rope: RopeConfig) -> Setting:
    """Takes the angles of another table and keeps the attention scale, which is another factor."""
    mla = setting.config.mla
    effect = _effect(mla)
    if rope.yarn is not None and mla.rope.yarn is not None:
        yarn = mla.rope.yarn
        new = replace(rope.yarn, mscale=yarn.mscale, mscale_all_dim=yarn.mscale_all_dim)
        rope = replace(rope, yarn=new)
    moved = replace(setting, config=replace(setting.config, mla=replace(mla, rope=rope)))
    if _effect(moved.config.mla) == effect:
        return moved
    return with_attention_scale(moved, effect)


def _vocabularies(declared: Setting, maps: Mapping[str, torch.Tensor]) -> Iterator[Factor]:
    """Other readings of d2t that stay inside the vocabulary, and maps that t2d or the head say."""
    config = declared.config
    if not config.has_d2t:
        return
    d2t = declared.tensors.get(STORED_D2T, declared.tensors["d2t"]).to(torch.int64)
    ids = torch.arange(d2t.numel())
    candidates = {
        "d2t read as target ids": d2t - ids,
        "d2t with draft ids added back": d2t + ids,
    }
    t2d = declared.tensors.get("t2d")
    if t2d is not None and int(t2d.to(torch.bool).sum()) == d2t.numel():
        candidates["the map that t2d says"] = t2d.to(torch.bool).nonzero().flatten() - ids
    candidates |= maps
    seen = [declared.tensors["d2t"].to(torch.int64)]
    for title, table in candidates.items():
        is_same = any(torch.equal(table, other) for other in seen)
        if is_same or not torch.equal(table, inside(table, config.vocab_size)):
            continue
        if torch.unique(ids + table).numel() < table.numel():
            continue
        seen.append(table)
        yield _tensor_factor("d2t", title, "d2t", table)


def _embeddings(declared: Setting, target_embedding: torch.Tensor | None) -> Iterator[Factor]:
    """The target's embedding in place of the draft's own."""
    own = declared.tensors.get("embed_tokens.weight")
    if own is None or target_embedding is None or own.shape != target_embedding.shape:
        return
    if torch.equal(own.to(target_embedding), target_embedding):
        return

    def change(setting: Setting) -> Setting:
        tensors = {n: t for n, t in setting.tensors.items() if n != "embed_tokens.weight"}
        return Setting(config=replace(setting.config, has_own_embedding=False), tensors=tensors)

    yield Factor(
        group="embedding", name="embedding=target", title="the target's embedding", change=change
    )


def _heads(heads: Mapping[str, torch.Tensor]) -> Iterator[Factor]:
    """Heads that the weight checks suggest, the draft's own rows before borrowed ones."""
    for rank, (title, head) in enumerate(heads.items()):
        yield replace(_tensor_factor("lm_head", title, "lm_head.weight", head), rank=rank)


def _tensor_factor(group: str, title: str, name: str, tensor: torch.Tensor) -> Factor:
    def change(setting: Setting) -> Setting:
        return replace(setting, tensors={**setting.tensors, name: tensor})

    return Factor(group=group, name=f"{group}: {title}", title=title, change=change)


def combine(setting: Setting, factors: tuple[Factor, ...]) -> Setting | None:
    """Applies factors one after the other; None where one does not apply."""
    for factor in factors:
        changed = factor.change(setting)
        if changed is None:
            return None
        setting = changed
    return setting
