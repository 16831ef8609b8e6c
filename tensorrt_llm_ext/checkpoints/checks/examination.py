# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Reads both configs as the loader does, and goes on after a fault to find the next one.

The rules live in `configs` and `checkpoints`, and stop at the first fault. So that one run of the
validator names all of them, the fault is mended in memory, as a compiler does with a missing
semicolon, and the rules run again. What was made up on the way is remembered, and nothing that
rests on it is ever reported.
"""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

from tensorrt_llm_ext import configs
from tensorrt_llm_ext.checkpoints.checks.base import CheckContext
from tensorrt_llm_ext.checkpoints.normalize import (
    DraftCheckpoint,
    TargetCheckpoint,
    draft_config,
    target_config,
)
from tensorrt_llm_ext.configs.boundaries import EXPLICIT_KEY
from tensorrt_llm_ext.configs.draft import DraftConfig
from tensorrt_llm_ext.configs.hf_keys import HFKeys
from tensorrt_llm_ext.configs.hf_rope import rope_config_from_hf
from tensorrt_llm_ext.configs.target import TargetConfig
from tensorrt_llm_ext.errors import CheckpointError, ExtError

# Facts of a pair that a check may need.
DRAFT: Final = "draft"
BOUNDARIES: Final = "boundaries"
ROPE: Final = "rope"
TARGET: Final = "target"

# Where a fault without an id is reported: of the files, and of the configs.
FILES_ID: Final = "V5"
CONFIG_ID: Final = "V3"

# Keys that name captured layers, at the top or in eagle_config.
IDS_KEYS: Final = (
    EXPLICIT_KEY,
    "eagle_aux_hidden_state_layer_ids",
    "aux_hidden_states_layer_ids",
    "layer_ids",
)
_ROPE_KEYS: Final = ("rope_scaling", "rope_parameters", "rope_theta", "rope_interleave")
_LAYER: Final = re.compile(r"layers\.(\d+)\.")
_FC_NORM: Final = re.compile(r"fc_norm\.\d+\.weight")
# Findings that rest on the captured boundaries, the number of them included.
_ON_BOUNDARIES: Final = frozenset(("V9", "V10", "V11", "V12", "V13", "V14", "V18", "V31"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """What the loader refuses, and the check that says so."""

    check_id: str
    message: str


@dataclass(frozen=True, kw_only=True)
class Examination:
    """What the loader's rules made of a pair.

    Attributes:
        draft: The draft's config; after faults, one that was mended to go on; None when that was
            impossible.
        target: The target's config; None when there is none, or it cannot be read.
        faults: All that the loader refuses, the draft's own first; one per id at most.
        made_up: Facts of `draft` that replace faulty ones, each with the id of its fault.
        blocker: Id of the fault that ended the reading of the draft; empty when it did not end.
        target_blocker: The same for the target.
    """

    draft: DraftConfig | None = None
    target: TargetConfig | None = None
    faults: tuple[Fault, ...] = ()
    made_up: Mapping[str, str] = dataclasses.field(default_factory=dict)
    blocker: str = ""
    target_blocker: str = ""

    def faults_of(self, check_id: str) -> tuple[Fault, ...]:
        """The faults that belong to one check."""
        return tuple(fault for fault in self.faults if fault.check_id == check_id)

    def missing(self, needs: Iterable[str]) -> str:
        """Says why facts are unknown: "depends on V10", "no target was given", or nothing."""
        for need in needs:
            if need == TARGET and self.target is None:
                return f"depends on {self.target_blocker}" if self.target_blocker else _NO_TARGET
            if need in self.made_up:
                return f"depends on {self.made_up[need]}"
            if need != TARGET and self.draft is None:
                return f"depends on {self.blocker}"
        return ""


_NO_TARGET: Final = "no target was given"


@dataclass(frozen=True, kw_only=True)
class _Attempt:
    """One set of inputs of the rules."""

    draft: DraftCheckpoint
    target: TargetConfig | None
    depth: int | None
    boundaries: Sequence[int] | None
    made_up: Mapping[str, str]

    def with_config(self, changes: Mapping[str, Any], dropped: Sequence[str] = ()) -> _Attempt:
        config = _without(self.draft.config, dropped)
        return dataclasses.replace(
            self, draft=dataclasses.replace(self.draft, config={**config, **changes})
        )

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return self.draft.shapes


_Repair = Callable[[_Attempt, str], "_Attempt | None"]


def examine(ctx: CheckContext) -> Examination:
    """Applies the loader's rules to a pair.

    Args:
        ctx: The pair and the user's options.

    Returns:
        Configs and faults; the rules' errors are in there and never raised.
    """
    target: TargetConfig | None = None
    target_faults: list[Fault] = []
    if ctx.target is not None:
        try:
            target = target_config(ctx.target)
        except ExtError as error:
            target_faults = [_fault(error, f"Target {ctx.target.files.store.label}: ")]
    target_blocker = target_faults[0].check_id if target_faults else ""
    depth = None if ctx.target is None else _depth(ctx.target)
    attempt = _Attempt(
        draft=ctx.draft,
        target=target,
        depth=depth,
        boundaries=ctx.boundaries,
        # Without the depth of the target, layer ids cannot be judged.
        made_up={BOUNDARIES: target_blocker} if target_blocker and depth is None else {},
    )
    draft, attempt, faults, blocker = _read_on(attempt)
    return Examination(
        draft=draft,
        target=target,
        faults=(*faults, *target_faults),
        made_up=attempt.made_up,
        blocker=blocker,
        target_blocker=target_blocker,
    )


def _depth(target: TargetCheckpoint) -> int | None:
    """Number of layers of a target, also of one that this package does not run."""
    text = target.raw.get("text_config")
    for section in (text, target.raw):
        depth = section.get("num_hidden_layers") if isinstance(section, Mapping) else None
        if isinstance(depth, int) and not isinstance(depth, bool) and depth > 0:
            return depth
    return None


def _fault(error: ExtError, prefix: str = "") -> Fault:
    home = FILES_ID if isinstance(error, CheckpointError) else CONFIG_ID
    return Fault(check_id=error.check or home, message=f"{prefix}{error}")


def _draft_fault(error: ExtError, config: Mapping[str, Any]) -> Fault:
    """The fault behind an error; one without an id is recognised by the rule that repeats it."""
    if error.check is None:
        for check_id, rule in _SUBRULES.items():
            try:
                rule(HFKeys(config, "config.json"))
            except ExtError as repeated:
                if str(repeated) == str(error):
                    return Fault(check_id=check_id, message=str(error))
    return _fault(error)


def _read_on(attempt: _Attempt) -> tuple[DraftConfig | None, _Attempt, list[Fault], str]:
    """Reads the draft, mending it after each fault for as long as that is possible."""
    faults: list[Fault] = []
    repairs = {check_id: list(steps) for check_id, steps in _REPAIRS.items()}
    while True:
        try:
            with _silence() if faults else nullcontext():
                draft = draft_config(
                    attempt.draft,
                    attempt.target,
                    boundaries=attempt.boundaries,
                    num_target_layers=attempt.depth,
                )
            return draft, attempt, faults, ""
        except ExtError as error:
            fault = _draft_fault(error, attempt.draft.config)
        home = fault.check_id
        made_up = BOUNDARIES in attempt.made_up and home in _ON_BOUNDARIES
        if not made_up and home not in (known.check_id for known in faults):
            faults.append(fault)  # one per id: the next may be an echo of the first
        mended = None
        while mended is None and repairs.get(home):
            mended = repairs[home].pop(0)(attempt, home)
        if mended is None:
            return None, attempt, faults, attempt.made_up[BOUNDARIES] if made_up else home
        attempt = mended


@contextmanager
def _silence() -> Iterator[None]:
    """Keeps the rules from logging warnings about settings that were made up."""
    logger = logging.getLogger(configs.__name__)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _without(values: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    """The mapping without some keys, on its top and in `eagle_config`."""
    kept = {key: value for key, value in values.items() if key not in keys}
    eagle = kept.get("eagle_config")
    if isinstance(eagle, Mapping):
        kept["eagle_config"] = {key: value for key, value in eagle.items() if key not in keys}
    return kept


def _assume_boundaries(attempt: _Attempt, fault: str) -> _Attempt | None:
    """Goes on with boundaries 1..L, where L fits what the tensors say."""
    count = _captured_count(attempt)
    if attempt.depth is not None and count > attempt.depth:
        return None
    return dataclasses.replace(
        attempt.with_config({}, IDS_KEYS),
        boundaries=tuple(range(1, count + 1)),
        made_up={BOUNDARIES: fault, **attempt.made_up},
    )


def _captured_count(attempt: _Attempt) -> int:
    """Number of captured layers by the tensors; the usual 3 where they do not say."""
    columns = (attempt.shapes.get("fc.weight") or (0, 0))[-1]
    config = attempt.draft.config
    norms = sum(1 for name in attempt.shapes if _FC_NORM.fullmatch(name))
    target = None if attempt.target is None else attempt.target.hidden_size
    for width in (target, config.get("target_hidden_size")):
        if isinstance(width, int) and width > 0 and columns and columns % width == 0:
            return columns // width
    width = config.get("hidden_size")
    if not norms and isinstance(width, int) and width > 0 and columns % width == 0:
        return columns // width or 3
    return norms or 3


def _trust_fc(attempt: _Attempt, _fault: str) -> _Attempt | None:
    """Drops what the config says about the width of the captured states."""
    keys = ("num_aux_hidden_states", "target_hidden_size")
    return attempt.with_config({}, keys)


def _set_flag(flag: str, pattern: str) -> _Repair:
    """Sets a flag to what the tensors say."""

    def repair(attempt: _Attempt, _fault: str) -> _Attempt | None:
        present = any(re.fullmatch(pattern, name) for name in attempt.shapes)
        aliases = _FLAG_ALIASES[flag]
        return attempt.with_config({flag: present}, aliases)

    return repair


_FLAG_ALIASES: Final = {
    "fc_norm": ("fc_norm", "use_aux_norm"),
    "norm_before_fc": ("norm_before_fc",),
}


def _drop_norm_output(attempt: _Attempt, _fault: str) -> _Attempt | None:
    return attempt.with_config({}, ("norm_output", "return_hidden_post_norm"))


def _plain_rope(attempt: _Attempt, fault: str) -> _Attempt | None:
    mended = attempt.with_config({"rope_theta": 10000.0, "max_position_embeddings": 1}, _ROPE_KEYS)
    return dataclasses.replace(mended, made_up={ROPE: fault, **attempt.made_up})


def _vocabulary_of_tensors(attempt: _Attempt, _fault: str) -> _Attempt | None:
    """Takes the sizes of the vocabulary from head, map and embedding."""
    shapes, config = attempt.shapes, attempt.draft.config
    changes = {
        key: shapes[name][0]
        for name, key in (
            ("embed_tokens.weight", "vocab_size"),
            ("d2t", "draft_vocab_size"),
            ("lm_head.weight", "draft_vocab_size"),
        )
        if shapes.get(name)
    }
    if all(config.get(key) == value for key, value in changes.items()):
        return None
    draft_size = changes.get("draft_vocab_size")
    full = changes.get("vocab_size", config.get("vocab_size"))
    if draft_size is not None and ("d2t" not in shapes or not isinstance(full, int)):
        changes["vocab_size"] = draft_size
    elif draft_size is not None and isinstance(full, int):
        changes["vocab_size"] = max(draft_size, full)
    return attempt.with_config(changes)


def _target_vocabulary(attempt: _Attempt, _fault: str) -> _Attempt | None:
    size = attempt.draft.config.get("vocab_size")
    if attempt.target is None or not isinstance(size, int) or size == attempt.target.vocab_size:
        return None
    return dataclasses.replace(attempt, target=dataclasses.replace(attempt.target, vocab_size=size))


def _target_width(attempt: _Attempt, _fault: str) -> _Attempt | None:
    """Takes the target to be as wide as the captured states are."""
    columns = (attempt.shapes.get("fc.weight") or (0, 0))[-1]
    count = _captured_count(dataclasses.replace(attempt, target=None))
    width = columns // count if columns else attempt.draft.config.get("hidden_size")
    if attempt.target is None or not isinstance(width, int) or width == attempt.target.hidden_size:
        return None
    return dataclasses.replace(
        attempt, target=dataclasses.replace(attempt.target, hidden_size=width)
    )


def _target_latent(attempt: _Attempt, _fault: str) -> _Attempt | None:
    """Takes the target to cache rows as wide as the draft's."""
    if attempt.target is None:
        return None
    rank, rope = (attempt.draft.config.get(k) for k in ("kv_lora_rank", "qk_rope_head_dim"))
    if not (isinstance(rank, int) and isinstance(rope, int) and rank > 0 and rope > 0):
        return None
    mla = dataclasses.replace(attempt.target.mla, kv_lora_rank=rank, qk_rope_head_dim=rope)
    return dataclasses.replace(attempt, target=dataclasses.replace(attempt.target, mla=mla))


def _count_layers(attempt: _Attempt, _fault: str) -> _Attempt | None:
    """Takes the number of layers from the tensors."""
    layers = {match[1] for name in attempt.shapes if (match := _LAYER.match(name))}
    return attempt.with_config({"num_hidden_layers": max(len(layers), 1)})


def _small_eps(attempt: _Attempt, _fault: str) -> _Attempt | None:
    return attempt.with_config({"rms_norm_eps": 1e-6})


# Parts of the rules that can be asked alone, by the check that they belong to.
_SUBRULES: Final[Mapping[str, Callable[[HFKeys], object]]] = {
    "V15": lambda keys: keys.positive_number("rms_norm_eps"),
    "V16": rope_config_from_hf,
}

# What can be mended after a fault, by its id; each step once, in order.
_REPAIRS: Final[Mapping[str, tuple[_Repair, ...]]] = {
    **dict.fromkeys(("V9", "V10", "V12", "V13", "V31"), (_assume_boundaries,)),
    "V14": (_trust_fc, _target_width, _assume_boundaries),
    "V15": (_small_eps,),
    "V16": (_plain_rope,),
    "V18": (_set_flag("fc_norm", _FC_NORM.pattern), _assume_boundaries),
    "V19": (_drop_norm_output,),
    "V20": (_set_flag("norm_before_fc", re.escape("input_norm.weight")),),
    "V8": (_vocabulary_of_tensors, _target_vocabulary),
    "V6": (_count_layers, _target_latent),
}
