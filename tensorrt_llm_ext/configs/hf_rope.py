# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Reads rotary settings from both spellings of a Hugging Face config.

transformers 4 writes `rope_theta` beside `rope_scaling` (whose kind is called `type` or
`rope_type`); transformers 5 writes one `rope_parameters` with everything inside. A config may carry
both; then they must say the same.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import Final

from tensorrt_llm_ext.configs.hf_keys import MAX_INTEGER, HFKeys
from tensorrt_llm_ext.configs.mla import RopeConfig, YarnConfig, yarn_mscale
from tensorrt_llm_ext.errors import ConfigError, UnsupportedError, unknown_key_error

_logger = logging.getLogger(__name__)

_YARN_TYPES: Final = ("yarn", "deepseek_yarn")
_PLAIN_TYPES: Final = ("default",)
_COMMON_KEYS: Final = ("type", "rope_type", "rope_theta", "partial_rotary_factor")
# The fields of `YarnConfig`, as they are spelled in config.json.
YARN_FIELDS: Final = tuple(field.name for field in dataclasses.fields(YarnConfig))
_YARN_KEYS: Final = (*YARN_FIELDS, "attention_factor", "truncate", "finetuned")


def rope_config_from_hf(keys: HFKeys, *, default_length: int | None = None) -> RopeConfig:
    """Reads the rotary settings of one model.

    Args:
        keys: The mapping that holds `rope_theta`, `rope_scaling` and `rope_parameters`.
        default_length: Length of an unscaled table where `max_position_embeddings` is absent; it
            must be present when None.

    Returns:
        The table's settings. Where `max_position_embeddings` is absent, YaRN's extended length
        `factor * original_max_position_embeddings` takes its place.

    Raises:
        ConfigError: If the kind of scaling is unknown, a number is missing, or two spellings
            contradict each other.
        UnsupportedError: If a known variation is asked for that changes the rotary table.
    """
    keys.require_value("rope_interleave", (True,), "MLA rotates interleaved pairs")
    keys.require_value("partial_rotary_factor", (1, 1.0), "the rope part is rotated as a whole")
    sections = [
        section
        for name in ("rope_scaling", "rope_parameters")
        if (section := keys.section(name)) is not None and section.values
    ]
    theta = _theta(keys, sections)
    scalings = [_scaling(section) for section in sections]
    if len(scalings) == 2 and scalings[0] != scalings[1]:
        raise ConfigError(
            f"{keys.source}: rope_scaling and rope_parameters contradict each other: "
            f"{_described(scalings[0])} against {_described(scalings[1])}. Keep the one the model "
            "was trained with."
        )
    yarn = scalings[0] if scalings else None
    length = _table_length(keys, yarn, default_length)
    for section in sections:
        _check_attention_factor(
            section, RopeConfig(theta=theta, max_position_embeddings=length, yarn=yarn)
        )
    return RopeConfig(theta=theta, max_position_embeddings=length, yarn=yarn)


def _theta(keys: HFKeys, sections: list[HFKeys]) -> float:
    found = {
        f"{section.source}: rope_theta": section.positive_number("rope_theta")
        for section in (keys, *sections)
        if section.has("rope_theta")
    }
    if not found:
        raise ConfigError(
            f"{keys.source} lacks 'rope_theta', at the top as well as in rope_scaling and "
            "rope_parameters. Add the base frequency the model was trained with (Kimi-K2.x: "
            "50000, DeepSeek-V3: 10000)."
        )
    if len(set(found.values())) > 1:
        listing = ", ".join(f"{name}={value!r}" for name, value in found.items())
        raise ConfigError(f"rope_theta is given twice with different values: {listing}.")
    return next(iter(found.values()))


def _kind(section: HFKeys) -> str:
    names = {key: section.text(key) for key in ("rope_type", "type") if section.has(key)}
    if not names:
        raise ConfigError(
            f"{section.source} lacks 'rope_type' (or 'type'): say 'yarn', or 'default' for no "
            "scaling."
        )
    kinds = {"yarn" if name in _YARN_TYPES else name for name in names.values()}
    if len(kinds) > 1:
        listing = ", ".join(f"{key}={value!r}" for key, value in names.items())
        raise ConfigError(f"{section.source}: {listing} contradict each other. Keep one of them.")
    return kinds.pop()


def _scaling(section: HFKeys) -> YarnConfig | None:
    kind = _kind(section)
    if kind in _PLAIN_TYPES:
        return None
    if kind not in _YARN_TYPES:
        raise ConfigError(
            f"{section.source}: unknown kind of rope scaling {kind!r}. MLA models of this family "
            "use 'yarn' (also spelled 'deepseek_yarn') or 'default'."
        )
    known = (*_COMMON_KEYS, *_YARN_KEYS)
    for key in section.values:
        if key not in known:
            # Any number in here shapes the table, so an unknown one cannot be skipped.
            raise unknown_key_error(section.source, str(key), known)
    section.require_value("truncate", (True,), "YaRN's correction range is rounded outward")
    section.require_value("partial_rotary_factor", (1, 1.0), "the rope part is rotated as a whole")
    return YarnConfig(
        factor=section.positive_number("factor"),
        original_max_position_embeddings=section.integer(
            "original_max_position_embeddings", minimum=1
        ),
        beta_fast=section.positive_number("beta_fast", 32.0),
        beta_slow=section.positive_number("beta_slow", 1.0),
        mscale=section.optional_number("mscale"),
        mscale_all_dim=section.optional_number("mscale_all_dim"),
    )


def _table_length(keys: HFKeys, yarn: YarnConfig | None, default: int | None) -> int:
    if yarn is None and default is not None and not keys.has("max_position_embeddings"):
        _logger.warning(
            "%s lacks 'max_position_embeddings', and its positions are not scaled: taken to be %d, "
            "as engines do.",
            keys.source,
            default,
        )
        return default
    if yarn is None:
        return keys.integer("max_position_embeddings", minimum=1)
    if yarn.factor * yarn.original_max_position_embeddings > MAX_INTEGER:
        raise ConfigError(
            f"{keys.source}: YaRN's factor {yarn.factor} times original_max_position_embeddings "
            f"{yarn.original_max_position_embeddings} is no length of a sequence. Correct them."
        )
    extended = int(yarn.factor * yarn.original_max_position_embeddings)
    length = keys.integer("max_position_embeddings", extended, minimum=1)
    if length != extended:
        _logger.info(
            "%s: max_position_embeddings is %d, YaRN's factor %g times %d is %d. The factor shapes "
            "the table; max_position_embeddings is its length.",
            keys.source,
            length,
            yarn.factor,
            yarn.original_max_position_embeddings,
            extended,
        )
    return length


def _check_attention_factor(section: HFKeys, rope: RopeConfig) -> None:
    """Refuses an explicit factor on cos and sin that differs from the one YaRN derives."""
    factor = section.optional_number("attention_factor")
    if factor is None or rope.yarn is None:
        return
    yarn = rope.yarn
    derived = yarn_mscale(yarn.factor, yarn.mscale or 1.0) / yarn_mscale(
        yarn.factor, yarn.mscale_all_dim or 0.0
    )
    if abs(factor - derived) > 1e-6 * derived:
        raise UnsupportedError(
            f"{section.source}: attention_factor={factor} differs from {derived:.6f}, which "
            "follows from factor, mscale and mscale_all_dim. Remove it, or set mscale to match."
        )


def _described(yarn: YarnConfig | None) -> str:
    return "no scaling" if yarn is None else repr(yarn)
