# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""User-facing configs in the shape of the host's: aliases, refusals and no-ops as data.

A script written for the TensorRT-LLM LLM API may pass any field of that API. Each such field is one
of three things here: a field of our dataclass; a field without effect on the result (accepted and
noted once); or something that this engine cannot honour (refused with the reason, unless it has
the value that means "not used"). Everything else is a misspelling and is refused by name.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, TypeVar

from tensorrt_llm_ext.errors import ConfigError, UnsupportedError, unknown_key_error

_logger = logging.getLogger(__name__)
_noted: set[tuple[str, str]] = set()

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class HostField:
    """A field of the host's class that is no field of ours.

    Attributes:
        reason: Why it is refused, or why it has no effect; completes "<field>: ...".
        unused: Values that mean "not used"; they are always accepted, silently.
        refused: Whether any other value is an error; otherwise it is noted once and ignored.
    """

    reason: str
    unused: tuple[Any, ...] = (None,)
    refused: bool = True


def refuse(reason: str, *unused: Any) -> HostField:
    """A host field whose use would change results in a way this engine cannot honour."""
    return HostField(reason=reason, unused=(None, *unused))


def no_op(reason: str, *unused: Any) -> HostField:
    """A host field that changes no result here, whatever its value."""
    return HostField(reason=reason, unused=(None, *unused), refused=False)


def _is_unused(value: Any, unused: tuple[Any, ...]) -> bool:
    return any(value is item or (type(value) is type(item) and value == item) for item in unused)


def host_shaped(
    *, aliases: Mapping[str, str] | None = None, host_fields: Mapping[str, HostField] | None = None
) -> Callable[[type[T]], type[T]]:
    """Makes the constructor of a dataclass accept the host's spelling of its fields.

    Args:
        aliases: Other names of our fields, as `{alias: field}`.
        host_fields: Fields of the host that are not ours, with what to do about each.

    Returns:
        A class decorator, to be put above `@dataclass`. The constructor then raises ConfigError for
        an unknown field (with the nearest known one) and UnsupportedError for one that the engine
        cannot honour.
    """
    aliases = dict(aliases or {})
    host_fields = dict(host_fields or {})

    def decorate(cls: type[T]) -> type[T]:
        original = cls.__init__
        own = tuple(f.name for f in dataclasses.fields(cls) if f.init)  # type: ignore[arg-type]

        @functools.wraps(original)
        def init(self: T, **values: Any) -> None:
            original(self, **_translated(cls.__name__, values, own, aliases, host_fields))

        cls.__init__ = init  # type: ignore[method-assign, assignment]
        return cls

    return decorate


def _translated(
    kind: str,
    values: Mapping[str, Any],
    own: tuple[str, ...],
    aliases: Mapping[str, str],
    host_fields: Mapping[str, HostField],
) -> dict[str, Any]:
    """Returns `values` under our own field names; refuses what is unknown or cannot be honoured."""
    result: dict[str, Any] = {}
    for key, value in values.items():
        name = aliases.get(key, key)
        if name in own:
            if name in result and result[name] != value:
                raise ConfigError(
                    f"{kind}: {key!r} and another spelling of {name!r} disagree: {value!r} and "
                    f"{result[name]!r}. Give one of them."
                )
            result[name] = value
        elif key in host_fields:
            _judge(kind, key, value, host_fields[key])
        else:
            ignored = (name for name, field in host_fields.items() if not field.refused)
            raise unknown_key_error(kind, key, (*own, *aliases, *ignored))
    return result


def _judge(kind: str, key: str, value: Any, field: HostField) -> None:
    if _is_unused(value, field.unused):
        return
    if field.refused:
        raise UnsupportedError(f"{kind}.{key}={value!r} cannot be honoured: {field.reason}.")
    if (kind, key) not in _noted:
        _noted.add((kind, key))
        _logger.info("%s.%s=%r has no effect here: %s.", kind, key, value, field.reason)


def from_mapping(cls: type[T], values: Mapping[str, Any]) -> T:
    """Builds a config from a mapping read from YAML or JSON.

    Raises:
        ConfigError: If `values` is not a mapping with text keys, or a key is unknown.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(
            f"{cls.__name__} is built from a mapping of fields, got {type(values).__name__}."
        )
    for key in values:
        if not isinstance(key, str):
            raise ConfigError(f"{cls.__name__}: field names are text, got {key!r}.")
    return cls(**values)


def checked_int(
    kind: str, name: str, value: Any, *, minimum: int | None = None, maximum: int | None = None
) -> int:
    """Returns `value` as an int within bounds; ConfigError names field, value and bounds."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ConfigError(f"{kind}.{name} must be an integer, got {value!r}.")
    number = int(value)
    if (minimum is not None and number < minimum) or (maximum is not None and number > maximum):
        raise ConfigError(f"{kind}.{name} must be {_bounds(minimum, maximum)}, got {number}.")
    return number


def checked_key(kind: str, name: str, key: Any, *, minimum: int) -> int:
    """Returns a mapping's key as an int; JSON has text keys only, so "42" is 42."""
    if isinstance(key, str) and key.isascii() and key.isdigit():
        key = int(key)
    return checked_int(kind, f"{name} key", key, minimum=minimum)


def checked_number(
    kind: str, name: str, value: Any, *, minimum: float | None = None, maximum: float | None = None
) -> float:
    """Returns `value` as a finite float within bounds; ConfigError names field and value."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ConfigError(f"{kind}.{name} must be a number, got {value!r}.")
    number = float(value)
    if number != number or number in (float("inf"), float("-inf")):
        raise ConfigError(f"{kind}.{name} must be finite, got {number}.")
    if (minimum is not None and number < minimum) or (maximum is not None and number > maximum):
        raise ConfigError(f"{kind}.{name} must be {_bounds(minimum, maximum)}, got {number}.")
    return number


def checked_bool(kind: str, name: str, value: Any) -> bool:
    """Returns `value` if it is True or False; ConfigError otherwise ("false" is not False)."""
    if not isinstance(value, bool):
        raise ConfigError(f"{kind}.{name} must be true or false, got {value!r}.")
    return value


def _bounds(minimum: float | None, maximum: float | None) -> str:
    if minimum is None:
        return f"at most {maximum}"
    if maximum is None:
        return f"at least {minimum}"
    return f"between {minimum} and {maximum}"
