# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Typed access to a Hugging Face config.json, remembering which keys were understood."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from tensorrt_llm_ext.errors import ConfigError, ExtError, UnsupportedError

_logger = logging.getLogger(__name__)
_warned: set[tuple[str, tuple[str, ...]]] = set()


@contextmanager
def findings_of(check: str) -> Iterator[None]:
    """Makes errors raised inside findings of a check, unless they already are of another."""
    try:
        yield
    except ExtError as error:
        error.check = error.check or check
        raise


class _Required:
    """Marks a key without a default."""


REQUIRED: Final = _Required()
# No size in a config comes near it; more would end in an overflow or an endless loop.
MAX_INTEGER: Final = 2**40
_MAX_SHOWN: Final = 200
_TOO_LARGE: Final = 10**300  # integers of JSON have no limit, floats do

# Keys that say nothing about the function computed at inference: bookkeeping, training settings and
# the generation defaults that transformers 4 wrote into every config.
_HARMLESS_WORDS: Final = """
_name_or_path _commit_hash _attn_implementation attn_implementation architectures model_type
transformers_version auto_map dtype torch_dtype use_cache initializer_range attention_dropout
hidden_dropout aux_loss_alpha router_aux_loss_coef output_router_logits seq_aux pretraining_tp
ep_size tp_size head_dim qk_head_dim max_window_layers ignore_index pad_token_id sep_token_id
decoder_start_token_id tokenizer_class prefix finetuning_task task_specific_params problem_type
id2label label2id return_dict output_hidden_states output_attentions torchscript use_bfloat16
tf_legacy_loss pruned_heads is_encoder_decoder is_decoder cross_attention_hidden_size
add_cross_attention tie_encoder_decoder max_length min_length do_sample early_stopping
num_beams num_beam_groups diversity_penalty temperature top_k top_p typical_p
repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size
bad_words_ids num_return_sequences output_scores return_dict_in_generate forced_bos_token_id
forced_eos_token_id remove_invalid_values exponential_decay_length_penalty suppress_tokens
begin_suppress_tokens chunk_size_feed_forward is_composition unsloth_version
"""
HARMLESS_KEYS: Final = frozenset(_HARMLESS_WORDS.split())


class HFKeys:
    """One mapping of a config.json. `null` means absent, as in transformers.

    Args:
        values: The mapping.
        source: What errors call it, for instance "config.json: text_config".
    """

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        if not isinstance(values, Mapping):
            raise ConfigError(f"{source} must be a JSON object, got {type(values).__name__}.")
        self.values = values
        self.source = source
        self._read: set[str] = set()

    def has(self, key: str) -> bool:
        """Whether the key is present and not null."""
        self._read.add(key)
        return self.values.get(key) is not None

    def raw(self, key: str) -> Any:
        """The value as it is; None when absent."""
        self._read.add(key)
        return self.values.get(key)

    def _get(self, key: str, default: Any) -> Any:
        value = self.raw(key)
        if value is not None:
            return value
        if isinstance(default, _Required):
            raise ConfigError(
                f"{self.source} lacks {key!r}, which the model cannot be built without. Add it, "
                "with the value the model was trained with."
            )
        return default

    def integer(
        self,
        key: str,
        default: int | _Required = REQUIRED,
        *,
        minimum: int = 0,
        maximum: int = MAX_INTEGER,
    ) -> int:
        """Returns an integer of at least `minimum` and at most `maximum`."""
        value = self._get(key, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise self.error(key, value, f"an integer of at least {minimum}")
        if value > maximum:
            raise self.error(key, value, f"an integer of at most {maximum}")
        return value

    def optional_integer(self, key: str, *, minimum: int = 0) -> int | None:
        """Returns an integer of at least `minimum`, or None when absent."""
        return self.integer(key, minimum=minimum) if self.has(key) else None

    def number(self, key: str, default: float | _Required = REQUIRED) -> float:
        """Returns a finite number."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.error(key, value, "a number")
        number = float(value) if abs(value) < _TOO_LARGE else float("inf")
        if number != number or abs(number) == float("inf"):
            raise self.error(key, value, "a finite number")
        return number

    def optional_number(self, key: str) -> float | None:
        """Returns a finite number, or None when absent."""
        return self.number(key) if self.has(key) else None

    def positive_number(self, key: str, default: float | _Required = REQUIRED) -> float:
        """Returns a finite number above zero."""
        value = self.number(key, default)
        if value <= 0:
            raise self.error(key, value, "a number above 0")
        return value

    def boolean(self, key: str, default: bool | _Required = REQUIRED) -> bool:
        """Returns true or false."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.error(key, value, "true or false")
        return value

    def text(self, key: str, default: str | _Required = REQUIRED) -> str:
        """Returns a string."""
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self.error(key, value, "a string")
        return value

    def integers(self, key: str) -> tuple[int, ...] | None:
        """Returns a list of integers, or None when absent."""
        value = self.raw(key)
        if value is None:
            return None
        items = value if isinstance(value, (list, tuple)) else [value]
        if not all(isinstance(item, int) and not isinstance(item, bool) for item in items):
            raise self.error(key, value, "a list of integers")
        return tuple(items)

    def section(self, key: str) -> HFKeys | None:
        """Returns a nested mapping, or None when absent."""
        value = self.raw(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.error(key, value, "a JSON object")
        return HFKeys(value, f"{self.source}: {key}")

    def require_value(self, key: str, allowed: Collection[Any], reason: str) -> None:
        """Refuses any present value but the `allowed` ones, by name.

        Raises:
            UnsupportedError: If the key is present with another value.
        """
        value = self.raw(key)
        if value is not None and value not in allowed:
            wanted = " or ".join(repr(item) for item in allowed)
            raise UnsupportedError(
                f"{self.source}: {key}={value!r} is not supported (only {wanted}): {reason}."
            )

    def error(self, key: str, value: Any, expected: str) -> ConfigError:
        """Builds the error for a value of the wrong type or range."""
        shown = repr(value)
        shown = shown if len(shown) <= _MAX_SHOWN else f"{shown[:_MAX_SHOWN]}..."
        return ConfigError(f"{self.source}: {key!r} must be {expected}, got {shown}.")

    def warn_unknown(self, also_harmless: Collection[str] = ()) -> tuple[str, ...]:
        """Logs, once per set of keys, the keys that nobody read and that are not known noise.

        Returns:
            Those keys, sorted.
        """
        known = self._read | HARMLESS_KEYS | set(also_harmless)
        unknown = tuple(sorted(str(key) for key in self.values if key not in known))
        if unknown and (self.source, unknown) not in _warned:
            _warned.add((self.source, unknown))
            _logger.warning(
                "%s: ignoring keys that this package does not know: %s. If one of them changes "
                "what the model computes, results will be wrong.",
                self.source,
                ", ".join(unknown),
            )
        return unknown


def declared_dtype(config: Mapping[str, Any]) -> str | None:
    """Returns the dtype that a config.json declares, without the `torch.` prefix.

    transformers 4 writes `torch_dtype`, 5 writes `dtype`, and wrappers may say it only in
    `text_config`.

    Raises:
        ConfigError: If two spellings disagree; the message names both values.
    """
    found: dict[str, str] = {}
    text_config = config.get("text_config")
    sections = [("", config)]
    if isinstance(text_config, Mapping):
        sections.append(("text_config.", text_config))
    for prefix, section in sections:
        for key in ("dtype", "torch_dtype"):
            value = section.get(key)
            if isinstance(value, str) and value != "auto":
                found[prefix + key] = value.removeprefix("torch.")
    if len(set(found.values())) > 1:
        listing = ", ".join(f"{key}={value!r}" for key, value in found.items())
        raise ConfigError(f"config.json declares different dtypes: {listing}. Keep one of them.")
    return next(iter(found.values()), None)
