# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""A baseline that acceptance must not fall below."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tensorrt_llm_ext.benchmarking.acceptance.measurement import Measurement
from tensorrt_llm_ext.errors import ConfigError, nearest

_KEPT = 0.95


@dataclass(frozen=True, kw_only=True)
class Key:
    """What a baseline is of; acceptance of anything else is not comparable."""

    target: str
    draft: str
    draft_len: int | None
    template: bool
    host: str
    layout: str

    def text(self) -> str:
        """The key as it stands in the file."""
        return " | ".join(f"{name}={value}" for name, value in asdict(self).items())


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the gate says.

    Attributes:
        reasons: Why it is closed; empty when it is open.
        baseline: Length of the baseline; None without one.
    """

    reasons: tuple[str, ...]
    baseline: float | None = None


def _read(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"The baseline {path} cannot be read: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"The baseline {path} must hold a JSON object.")
    return values


def save_baseline(path: Path, key: Key, measurement: Measurement) -> None:
    """Writes the run's length under its key, beside others.

    Raises:
        ConfigError: If nothing was measured, or the file cannot be read.
    """
    length = measurement.length
    if length is None:
        raise ConfigError("There is no acceptance to save: the server reports none.")
    values = _read(path) if path.exists() else {}
    steps = measurement.stats.num_steps if measurement.stats else 0
    values[key.text()] = {**asdict(length), "num_steps": steps, "source": measurement.source}
    path.write_text(json.dumps(values, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def check(
    measurement: Measurement, key: Key, baseline: Path | None, min_length: float | None
) -> Verdict:
    """Holds a run against its baseline and a floor.

    Raises:
        ConfigError: If the file has no baseline of this key.
    """
    length = measurement.length
    if baseline is None and min_length is None:
        return Verdict(reasons=())
    known = None if baseline is None else _known(baseline, key)
    if length is None:
        return Verdict(reasons=("no acceptance was reported",), baseline=known)
    reasons = []
    if min_length is not None and length.value < min_length:
        reasons.append(f"{length.value:.3f} is below the floor of {min_length:.3f}")
    if known is not None and length.value < _KEPT * known:
        reasons.append(f"{length.value:.3f} is below {_KEPT:.0%} of the baseline, {known:.3f}")
    return Verdict(reasons=tuple(reasons), baseline=known)


def _known(path: Path, key: Key) -> float:
    values = _read(path)
    found = values.get(key.text())
    if not isinstance(found, dict) or "value" not in found:
        hint = nearest(key.text(), values)
        near = f" The nearest is: {hint}." if hint else ""
        raise ConfigError(
            f"{path} has no baseline of {key.text()}.{near} Save one with --save-baseline."
        )
    return float(found["value"])


__all__ = ["Key", "Verdict", "check", "save_baseline"]
