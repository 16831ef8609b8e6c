# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""What quantizing a draft did, and what it cost."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tensorrt_llm_ext.checkpoints.checks.base import Finding, Status
from tensorrt_llm_ext.planning.budget import StepBudget
from tensorrt_llm_ext.quantizing.acceptance import Ratio
from tensorrt_llm_ext.quantizing.agreement import DraftAgreement
from tensorrt_llm_ext.quantizing.calibration import InputStatistics
from tensorrt_llm_ext.quantizing.distill import DistillReport
from tensorrt_llm_ext.speculative.stats import AcceptanceStats


@dataclass(frozen=True, kw_only=True)
class EngineAcceptance:
    """One way of running the draft on the embedded engine.

    Attributes:
        stats: Pooled over the prompts.
        ratio: To the float draft; None for the float draft itself.
        is_same_text: Whether it generated the very tokens that the float draft did.
    """

    stats: AcceptanceStats
    ratio: Ratio | None
    is_same_text: bool

    def to_dict(self) -> dict[str, Any]:
        """Returns everything as plain data."""
        return {
            "acceptance_length": self.stats.acceptance_length,
            "acceptance_rate": self.stats.acceptance_rate,
            "per_position": self.stats.per_position,
            "num_steps": self.stats.num_steps,
            "ratio": None if self.ratio is None else _finite(dataclasses.asdict(self.ratio)),
            "is_same_text": self.is_same_text,
        }


@dataclass(frozen=True, kw_only=True)
class QuantizeReport:
    """The result of `quantize_draft`.

    Attributes:
        out: The folder written.
        recipe: The recipe's name.
        quantizer: Who quantized: "modelopt 0.47.0", or "builtin".
        algo: What the metadata say, for people.
        formats: Format of every linear module.
        statistics: What calibration saw of the inputs; None without calibration.
        num_texts: Texts calibrated on, and texts judged by.
        is_held_out: Whether those are different texts.
        agreement: By way of running ("W4A16", "W4A4" ...), beside the float draft.
        acceptance: By way of running, "bf16" for the float draft; empty when no engine ran.
        distillation: Set by a QAD recipe.
        nbytes_before, nbytes_after: Size of all tensors.
        budget_before, budget_after: Bytes that a draft step reads.
        exclude: Modules declared as not quantized.
        findings: The checks of the checkpoint written.
        notes: What else to know.
        seconds: How long it took.
    """

    out: str
    recipe: str
    quantizer: str
    algo: str
    formats: Mapping[str, str]
    statistics: InputStatistics | None = field(repr=False)
    num_texts: tuple[int, int]
    is_held_out: bool
    distillation: DistillReport | None
    nbytes_before: int
    nbytes_after: int
    budget_before: StepBudget
    budget_after: StepBudget
    exclude: tuple[str, ...]
    findings: tuple[Finding, ...] = field(repr=False)
    agreement: Mapping[str, DraftAgreement] = field(default_factory=dict)
    acceptance: Mapping[str, EngineAcceptance] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def errors(self) -> tuple[Finding, ...]:
        """Checks that fail, in the source too."""
        return tuple(f for f in self.findings if f.status is Status.ERROR)

    def to_dict(self) -> dict[str, Any]:
        """Returns everything as plain data."""
        simple = {
            name: getattr(self, name)
            for name in (
                "out",
                "recipe",
                "quantizer",
                "algo",
                "num_texts",
                "is_held_out",
                "nbytes_before",
                "nbytes_after",
                "exclude",
                "notes",
                "seconds",
            )
        }
        training = self.distillation
        statistics = self.statistics
        return simple | {
            "formats": dict(self.formats),
            "input_amax_per_step": None if statistics is None else dict(statistics.per_step),
            "agreement": {k: dataclasses.asdict(v) for k, v in self.agreement.items()},
            "acceptance": {k: v.to_dict() for k, v in self.acceptance.items()},
            "distillation": None if training is None else dataclasses.asdict(training),
            "bytes_per_step": {
                "before": self.budget_before.to_dict(),
                "after": self.budget_after.to_dict(),
            },
            "findings": [
                {"check": f.check_id, "status": f.status.value, "message": f.message}
                for f in self.findings
            ],
        }


def _finite(values: dict[str, float]) -> dict[str, float | None]:
    """JSON has no infinity."""
    return {key: value if math.isfinite(value) else None for key, value in values.items()}
