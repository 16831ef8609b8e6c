# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Speculative decoding settings in the shape of the TensorRT-LLM LLM API."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from tensorrt_llm_ext.configs.host_fields import (
    checked_int,
    checked_key,
    from_mapping,
    host_shaped,
    no_op,
    refuse,
)
from tensorrt_llm_ext.errors import ConfigError, UnsupportedError

MAX_DRAFT_LEN = 8

_TREES = "trees come later; this engine drafts chains"
_EXACT = "verification here is exact and keeps the target's distribution"

_HOST_FIELDS = {
    "eagle_choices": refuse(_TREES),
    "use_dynamic_tree": refuse(_TREES, False),
    "dynamic_tree_max_topK": refuse(_TREES),
    "max_non_leaves_per_layer": refuse(_TREES),
    "posterior_threshold": refuse(f"typical acceptance is not implemented: {_EXACT}"),
    "use_relaxed_acceptance_for_thinking": refuse(_EXACT, False),
    "relaxed_topk": refuse(_EXACT, 1),
    "relaxed_delta": refuse(_EXACT, 0.0, 0),
    "use_rejection_sampling": no_op(
        "drafts are greedy, and accepting them by exact match is rejection sampling", False
    ),
    "advanced_sampling_mode": no_op("sampled requests are always verified exactly"),
    "enable_penalty": no_op("penalties are always honoured", True, False),
    "allow_advanced_sampling": no_op("sampled requests are always allowed", True, False),
    "greedy_sampling": no_op(f"drafts are greedy, and {_EXACT}", True, False),
    "acceptance_window": refuse("speculation is not switched off by itself", 0),
    "acceptance_length_threshold": refuse("speculation is not switched off by itself"),
    "eagle3_model_arch": refuse("MLA drafts are recognised by their tensors", "llama3"),
    "num_eagle_layers": no_op("the number of layers comes from the draft's checkpoint"),
    "sa_config": refuse("suffix-automaton drafting is not implemented"),
    "use_sa_spec": refuse("suffix-automaton drafting is not implemented", False),
    "sa_spec_threshold": no_op("suffix-automaton drafting is not implemented"),
    "load_format": refuse("drafts are loaded from their checkpoint", "auto"),
}
_ALIASES = {"speculative_model_dir": "speculative_model"}


@host_shaped(aliases=_ALIASES, host_fields=_HOST_FIELDS)
@dataclass(frozen=True, kw_only=True, slots=True)
class EagleDecodingConfig:
    """An Eagle3 draft run as one model with its target.

    Attributes:
        max_draft_len: Draft tokens per step, 0..8; 0 loads the draft and never runs it.
        speculative_model: Folder of the draft; `speculative_model_dir` is another name for it.
        decoding_type: "Eagle" or "Eagle3"; both mean Eagle3.
        max_total_draft_tokens: Equal to `max_draft_len` for chains.
        eagle3_layers_to_capture: Captured layers in the host's convention: id x is the state
            *after* 0-based target layer x, so boundary x + 1. From the draft's own files when None.
        eagle3_one_model: Must be True.
        draft_len_schedule: `{batch size: draft length}`: the length for batches up to that size.
            The smallest key maps to `max_draft_len`; larger batches than the largest key draft
            nothing.
        max_concurrency: Short for `{max_concurrency: max_draft_len}`.

    Raises:
        ConfigError: If a field is unknown, missing, out of range or contradicts another.
        UnsupportedError: If a field of the host is used that this engine cannot honour.
    """

    max_draft_len: int | None = None
    speculative_model: str | os.PathLike[str] | None = None
    decoding_type: str = "Eagle"
    max_total_draft_tokens: int | None = None
    eagle3_layers_to_capture: Collection[int] | None = None
    eagle3_one_model: bool | None = True
    draft_len_schedule: Mapping[int, int] | None = field(default=None, hash=False)
    max_concurrency: int | None = None

    def __post_init__(self) -> None:
        """Checks every field and derives the schedule."""
        kind = type(self).__name__
        if self.decoding_type not in ("Eagle", "Eagle3"):
            raise UnsupportedError(
                f"{kind}.decoding_type={self.decoding_type!r}: only 'Eagle' and 'Eagle3' are "
                "implemented, both for an Eagle3 draft."
            )
        if self.max_draft_len is None:
            raise ConfigError(
                f"{kind}.max_draft_len is missing: give the number of draft tokens per step, "
                f"0..{MAX_DRAFT_LEN}; 3 is a good start."
            )
        checked_int(kind, "max_draft_len", self.max_draft_len, minimum=0, maximum=MAX_DRAFT_LEN)
        if self.max_total_draft_tokens not in (None, self.max_draft_len):
            raise UnsupportedError(
                f"{kind}.max_total_draft_tokens={self.max_total_draft_tokens} with max_draft_len="
                f"{self.max_draft_len}: {_TREES}. Leave it out."
            )
        if self.eagle3_one_model not in (None, True):
            raise UnsupportedError(
                f"{kind}.eagle3_one_model={self.eagle3_one_model!r}: target and draft always run "
                "as one model here. Leave it out."
            )
        if self.speculative_model is not None and not isinstance(
            self.speculative_model, (str, os.PathLike)
        ):
            raise ConfigError(
                f"{kind}.speculative_model must be the draft's folder, got "
                f"{self.speculative_model!r}."
            )
        object.__setattr__(self, "eagle3_layers_to_capture", self._checked_layers(kind))
        object.__setattr__(self, "draft_len_schedule", self._checked_schedule(kind))

    def _checked_layers(self, kind: str) -> tuple[int, ...] | None:
        layers = self.eagle3_layers_to_capture
        if layers is None:
            return None
        if isinstance(layers, (str, bytes)) or not isinstance(layers, Collection):
            raise ConfigError(f"{kind}.eagle3_layers_to_capture must be a list, got {layers!r}.")
        ids = sorted(checked_int(kind, "eagle3_layers_to_capture", x) for x in layers)
        if not ids or len(set(ids)) != len(ids):
            raise ConfigError(
                f"{kind}.eagle3_layers_to_capture must name different layers, got {ids}."
            )
        if ids[0] == -1:
            raise UnsupportedError(
                f"{kind}.eagle3_layers_to_capture contains -1, which on the host is the state "
                "after the final norm. Eagle3 drafts take states before it; for the state after "
                "the last of N layers give N-1."
            )
        if ids[0] < -1:
            raise ConfigError(
                f"{kind}.eagle3_layers_to_capture must hold 0-based layer numbers, got {ids}."
            )
        return tuple(ids)

    def _checked_schedule(self, kind: str) -> dict[int, int] | None:
        schedule = self.draft_len_schedule
        if self.max_concurrency is not None:
            limit = checked_int(kind, "max_concurrency", self.max_concurrency, minimum=1)
            translated = {limit: self.draft_len}
            if schedule is not None and dict(schedule) != translated:
                raise ConfigError(
                    f"{kind}: max_concurrency and draft_len_schedule are mutually exclusive. "
                    f"max_concurrency={limit} is short for draft_len_schedule={translated}."
                )
            return translated
        if schedule is None:
            return None
        if not isinstance(schedule, Mapping) or not schedule:
            raise ConfigError(
                f"{kind}.draft_len_schedule maps batch sizes to draft lengths, for instance "
                f"{{8: {self.max_draft_len}, 32: 1}}; got {schedule!r}."
            )
        checked = {
            checked_key(kind, "draft_len_schedule", key, minimum=1): checked_int(
                kind, "draft_len_schedule value", value, minimum=0, maximum=self.max_draft_len
            )
            for key, value in schedule.items()
        }
        smallest = min(checked)
        if checked[smallest] != self.max_draft_len:
            raise ConfigError(
                f"{kind}.draft_len_schedule[{smallest}] is {checked[smallest]}, but the smallest "
                f"batch size must map to max_draft_len ({self.max_draft_len}). Change one of them."
            )
        return dict(sorted(checked.items()))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> EagleDecodingConfig:
        """Builds the config from a mapping; unknown keys are refused by name."""
        return from_mapping(cls, values)

    @property
    def draft_len(self) -> int:
        """`max_draft_len`, which is always set on a checked config."""
        return self.max_draft_len or 0

    @property
    def draft_lens(self) -> tuple[int, ...]:
        """Every draft length that some batch size may ask for, ascending."""
        lengths = {self.draft_len}
        if self.draft_len_schedule is not None:
            lengths |= {0, *self.draft_len_schedule.values()}
        return tuple(sorted(lengths))

    def draft_len_for(self, batch_size: int) -> int:
        """Returns the draft length for a batch of `batch_size` requests, 0..max_draft_len."""
        if self.draft_len_schedule is None:
            return self.draft_len
        for limit, length in self.draft_len_schedule.items():
            if batch_size <= limit:
                return length
        return 0

    @property
    def boundaries_override(self) -> tuple[int, ...] | None:
        """The captured layers as boundaries (host id + 1), ascending; None when not given."""
        if self.eagle3_layers_to_capture is None:
            return None
        return tuple(layer + 1 for layer in self.eagle3_layers_to_capture)


@host_shaped(aliases=_ALIASES, host_fields=_HOST_FIELDS)
@dataclass(frozen=True, kw_only=True, slots=True)
class Eagle3DecodingConfig(EagleDecodingConfig):
    """The newer name of `EagleDecodingConfig`; means the same."""

    decoding_type: str = "Eagle3"


def speculative_config_from_dict(values: Mapping[str, Any]) -> EagleDecodingConfig:
    """Builds the config that `decoding_type` names, as in the YAML of `trtllm-serve --config`.

    Raises:
        ConfigError: If `decoding_type` is missing or a key is unknown.
        UnsupportedError: If `decoding_type` is another method than Eagle or Eagle3.
    """
    if not isinstance(values, Mapping) or "decoding_type" not in values:
        raise ConfigError(
            "speculative_config needs decoding_type: Eagle (an Eagle3 draft), max_draft_len and "
            f"speculative_model_dir; got {values!r}."
        )
    if values["decoding_type"] == "Eagle3":
        return Eagle3DecodingConfig.from_dict(values)
    return EagleDecodingConfig.from_dict(values)
