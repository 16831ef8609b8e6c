# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Which TensorRT-LLM versions can serve a pair, and why the others cannot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from tensorrt_llm_ext.configs.draft import DraftConfig
from tensorrt_llm_ext.configs.quant import QuantConfig
from tensorrt_llm_ext.configs.target import TargetConfig
from tensorrt_llm_ext.errors import ConfigError
from tensorrt_llm_ext.planning.host_matrix import ERAS, FEATURES, HostFeature, Level
from tensorrt_llm_ext.planning.host_pairing import DraftTraits, Pairing

SOURCE: Final = "from source, not run"
EXTENSION_STATUS: Final = "run on the host doubles, not on TensorRT-LLM"

ERA_TITLES: Final[Mapping[str, str]] = MappingProxyType(
    {"1.2": "1.2.x", "1.3": "1.3.0rc", "1.4": "1.4.0rc"}
)


@dataclass(frozen=True, kw_only=True, slots=True)
class HostVerdict:
    """Whether one version can serve a pair.

    Attributes:
        era: "1.2", "1.3" or "1.4".
        can_serve: Whether the stock host can.
        with_extension: Whether it could with this package's extension; see
            `extension`.
        reasons: Why the stock host cannot.
        extension_reasons: Why not even the extension could.
        cautions: Conditions under which the stock host serves it.
        features: Names of the rows of the matrix that decided, the cautions after the reasons.
        source: How this is known.
        extension: State of the extension: where it has run.
    """

    era: str
    can_serve: bool
    with_extension: bool
    reasons: tuple[str, ...]
    extension_reasons: tuple[str, ...] = ()
    cautions: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    source: str = SOURCE
    extension: str = EXTENSION_STATUS

    def to_dict(self) -> dict[str, Any]:
        """Returns everything as plain data."""
        return {
            "era": self.era,
            "can_serve": self.can_serve,
            "reasons": list(self.reasons),
            "cautions": list(self.cautions),
            "with_extension": self.with_extension,
            "extension": self.extension,
            "extension_reasons": list(self.extension_reasons),
            "features": list(self.features),
            "source": self.source,
        }


def check_era(era: str) -> str:
    """Returns `era`, or raises ConfigError when it is none of `ERAS`."""
    if era not in ERAS:
        raise ConfigError(
            f"TensorRT-LLM version {era!r} is none of {', '.join(ERAS)}. Give the first two "
            'numbers, for instance "1.3" for 1.3.0rc20.'
        )
    return era


def judge_hosts(
    target: TargetConfig,
    draft: DraftConfig,
    quant: QuantConfig,
    facts: DraftTraits | None = None,
) -> tuple[HostVerdict, ...]:
    """Judges every era for one pair.

    Args:
        target: The target.
        draft: The draft.
        quant: What the draft's files declare about quantization.
        facts: What else is known of the draft's files; a plain BF16 draft with `midlayer.*` names
            when None.

    Returns:
        One verdict per era, in the order of `ERAS`.
    """
    pair = Pairing(target=target, draft=draft, quant=quant, traits=facts or DraftTraits())
    rows = [(row, text) for row in FEATURES if (text := row.found(pair)) is not None]
    return tuple(_judge(index, era, rows) for index, era in enumerate(ERAS))


def _judge(index: int, era: str, rows: list[tuple[HostFeature, str]]) -> HostVerdict:
    def texts(column: str, level: Level) -> dict[str, str]:
        hits = [(row, text) for row, text in rows if getattr(row, column)[index] is level]
        return {row.name: f"{text}: {row.text(index)} ({row.evidence})" for row, text in hits}

    reasons, cautions = texts("stock", Level.BLOCKS), texts("stock", Level.CAUTION)
    left = texts("extended", Level.BLOCKS)
    return HostVerdict(
        era=era,
        can_serve=not reasons,
        with_extension=not left,
        reasons=tuple(reasons.values()),
        extension_reasons=tuple(left.values()),
        cautions=tuple(cautions.values()),
        features=(*reasons, *cautions),
    )


def judge_mha_draft() -> tuple[HostVerdict, ...]:
    """Judges a Llama-style (MHA or GQA) draft on an MLA target, which has no `DraftConfig` here.

    It takes the host's own path, which the extension leaves alone.
    """
    assertion = (
        "an MHA draft beside an MLA target hits an assertion on extra_attrs when the draft is "
        "merged, and its cache does not fit the target's (inferred from "
        "modeling_speculative.SpecDecOneEngineForCausalLM)"
    )
    separate = (
        "the draft needs a KV cache of its own, which the host gives it except with attention-DP"
    )
    return tuple(
        HostVerdict(
            era=era,
            can_serve=era != "1.2",
            with_extension=era != "1.2",
            reasons=(assertion,) if era == "1.2" else (),
            extension_reasons=(assertion,) if era == "1.2" else (),
            cautions=() if era == "1.2" else (separate,),
            features=("mha_draft",),
        )
        for era in ERAS
    )


__all__ = [
    "ERAS",
    "ERA_TITLES",
    "EXTENSION_STATUS",
    "SOURCE",
    "DraftTraits",
    "HostVerdict",
    "check_era",
    "judge_hosts",
    "judge_mha_draft",
]
