# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The only place that touches an installed TensorRT-LLM; imports nothing of it when it is absent.

A probe never fails: whatever an installation lacks, or raises while it is imported, is a line of
the result.
"""

from __future__ import annotations

import dis
import functools
import importlib
import importlib.metadata
import importlib.util
import inspect
import logging
import sys
from collections.abc import Iterable
from types import CodeType, ModuleType
from typing import Any, Final

from tensorrt_llm_ext.checkpoints.checks.base import HostFacts
from tensorrt_llm_ext.errors import HostError
from tensorrt_llm_ext.trtllm.versions import PACKAGE, SYMBOLS, HostSymbol

_logger = logging.getLogger(__name__)
_ABSENT: Final = object()


def is_installed() -> bool:
    """Whether TensorRT-LLM can be found; nothing of it is imported."""
    if PACKAGE in sys.modules:
        return sys.modules[PACKAGE] is not None
    try:
        return importlib.util.find_spec(PACKAGE) is not None
    except (ImportError, ValueError):
        return False


def probe_host(symbols: Iterable[HostSymbol] = SYMBOLS) -> HostFacts:
    """Says which of the needed symbols an installed TensorRT-LLM lacks.

    Args:
        symbols: What to look for.

    Returns:
        Version and missing names; no version and no missing names when it is not installed. A
        broken installation has the error of its import among the missing names.
    """
    if not is_installed():
        return HostFacts()
    package, error = _imported(PACKAGE)
    if package is None:
        return HostFacts(version=_distribution_version(), missing=(f"{PACKAGE} ({error})",))
    missing: list[str] = []
    for symbol in symbols:
        missing.extend(() if symbol.is_optional else _missing(symbol))
    version = getattr(package, "__version__", None)
    return HostFacts(
        version=str(version) if version else _distribution_version() or "unknown",
        missing=tuple(missing),
    )


class Host:
    """The installed TensorRT-LLM: symbols on demand, and what they accept."""

    def __init__(self) -> None:
        self._found: dict[str, Any] = {}

    @property
    def version(self) -> str:
        """Version string, for messages only: nothing is decided by it."""
        package, _ = _imported(PACKAGE)
        version = getattr(package, "__version__", None)
        return str(version) if version else _distribution_version() or "unknown"

    @property
    def era(self) -> str:
        """Which of "1.2", "1.3" and "1.4" the installation behaves like, by its features."""
        if self.optional("register_draft_model") is not None:
            return "1.4"
        worker = self.optional("get_spec_worker")
        takes_cache = worker is not None and self.accepts(worker, "use_separate_draft_kv_cache")
        return "1.3" if takes_cache else "1.2"

    def symbol(self, name: str) -> Any:
        """Returns a symbol of the table in `versions`, imported when first asked for.

        Raises:
            HostError: If no known place has it; all places are named.
        """
        if name not in self._found:
            self._found[name] = self._resolve(_row(name))
        return self._found[name]

    def optional(self, name: str) -> Any | None:
        """Returns a symbol, or None where this version has none."""
        try:
            return self.symbol(name)
        except HostError:
            return None

    def accepts(self, function: Any, parameter: str) -> bool:
        """Whether a function of the host has a parameter of this name."""
        accepted = _accepted(function)
        return accepted is not None and parameter in accepted

    def module_of(self, name: str) -> ModuleType:
        """Returns the module that holds a symbol, for the patches of the ledger."""
        for place in _row(name).places:
            module, _ = _imported(f"{PACKAGE}.{place.partition(':')[0]}")
            if module is not None and _attribute(module, place.partition(":")[2]) is not _ABSENT:
                return module
        raise self._absent(_row(name), [])

    def _resolve(self, row: HostSymbol) -> Any:
        errors = []
        for place in row.places:
            module_name, _, attribute = place.partition(":")
            module, error = _imported(f"{PACKAGE}.{module_name}")
            if module is None:
                errors += [f"{module_name}: {error}"] if error else []
                continue
            found = _attribute(module, attribute)
            if found is not _ABSENT:
                return found
        raise self._absent(row, errors)

    def _absent(self, row: HostSymbol, errors: list[str]) -> HostError:
        places = ", ".join(place.replace(":", ".") for place in row.places)
        details = f" ({'; '.join(errors)})" if errors else ""
        return HostError(
            f"TensorRT-LLM {self.version} has no {row.name}, needed for {row.why}. Tried below "
            f"{PACKAGE}: {places}{details}. Run `trtllm-ext doctor --trtllm` for all that differs."
        )


def _row(name: str) -> HostSymbol:
    return next(row for row in SYMBOLS if row.name == name)


@functools.cache
def host() -> Host:
    """Returns the installed host.

    Raises:
        HostError: If TensorRT-LLM is not installed, or cannot be imported.
    """
    if not is_installed():
        raise HostError(
            "TensorRT-LLM is not installed in this environment. Install tensorrt_llm_ext into "
            "NVIDIA's release image (docker/README.md), or use the embedded engine: "
            "`from tensorrt_llm_ext import LLM`."
        )
    package, error = _imported(PACKAGE)
    if package is None:
        raise HostError(
            f"TensorRT-LLM is installed, but {error}. Run `trtllm-ext doctor --trtllm` there."
        )
    return Host()


def _distribution_version() -> str | None:
    try:
        return importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return None


def _imported(name: str) -> tuple[ModuleType | None, str]:
    """Imports a module of the host; returns None and the reason when it cannot be."""
    try:
        return importlib.import_module(name), ""
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            return None, ""  # this version has no such module; another place may have it
        return None, f"importing it raises {type(error).__name__}: {error}"
    except (Exception, SystemExit) as error:  # libraries that are missing or too old, MPI, drivers
        _logger.debug("%s cannot be imported", name, exc_info=True)
        return None, f"importing it raises {type(error).__name__}: {error}"


def _missing(symbol: HostSymbol) -> list[str]:
    """Returns what of one symbol is missing, as `module.name`, with reasons."""
    faults: list[str] = []
    for place in symbol.places:
        module_name, _, attribute = place.partition(":")
        module, error = _imported(f"{PACKAGE}.{module_name}")
        if module is None:
            faults += [f"{module_name} ({error})"] if error else []
            continue
        found = _attribute(module, attribute)
        if found is not _ABSENT:
            return [f"{module_name}.{attribute}{part}" for part in _lacking(found, symbol)]
    known = " or ".join(place.replace(":", ".") for place in symbol.places)
    return faults or [known]


def _attribute(module: ModuleType, path: str) -> Any:
    found: Any = module
    for part in path.split("."):
        try:
            found = getattr(found, part, _ABSENT)
        except (Exception, SystemExit):  # lazy modules import on access
            _logger.debug("%s.%s cannot be read", module.__name__, path, exc_info=True)
            return _ABSENT
        if found is _ABSENT:
            return _ABSENT
    return found


def _lacking(found: Any, symbol: HostSymbol) -> list[str]:
    lacking = [f".{name}" for name in symbol.members if not _has_member(found, name)]
    if not symbol.parameters:
        return lacking
    function = getattr(found, symbol.method, None) if symbol.method else found
    prefix = f".{symbol.method}" if symbol.method else ""
    if function is None:
        return [*lacking, prefix]
    accepted = _accepted(function)
    if accepted is None:
        return lacking  # compiled code shows no signature; nothing is known against it
    return lacking + [f"{prefix}({name})" for name in symbol.parameters if name not in accepted]


def _has_member(found: Any, name: str) -> bool:
    """Whether a class has a member, declares it as a field, or sets it in a constructor."""
    if hasattr(found, name):
        return True
    bases = getattr(found, "__mro__", (found,))
    for base in bases:
        fields = (getattr(base, "__annotations__", {}), getattr(base, "model_fields", {}))
        if any(name in known for known in fields):
            return True
        for constructor in ("__init__", "__post_init__"):
            code = getattr(vars(base).get(constructor), "__code__", None)
            if code is not None and name in _stored_attributes(code):
                return True
    return False


def _stored_attributes(code: CodeType) -> set[str]:
    return {i.argval for i in dis.get_instructions(code) if i.opname == "STORE_ATTR"}


def _accepted(function: Any) -> set[str] | None:
    """Names of parameters, and `**` where free keywords are taken; None when unknown."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    free = {"**" for p in parameters if p.kind is inspect.Parameter.VAR_KEYWORD}
    return free | {p.name for p in parameters}
