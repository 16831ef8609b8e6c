# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""What the three host doubles share. A process has one of them, chosen by its package's import."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence

ERA = ""
VERSION = ""
PACKAGE = "tensorrt_llm"


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes the modules of the host out of the table in `trtllm_double.modules`."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not name.startswith(f"{PACKAGE}."):
            return None
        from trtllm_double.modules import table

        wanted = name.removeprefix(f"{PACKAGE}.")
        known = table()
        is_package = any(other.startswith(f"{wanted}.") for other in known)
        if wanted not in known and not is_package:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=is_package)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        from trtllm_double.modules import table

        names = table().get(module.__name__.removeprefix(f"{PACKAGE}."), {})
        vars(module).update(names)


def install(era: str, package: str, version: str) -> None:
    """Chooses the era and makes its modules importable."""
    global ERA, VERSION
    if ERA and era != ERA:
        raise ImportError(f"the double of {ERA} is in this process; {era} needs another one")
    ERA, VERSION = era, version
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    importlib.import_module("trtllm_double.modules")
