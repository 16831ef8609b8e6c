# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Tries a draft in the settings that it might have been trained with, and says which fits.

A draft run in a wrong setting gives right answers slowly: the target corrects it. Only agreement
with the target shows it (`/docs/DESIGN.md` section 1). The canary measures acceptance at every
position of the target's own texts, for the declared setting, for each single deviation from it, and
for combinations of those that help.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from tensorrt_llm_ext.diagnostics.canary.agreement import (
    Agreement,
    choose_anchors,
    measure_agreement,
)
from tensorrt_llm_ext.diagnostics.canary.building import build_draft
from tensorrt_llm_ext.diagnostics.canary.intervals import MIN_TEXTS, paired_differences
from tensorrt_llm_ext.diagnostics.canary.opening import OpenedDraft, Setting
from tensorrt_llm_ext.diagnostics.canary.variants import Factor, all_factors, combine
from tensorrt_llm_ext.diagnostics.canary.verdict import (
    MIN_FIRST_RATE,
    MIN_GAIN,
    CanaryReport,
    Outcome,
    Trial,
)
from tensorrt_llm_ext.diagnostics.canary.weights import (
    HeadFindings,
    WeightCheck,
    embedding_check,
    examine_head,
    plain_checks,
)
from tensorrt_llm_ext.engine.teacher_states import TeacherStates
from tensorrt_llm_ext.errors import ConfigError
from tensorrt_llm_ext.models.interfaces import TargetModel

_MAX_FACTORS = 3  # in one combination

# Called with the settings done, the settings planned so far, and the one that begins.
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, kw_only=True)
class ExaminationOptions:
    """How thoroughly to look.

    Attributes:
        max_draft_len: Proposals per anchor.
        max_anchors: Positions to judge at; every one when None.
        confidence: That no healthy draft is accused by chance.
        seed: Of sampling and resampling.
        device: Where the draft runs.
        dtype: In which numbers.
    """

    max_draft_len: int
    max_anchors: int | None
    confidence: float
    seed: int
    device: torch.device
    dtype: torch.dtype


def examine(
    opened: OpenedDraft,
    target: TargetModel,
    states: TeacherStates,
    options: ExaminationOptions,
    progress: Progress | None = None,
) -> CanaryReport:
    """Runs the declared setting, each factor, and combinations of those that help.

    Args:
        opened: The draft.
        target: Its target, or the target's embedding and head.
        states: Texts with the target's states.
        options: How thoroughly.
        progress: Called before each setting is run.

    Raises:
        ConfigError: If there are no states of the declared boundaries, or fewer than 6 texts have
            positions to judge at.
    """
    lab = _Lab(opened, target, states, options, progress)
    checks, factors, not_tested = lab.prepare()
    num_texts = sum(1 for part in lab.anchors if part.numel())
    if num_texts < MIN_TEXTS:
        raise ConfigError(
            f"{num_texts} text(s) have positions to judge at; at least {MIN_TEXTS} are needed to "
            "tell a difference from chance, and 100 are a good number. Give more, or longer ones."
        )
    outcome = lab.run(factors)
    return CanaryReport(
        draft=str(opened.files.folder),
        target="",
        states=f"{states.source}; {states.labels}",
        outcome=outcome,
        weight_checks=checks,
        problems=opened.problems,
        not_tested=not_tested,
        max_draft_len=options.max_draft_len,
        num_texts=num_texts,
    )


class _Lab:
    """One draft, its target's ends and the texts."""

    def __init__(
        self,
        opened: OpenedDraft,
        target: TargetModel,
        states: TeacherStates,
        options: ExaminationOptions,
        progress: Progress | None,
    ) -> None:
        self.declared = opened.declared
        self.target, self.states, self.options = target, states, options
        self.anchors = choose_anchors(
            states, options.max_draft_len, options.max_anchors, options.seed
        )
        if not any(part.numel() for part in self.anchors):
            raise ConfigError(
                f"No text is long enough to judge {options.max_draft_len} drafts in a row. Give "
                "longer texts, or lower max_draft_len."
            )
        self._progress = progress
        self._done = self._planned = 0

    def prepare(
        self,
    ) -> tuple[tuple[WeightCheck, ...], tuple[Factor, ...], tuple[str, ...]]:
        """Weight checks, the factors to try, and what cannot be tested."""
        config, tensors = self.declared.config, self.declared.tensors
        missing = sorted(set(config.boundaries) - self.states.boundaries)
        if missing:
            raise ConfigError(
                f"The draft captures boundaries {list(config.boundaries)}, but there are no states "
                f"of {missing}; there are {sorted(self.states.boundaries)}. Capture those as well."
            )
        checks = list(plain_checks(config, tensors))
        embedding = _weight(self.target.embed_tokens)
        own = tensors.get("embed_tokens.weight")
        if own is not None and embedding is not None:
            checks.append(embedding_check(own, embedding.cpu()))
        head, target_head = tensors.get("lm_head.weight"), _weight(self.target.lm_head)
        found: HeadFindings | None = None
        if head is not None and target_head is not None and head.shape[1] == target_head.shape[1]:
            ids = torch.arange(head.shape[0])
            if config.has_d2t:
                ids = ids + tensors["d2t"].to(torch.int64)
            found = examine_head(head, target_head, ids, self.options.device)
            checks.append(found.check)
        factors, not_tested = all_factors(
            self.declared,
            self.target.config,
            self.states.boundaries,
            target_embedding=None if embedding is None else embedding.cpu(),
            heads=None if found is None else found.heads,
            maps=None if found is None else found.maps,
        )
        return tuple(checks), factors, not_tested

    def run(self, factors: tuple[Factor, ...]) -> Outcome:
        """Runs everything; the declared setting comes first."""
        self._planned = 1 + len(factors)
        declared = Trial(
            factors=(), setting=self.declared, agreement=self._measure("declared", self.declared)
        )
        trials = self._compared(declared, self._try([(factor,) for factor in factors]))
        choice = self._choose(declared, trials)
        helpful = {trial.factors[0].name for trial in trials if trial.is_better}
        if declared.agreement.per_position[0] < MIN_FIRST_RATE:
            # Beside a draft that fails altogether, nothing else could show.
            helpful |= {factor.name for factor in factors if not factor.is_rare}
        while choice is not None and len(choice.best.factors) < _MAX_FACTORS:
            combined = self._try(_extended(choice.best, factors, helpful, trials))
            trials = self._compared(declared, [*trials, *combined])
            better = self._choose(choice.best, combined)
            if better is None:
                break
            choice = better
        by_name = {trial.names: trial for trial in trials}
        if choice is None:
            return Outcome(trials=(declared, *trials), best=declared)
        return Outcome(
            trials=(declared, *trials),
            best=by_name[choice.best.names],
            equals=tuple(by_name[trial.names] for trial in choice.equals),
        )

    def _choose(self, base: Trial, candidates: Sequence[Trial]) -> _Choice | None:
        """The first of the candidates that beat `base` and that no other one beats."""
        better = [trial for trial in self._compared(base, candidates) if trial.is_better]
        if not better:
            return None
        top = max(better, key=lambda trial: trial.agreement.acceptance_length)
        rest = [trial for trial in better if trial is not top]
        behind = {t.names: t for t in self._compared(top, rest)}
        equals = [t for t in better if t is top or _is_as_good(behind[t.names])]
        # `better` is in the order of the factors: the group comes first that is wrong most often.
        groups = list(dict.fromkeys(t.factors[-1].group for t in equals))
        equals.sort(
            key=lambda t: (
                groups.index(t.factors[-1].group),
                t.factors[-1].rank,
                -t.agreement.acceptance_length,
            )
        )
        return _Choice(equals[0], tuple(equals[1:]))

    def _try(self, combinations: Sequence[tuple[Factor, ...]]) -> list[Trial]:
        """Runs the combinations that apply and of whose boundaries there are states."""
        trials = []
        self._planned = self._done + len(combinations)
        for factors in combinations:
            setting = combine(self.declared, factors)
            if setting is None or not set(setting.config.boundaries) <= self.states.boundaries:
                self._planned -= 1
                continue
            title = " + ".join(factor.title for factor in factors)
            agreement = self._measure(title, setting)
            trials.append(Trial(factors=factors, setting=setting, agreement=agreement))
        return trials

    def _measure(self, title: str, setting: Setting) -> Agreement:
        if self._progress is not None:
            self._progress(self._done, self._planned, title)
        longest = max(sequence.length for sequence in self.states.sequences)
        draft = build_draft(
            setting,
            self.target,
            device=self.options.device,
            dtype=self.options.dtype,
            max_positions=longest + self.options.max_draft_len,
        )
        agreement = measure_agreement(draft, self.states, self.anchors, self.options.max_draft_len)
        self._done += 1
        return agreement

    def _compared(self, base: Trial, trials: Sequence[Trial]) -> list[Trial]:
        """The trials with their differences from `base`, whose intervals hold together."""
        differences = paired_differences(
            base.agreement.accepted,
            [trial.agreement.accepted for trial in trials],
            confidence=self.options.confidence,
            seed=self.options.seed,
        )
        return [replace(t, difference=d) for t, d in zip(trials, differences, strict=True)]


class _Choice(NamedTuple):
    """A setting, and others that fit as well as it does."""

    best: Trial
    equals: tuple[Trial, ...]


def _weight(module: object) -> torch.Tensor | None:
    """The table of an embedding or a head; None where there is none."""
    weight = getattr(module, "weight", None)
    return weight.detach() if isinstance(weight, torch.Tensor) else None


def _is_as_good(trial: Trial) -> bool:
    """Whether a setting is not told apart from the one that it was compared with."""
    difference = trial.difference
    return difference is not None and (difference.high >= 0.0 or difference.mean > -MIN_GAIN / 2)


def _extended(
    best: Trial, factors: Sequence[Factor], helpful: Set[str], trials: Sequence[Trial]
) -> list[tuple[Factor, ...]]:
    """The combinations of one more factor with the best ones that were not tried yet."""
    groups = {factor.group for factor in best.factors}
    tried = {frozenset(trial.names) for trial in trials}
    result = []
    for factor in factors:
        is_new = frozenset((*best.names, factor.name)) not in tried
        if factor.name in helpful and factor.group not in groups and is_new:
            result.append((*best.factors, factor))
    return result
