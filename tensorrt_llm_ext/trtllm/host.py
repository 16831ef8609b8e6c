# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The only place that touches an installed TensorRT-LLM; imports nothing of it when it is absent.

A probe never fails: whatever an installation lacks, or raises while it is imported, is a line of
the result. `host()` hands out symbols, and fails by name for one that is not there.
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
from dataclasses import dataclass
from types import CodeType, ModuleType
from typing import Any, Final

from tensorrt_llm_ext.checkpoints.checks.base import HostFacts
from tensorrt_llm_ext.errors import HostError
from tensorrt_llm_ext.trtllm.versions import PACKAGE, SYMBOLS, HostSymbol, symbol_named

_logger = logging.getLogger(__name__)
_ABSENT: Final = object()
_NEXT_STEP: Final = "`trtllm-ext doctor --trtllm` lists what this installation lacks."


@dataclass(frozen=True, kw_only=True, slots=True)
class Located:
    """A symbol that was found.

    Attributes:
        owner: The module or class that holds it.
        attribute: Its name there.
        place: `module:attribute` below the package.
        value: What is there now.
    """

    owner: Any
    attribute: str
    place: str
    value: Any


class Host:
    """An installed TensorRT-LLM, symbol by symbol; each is looked up when it is asked for."""

    def __init__(self, version: str) -> None:
        self.version = version

    @functools.cached_property
    def era(self) -> str:
        """E1, E2 or E3, by what is there and never by the version number."""
        builder = self.find("draft builder")
        if builder is not None and builder.attribute == "register_draft_model":
            return "E3"
        counts = self.has_parameter("Eagle3DraftModel.forward", "", "all_rank_num_tokens")
        return "E2" if counts else "E1"

    def find(self, name: str) -> Located | None:
        """Where a symbol is, or None where this version has none."""
        return _located(symbol_named(name))[0]

    def optional(self, name: str) -> Any | None:
        """A symbol by its name in `versions.SYMBOLS`, or None where this version has none."""
        found = self.find(name)
        return None if found is None else found.value

    def symbol(self, name: str) -> Any:
        """A symbol by its name in `versions.SYMBOLS`.

        Raises:
            HostError: If this version has it at none of the known places.
        """
        row = symbol_named(name)
        found, errors = _located(row)
        if found is not None:
            return found.value
        tried = ", ".join(f"{PACKAGE}.{place.replace(':', '.')}" for place in row.places)
        because = f" ({'; '.join(errors)})" if errors else ""
        raise HostError(
            f"TensorRT-LLM {self.version} has no {name}, {row.why}. Tried: {tried}{because}. "
            f"{_NEXT_STEP}"
        )

    def has_parameter(self, name: str, method: str, parameter: str) -> bool:
        """Whether a function, or a method of a class, takes a parameter of that name.

        Args:
            name: Symbol in `versions.SYMBOLS`; one that is not there takes nothing.
            method: Method of the class; empty for the symbol itself.
            parameter: Name of the parameter; `**` asks for free keywords.
        """
        found = self.optional(name)
        function = getattr(found, method, None) if method else found
        accepted = None if function is None else _accepted(function)
        return accepted is not None and parameter in accepted

    def accepts(self, function: Any, parameter: str) -> bool:
        """Whether a function of the host takes a parameter of that name."""
        accepted = _accepted(function)
        return accepted is not None and parameter in accepted


def host() -> Host:
    """The installed TensorRT-LLM.

    Raises:
        HostError: If there is none, or it cannot be imported.
    """
    if not is_installed():
        raise HostError(
            "TensorRT-LLM is not installed in this environment, so there is nothing to extend. "
            "Install it, or use NVIDIA's release image (docker/README.md); "
            "`tensorrt_llm_ext.LLM` and `trtllm-ext generate` need none."
        )
    return _host()


@functools.cache
def _host() -> Host:
    package, error = _imported(PACKAGE)
    if package is None:
        raise HostError(
            f"TensorRT-LLM {_distribution_version() or ''} is installed, but {error}. Mend the "
            f"installation; {_NEXT_STEP}"
        )
    return Host(_version_of(package))


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
        missing.extend(_missing(symbol))
    return HostFacts(version=_version_of(package), missing=tuple(missing))


def _version_of(package: ModuleType) -> str:
    version = getattr(package, "__version__", None)
    return str(version) if version else _distribution_version() or "unknown"


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


def _located(symbol: HostSymbol) -> tuple[Located | None, list[str]]:
    """Tries every place of a symbol; returns why modules of it cannot be imported, too."""
    errors: list[str] = []
    for place in symbol.places:
        module_name, _, attribute = place.partition(":")
        module, error = _imported(f"{PACKAGE}.{module_name}")
        if module is None:
            errors += [f"{module_name} ({error})"] if error else []
            continue
        holder, _, last = attribute.rpartition(".")
        owner = _attribute(module, holder) if holder else module
        value = _ABSENT if owner is _ABSENT else _attribute(owner, last)
        if value is not _ABSENT:
            return Located(owner=owner, attribute=last, place=place, value=value), errors
    return None, errors


def _missing(symbol: HostSymbol) -> list[str]:
    """Returns what of one symbol is missing, as `module.name`, with reasons."""
    found, errors = _located(symbol)
    if found is not None:
        place = found.place.replace(":", ".")
        return [f"{place}{part}" for part in _lacking(found.value, symbol)]
    if errors or not symbol.optional:
        return errors or [" or ".join(place.replace(":", ".") for place in symbol.places)]
    return []


def _attribute(owner: Any, path: str) -> Any:
    found: Any = owner
    for part in path.split("."):
        try:
            found = getattr(found, part, _ABSENT)
        except (Exception, SystemExit):  # lazy modules import on access
            _logger.debug("%s of %r cannot be read", path, owner, exc_info=True)
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
            code = getattr(inspect.unwrap(vars(base).get(constructor, base)), "__code__", None)
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
