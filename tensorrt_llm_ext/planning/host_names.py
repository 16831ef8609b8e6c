# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""What TensorRT-LLM calls the modules of a draft, and how it matches exclude patterns with them."""

from __future__ import annotations

import fnmatch
import re


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

    By shell wildcards, by a trailing `.*`, or, after `re:`, as a regular expression; a broken one
    matches nothing. Older hosts match full names only.
    """
    parts = module.split(".")
    ancestors = [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
    if pattern.startswith("re:"):
        try:
            compiled = re.compile(pattern.removeprefix("re:"))
        except re.error:
            return False
        return any(compiled.match(name) for name in ancestors)
    pattern = pattern.removesuffix(".*")
    return any(fnmatch.fnmatchcase(name, pattern) for name in ancestors)


__all__ = ["host_module_names", "matches_exclude"]
