# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Every error type that this package raises on purpose.

A message says what was found, what was expected, and what to do next. Each type also derives from
the built-in exception that a caller without this package would expect, so `except ValueError`
catches a bad configuration.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

_MAX_MESSAGE: Final = 3000
_MAX_COMPARED: Final = 300
_SAME_ENDS: Final = 8


def presentable(message: str) -> str:
    """Escapes what a terminal cannot show or obeys, and cuts the middle of endless messages.

    Messages quote files of strangers: a name may hold half a surrogate pair or control characters,
    and a value may be megabytes long.
    """
    if len(message) > _MAX_MESSAGE:
        half = _MAX_MESSAGE // 2
        message = f"{message[:half]} [{len(message) - 2 * half} characters] {message[-half:]}"
    if message.isprintable():
        return message
    return "".join(
        c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode()
        for c in message
    )


class ExtError(Exception):
    """Base of all errors raised on purpose by this package.

    Args:
        args: The message; kept printable and of bounded length.
        check: Id of the checkpoint check that the error is a finding of, for instance "V18"
            (`checkpoints.checks`); None for everything else.
    """

    def __init__(self, *args: object, check: str | None = None) -> None:
        super().__init__(*(presentable(a) if isinstance(a, str) else a for a in args))
        self.check = check


class ConfigError(ExtError, ValueError):
    """A setting is unknown, missing, of the wrong type or contradicts another one."""


class ShapeError(ExtError, ValueError):
    """A tensor has another shape or dtype than the operation is defined for."""


class CheckpointError(ExtError, ValueError):
    """A checkpoint folder is incomplete, inconsistent or unsafe to read."""


class KernelNotFoundError(ExtError, NotImplementedError):
    """No registered kernel accepts the call; the message lists each candidate with its reason."""


class UnsupportedError(ExtError, NotImplementedError):
    """The request is well formed, but this package does not implement it."""


class RequestError(ExtError, ValueError):
    """A generation request cannot be served, for instance because its prompt is too long."""


class OutOfBlocksError(ExtError, RuntimeError):
    """The KV pool has too few free blocks; callers roll back, and preempt or wait."""


class AllocatorError(ExtError, RuntimeError):
    """The block allocator was misused: nested transaction, stale handle, foreign or freed block."""


class HostError(ExtError, RuntimeError):
    """An installed TensorRT-LLM lacks, or has changed, something that the adapter relies on."""


def nearest(key: str, known: Iterable[str]) -> str | None:
    """Returns the known name closest in spelling to `key`, or None when none is close.

    Among very many names only those that begin and end alike are compared: a checkpoint has
    hundreds of thousands of tensors, and each comparison takes microseconds.
    """
    wanted, names = key.casefold(), {name.casefold(): name for name in known}
    candidates = list(names)
    if len(candidates) > _MAX_COMPARED:
        begin, end = wanted[:_SAME_ENDS], wanted[-_SAME_ENDS:]
        candidates = [n for n in candidates if n.startswith(begin) and n.endswith(end)]
    matches = difflib.get_close_matches(wanted, candidates[:_MAX_COMPARED], n=1, cutoff=0.6)
    return names[matches[0]] if matches else None


def unknown_key_error(kind: str, key: str, known: Iterable[str]) -> ConfigError:
    """Builds the error for a key that `kind` does not have.

    Args:
        kind: What the key was given to, as the user calls it, for instance `"SamplingParams"`.
        key: The unknown key.
        known: The keys that would have been accepted.

    Returns:
        An error, to be raised by the caller, that names the nearest known key and lists all of
        them.
    """
    names = sorted(known)
    guess = nearest(key, names)
    hint = f"did you mean {guess!r}? " if guess else ""
    listing = ", ".join(names) if names else "none"
    return ConfigError(f"{kind} has no key {key!r}: {hint}known keys: {listing}")
