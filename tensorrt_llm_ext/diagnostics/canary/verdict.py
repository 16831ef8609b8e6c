# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""What the canary concludes, and the table behind it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from tensorrt_llm_ext.diagnostics.canary.agreement import Agreement
from tensorrt_llm_ext.diagnostics.canary.intervals import Difference
from tensorrt_llm_ext.diagnostics.canary.opening import Setting
from tensorrt_llm_ext.diagnostics.canary.variants import Factor
from tensorrt_llm_ext.diagnostics.canary.weights import WeightCheck

# A difference in acceptance length below this is not worth a word.
MIN_GAIN = 0.03
# First-draft acceptance below this is a failure for any public draft on any text.
MIN_FIRST_RATE = 0.40


class Verdict(str, Enum):
    """What fits; the value is what is printed."""

    DECLARED_FITS = "declared setting fits"
    OTHER_FITS = "other setting fits"
    NOTHING_FITS = "nothing fits; weights suspect"


EXIT_CODES = {Verdict.DECLARED_FITS: 0, Verdict.OTHER_FITS: 1, Verdict.NOTHING_FITS: 3}


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One setting that was run.

    Attributes:
        factors: Deviations from the declared setting; empty for the declared one.
        setting: What was run.
        agreement: What it achieved.
        difference: Its acceptance length minus the declared one's; None for the declared one.
    """

    factors: tuple[Factor, ...]
    setting: Setting = field(repr=False)
    agreement: Agreement = field(repr=False)
    difference: Difference | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the factors."""
        return tuple(factor.name for factor in self.factors)

    @property
    def title(self) -> str:
        """The setting in words."""
        return " + ".join(factor.title for factor in self.factors) or "declared"

    @property
    def is_better(self) -> bool:
        """Whether it beats the declared setting beyond doubt and by enough."""
        return (
            self.difference is not None
            and self.difference.low > 0.0
            and self.difference.mean >= MIN_GAIN
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns the row as plain data."""
        difference = self.difference
        return {
            "factors": list(self.names),
            "title": self.title,
            "acceptance_length": self.agreement.acceptance_length,
            "replayed_acceptance_length": self.agreement.replayed_length,
            "per_position": list(self.agreement.per_position),
            "difference": None if difference is None else difference.mean,
            "interval": None if difference is None else _bounds(difference),
            "is_better": self.is_better,
        }


def _bounds(difference: Difference) -> list[float] | None:
    """Both bounds, None where there were too few texts (JSON has no infinity)."""
    if difference.high == float("inf"):
        return None
    return [difference.low, difference.high]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What the runs came to.

    Attributes:
        trials: Every setting that was run, the declared one first.
        best: The declared one, unless another is better beyond doubt.
        equals: Settings that are not told apart from the best one.
    """

    trials: tuple[Trial, ...]
    best: Trial
    equals: tuple[Trial, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CanaryReport:
    """Everything that the canary found.

    Attributes:
        draft, target: Folders.
        states: Where texts and states come from, in words.
        outcome: Every setting that was run, and the one that fits best.
        weight_checks: What the weights say.
        problems: What the loader would refuse.
        not_tested: Factors that could not be tested, with the reason.
        max_draft_len: Proposals per anchor.
        num_texts: Texts with at least one anchor.
        fixed: Report of the corrected folder, when one was written.
        fix_notes: What was changed in it.
    """

    draft: str
    target: str
    states: str
    outcome: Outcome = field(repr=False)
    weight_checks: tuple[WeightCheck, ...]
    problems: tuple[str, ...]
    not_tested: tuple[str, ...]
    max_draft_len: int
    num_texts: int
    fixed: CanaryReport | None = None
    fix_notes: tuple[str, ...] = ()

    @property
    def trials(self) -> tuple[Trial, ...]:
        """Every setting that was run, the declared one first."""
        return self.outcome.trials

    @property
    def declared(self) -> Trial:
        """The setting that the files declare."""
        return self.outcome.trials[0]

    @property
    def best(self) -> Trial:
        """The setting that fits best, the declared one unless another is better beyond doubt."""
        return self.outcome.best

    @property
    def verdict(self) -> Verdict:
        """What fits."""
        if self.best.agreement.per_position[0] < MIN_FIRST_RATE:
            return Verdict.NOTHING_FITS
        return Verdict.OTHER_FITS if self.best.factors else Verdict.DECLARED_FITS

    @property
    def exit_code(self) -> int:
        """0, 1 or 3; that of the corrected folder does not change it.

        A fitting setting in files that the loader refuses is 1 as well.
        """
        code = EXIT_CODES[self.verdict]
        return 1 if code == 0 and self.problems else code

    @property
    def sentence(self) -> str:
        """The verdict in one line."""
        if self.verdict is Verdict.OTHER_FITS:
            others = [trial.title for trial in self.outcome.equals]
            also = f" (or, as good: {'; '.join(others)})" if others else ""
            return f"{self.verdict.value}: {self.best.title}{also}"
        failed = ", ".join(check.name for check in self.weight_checks if check.is_ok is False)
        if self.verdict is Verdict.NOTHING_FITS:
            return f"{self.verdict.value} ({failed})" if failed else str(self.verdict.value)
        doubts = f"; look at the weights: {failed}" if failed else ""
        if self.problems:
            doubts += f"; but the loader refuses the files: {self.problems[0]}"
        return f"{self.verdict.value}{doubts}"

    def to_dict(self) -> dict[str, Any]:
        """Returns everything as plain data."""
        return {
            "verdict": self.verdict.name.lower(),
            "sentence": self.sentence,
            "exit_code": self.exit_code,
            "draft": self.draft,
            "target": self.target,
            "states": self.states,
            "max_draft_len": self.max_draft_len,
            "num_texts": self.num_texts,
            "num_anchors": self.declared.agreement.num_anchors,
            "declared_boundaries": list(self.declared.setting.config.boundaries),
            "best": self.best.to_dict(),
            "equals": [trial.to_dict() for trial in self.outcome.equals],
            "trials": [trial.to_dict() for trial in self.trials],
            "weight_checks": [
                {"name": c.name, "is_ok": c.is_ok, "message": c.message, "data": _finite(c.data)}
                for c in self.weight_checks
            ],
            "problems": list(self.problems),
            "not_tested": list(self.not_tested),
            "fix_notes": list(self.fix_notes),
            "fixed": None if self.fixed is None else self.fixed.to_dict(),
        }


def _finite(data: Any) -> dict[str, float | None]:
    return {key: value if value == value else None for key, value in data.items()}
