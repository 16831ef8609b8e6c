# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""What TensorRT-LLM calls the modules of a draft, and how it matches exclude patterns with them."""

from __future__ import annotations

import fnmatch
import re
from typing import Final

# Patterns come from strangers: one that could run for ever matches nothing.
MAX_PATTERN: Final = 256
_MAX_REPEATS: Final = 4
_REPEAT: Final = re.compile(r"(?<!\\)[*+{]")
_REPEATED_GROUP: Final = re.compile(r"\)[*+?{]|\\[1-9]")


def host_module_names(module: str) -> tuple[str, ...]:
    """Returns the names by which TensorRT-LLM matches a canonical module; the first is today's."""
    if module == "lm_head":
        return ("lm_head",)
    if module.startswith("layers.0."):
        rest = module.removeprefix("layers.0.")
        return (f"model.midlayer.{rest}", f"model.midlayer.0.{rest}")
    if module.startswith("layers."):
        return (f"model.midlayer.{module.removeprefix('layers.')}", f"model.{module}")
    return (f"model.{module}",)


def matches_exclude(pattern: str, module: str) -> bool:
    """Whether an exclude pattern matches a module or one above it, as in current hosts.

    By shell wildcards, by a trailing `.*`, or, after `re:`, as a regular expression; a broken one,
    or one that could run for ever, matches nothing. Older hosts match full names only.
    """
    if len(pattern) > MAX_PATTERN:
        return False
    parts = module.split(".")
    ancestors = [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
    if pattern.startswith("re:"):
        compiled = _compiled(pattern.removeprefix("re:"))
        return compiled is not None and any(compiled.match(name) for name in ancestors)
    pattern = pattern.removesuffix(".*")
    return any(fnmatch.fnmatchcase(name, pattern) for name in ancestors)


def _compiled(text: str) -> re.Pattern[str] | None:
    repeats = len(_REPEAT.findall(text.replace(".*.*", ".*")))
    if repeats > _MAX_REPEATS or _REPEATED_GROUP.search(text):
        return None
    try:
        return re.compile(text)
    except (re.error, OverflowError, RecursionError):
        return None


__all__ = ["host_module_names", "matches_exclude"]
