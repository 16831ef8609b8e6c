# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""An installed TensorRT-LLM against what was recorded of its era, difference by difference.

The data beside this file are the rows of the recorded API that `versions.SYMBOLS` uses. They are
regenerated from a folder with the full record:

    python -m tensorrt_llm_ext.trtllm.surface FOLDER
"""

from __future__ import annotations

import ast
import functools
import inspect
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final

from tensorrt_llm_ext.checkpoints.checks.base import HostFacts
from tensorrt_llm_ext.errors import HostError, nearest
from tensorrt_llm_ext.trtllm.host import Host, Located, host, probe_host
from tensorrt_llm_ext.trtllm.patches import needed_patches, original
from tensorrt_llm_ext.trtllm.versions import PACKAGE, SYMBOLS, HostSymbol

ERAS: Final = ("E1", "E2", "E3")
_DATA: Final = Path(__file__).with_name("surface_data")
_KEPT: Final = ("kind", "signature", "members", "evidence", "partial")
_SELF: Final = ("self", "cls")

Record = Mapping[str, Mapping[str, Any]]


class Level(str, Enum):
    """How much a difference matters."""

    ERROR = "error"  # what the package calls is not there
    WARNING = "warning"  # it behaves differently, or a call may fail
    INFO = "info"  # it changed, and nothing of ours depends on it


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """One difference between the installed host and the record of its era.

    Attributes:
        level: How much it matters.
        symbol: Name in `versions.SYMBOLS`.
        name: What differs, as `module.name` or `module.name(parameter)`.
        message: What was found and what was recorded.
    """

    level: Level
    symbol: str
    name: str
    message: str

    def to_dict(self) -> dict[str, str]:
        """Returns everything as plain data."""
        return {
            "level": self.level.value,
            "symbol": self.symbol,
            "name": self.name,
            "message": self.message,
        }


@dataclass(frozen=True, kw_only=True)
class HostReport:
    """What `doctor --trtllm` says of an installed host.

    Attributes:
        version: Its version; None when there is none, or it cannot be imported.
        era: "E1", "E2" or "E3"; None without a version.
        missing: What an MLA Eagle3 draft needs and the host lacks.
        symbols: Where each symbol is; None for one that this version does not have.
        patches: What would be patched, by name, with why.
        differences: From the record of the era, the most serious first.
    """

    version: str | None = None
    era: str | None = None
    missing: tuple[str, ...] = ()
    symbols: Mapping[str, str | None]
    patches: Mapping[str, str]
    differences: tuple[Difference, ...] = ()

    @property
    def facts(self) -> HostFacts:
        """What the checks of a pair want to know."""
        return HostFacts(version=self.version, missing=self.missing)

    @property
    def exit_code(self) -> int:
        """1 when the package cannot work with this host."""
        has_errors = any(d.level is Level.ERROR for d in self.differences)
        return int(self.version is None or bool(self.missing) or has_errors)

    def to_dict(self) -> dict[str, Any]:
        """Returns everything as plain data."""
        return {
            "version": self.version,
            "era": self.era,
            "missing": list(self.missing),
            "symbols": dict(self.symbols),
            "patches": dict(self.patches),
            "differences": [difference.to_dict() for difference in self.differences],
        }


def judge_host() -> HostReport:
    """Looks at the installed TensorRT-LLM; whatever is wrong with it is in the report."""
    facts = probe_host()
    try:
        installed = host()
    except HostError:
        return HostReport(version=None, missing=facts.missing, symbols={}, patches={})
    found = {symbol.name: installed.find(symbol.name) for symbol in SYMBOLS}
    return HostReport(
        version=installed.version,
        era=installed.era,
        missing=facts.missing,
        symbols={n: None if place is None else place.place for n, place in found.items()},
        patches={patch.name: patch.why for patch in needed_patches(installed)},
        differences=compare(installed),
    )


def compare(installed: Host, record: Record | None = None) -> tuple[Difference, ...]:
    """Compares what is installed with the record of its era.

    Args:
        installed: The host.
        record: Recorded rows; those of the host's era when None.

    Returns:
        The differences, the most serious first.
    """
    rows = recorded(installed.era) if record is None else record
    found = [d for symbol in SYMBOLS for d in _compare_symbol(installed, symbol, rows)]
    return tuple(sorted(found, key=lambda d: list(Level).index(d.level)))


@functools.cache
def recorded(era: str) -> Record:
    """The recorded rows of an era, by `package.module:Qualified.name`."""
    rows: Record = json.loads((_DATA / f"{era}.json").read_text(encoding="utf-8"))
    return rows


def select(rows: Record) -> dict[str, dict[str, Any]]:
    """The part of a full record that `versions.SYMBOLS` uses."""
    wanted = set()
    for symbol in SYMBOLS:
        for place in symbol.places:
            names = ("", *symbol.members, *((symbol.method,) if symbol.method else ()))
            wanted |= {f"{PACKAGE}.{place}{f'.{name}' if name else ''}" for name in names}
    return {
        name: {key: row[key] for key in _KEPT if key in row}
        for name, row in sorted(rows.items())
        if name in wanted
    }


def _compare_symbol(installed: Host, symbol: HostSymbol, rows: Record) -> Iterator[Difference]:
    known = [p for p in symbol.places if _is_there(rows.get(f"{PACKAGE}.{p}"))]
    found = installed.find(symbol.name)
    if found is None:
        if known or not symbol.optional:
            yield _absent(symbol, (known or list(symbol.places))[0])
        return
    if known and found.place not in known:
        yield Difference(
            level=Level.INFO,
            symbol=symbol.name,
            name=_dotted(found.place),
            message=f"recorded at {_dotted(known[0])}, found at {_dotted(found.place)}",
        )
    for name in symbol.members:
        row = rows.get(f"{PACKAGE}.{found.place}.{name}")
        if _is_there(row) and row is not None and callable(getattr(found.value, name, None)):
            yield from _compare_signature(symbol, found, name, row)
    row = _row_of_call(symbol, found, rows)
    if row is not None:
        yield from _compare_signature(symbol, found, symbol.method, row)


def _row_of_call(symbol: HostSymbol, found: Located, rows: Record) -> Mapping[str, Any] | None:
    """The row of the function or the constructor that is called."""
    method = f".{symbol.method}" if symbol.method else ""
    row = rows.get(f"{PACKAGE}.{found.place}{method}")
    return row if _is_there(row) and row is not None and row.get("signature") else None


def _is_there(row: Mapping[str, Any] | None) -> bool:
    return row is not None and row.get("evidence") != "absent"


def _dotted(place: str) -> str:
    return f"{PACKAGE}.{place.replace(':', '.')}"


def _absent(symbol: HostSymbol, place: str) -> Difference:
    """A symbol that is gone; a similar name in the same module may be its new one."""
    module_name, _, attribute = place.partition(":")
    module = sys.modules.get(f"{PACKAGE}.{module_name}")
    guess = nearest(attribute, dir(module)) if module is not None else None
    renamed = f"; was it renamed to {guess}?" if guess else ""
    return Difference(
        level=Level.ERROR,
        symbol=symbol.name,
        name=_dotted(place),
        message=f"{symbol.why}: recorded, and not there{renamed}",
    )


def _compare_signature(
    symbol: HostSymbol, found: Located, method: str, row: Mapping[str, Any]
) -> Iterator[Difference]:
    function = getattr(found.value, method, None) if method else found.value
    actual = _signature(original(function) if callable(function) else function)
    wanted = _parsed(row.get("signature"))
    if actual is None or wanted is None:
        return
    name = _dotted(found.place) + (f".{method}" if method else "")
    used = symbol.parameters if method == symbol.method else ()
    is_sure = row.get("evidence") == "read" and not row.get("partial")
    has_free = any(p.kind is p.VAR_KEYWORD for p in actual.values())
    for parameter, default in wanted.items():
        here = actual.get(parameter)
        label = f"{name}({parameter})"
        if here is None:
            if not has_free:
                level = Level.ERROR if parameter in used else Level.WARNING
                level = level if is_sure or parameter in used else Level.INFO
                yield _difference(level, symbol, label, "the recorded parameter is not there")
        elif _differs(default, here.default):
            level = Level.WARNING if is_sure else Level.INFO
            shown = "no default" if here.default is here.empty else f"{here.default!r}"
            was = "none" if default is inspect.Parameter.empty else default
            yield _difference(level, symbol, label, f"the default is {shown}, recorded was {was}")
    for new in actual.values():
        is_free = new.kind in (new.VAR_KEYWORD, new.VAR_POSITIONAL)
        if new.name in wanted or is_free:
            continue
        label = f"{name}({new.name})"
        if new.default is new.empty and new.name not in used:
            yield _difference(Level.WARNING, symbol, label, "a new parameter must be given")
        elif is_sure:
            yield _difference(Level.INFO, symbol, label, "a new parameter, with a default")


def _difference(level: Level, symbol: HostSymbol, name: str, message: str) -> Difference:
    return Difference(level=level, symbol=symbol.name, name=name, message=message)


def _signature(function: Any) -> dict[str, inspect.Parameter] | None:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return None
    return {name: p for name, p in parameters.items() if name not in _SELF}


def _parsed(text: str | None) -> dict[str, Any] | None:
    """Parameter -> text of its default, from a recorded signature."""
    if not text:
        return None
    tree = ast.parse(f"def f{text}: ...").body[0]
    if not isinstance(tree, ast.FunctionDef):
        return None
    empty = inspect.Parameter.empty
    plain = [*tree.args.posonlyargs, *tree.args.args]
    defaults: list[Any] = [empty] * (len(plain) - len(tree.args.defaults))
    defaults += [ast.unparse(node) for node in tree.args.defaults]
    found = {a.arg: d for a, d in zip(plain, defaults, strict=True) if a.arg not in _SELF}
    for argument, node in zip(tree.args.kwonlyargs, tree.args.kw_defaults, strict=True):
        found[argument.arg] = empty if node is None else ast.unparse(node)
    return found


def _differs(text: Any, actual: Any) -> bool:
    """Whether a default is another one; what cannot be compared does not differ."""
    empty = inspect.Parameter.empty
    if text is empty or actual is empty:
        return text is not actual and text != "..."
    if text == "...":
        return False
    try:
        value = ast.literal_eval(text)
    except ValueError:  # a name: of an enum's member, a dtype, a function
        last = text.rpartition(".")[2].partition("(")[0]
        names = (getattr(actual, "name", None), getattr(actual, "__name__", None), f"{actual}")
        return not any(str(name).rpartition(".")[2] == last for name in names if name)
    return type(value) is not type(actual) or bool(value != actual)


def main(folder: str) -> None:
    """Writes the data files from a folder with the full record of each era."""
    _DATA.mkdir(exist_ok=True)
    for era in ERAS:
        rows = json.loads((Path(folder) / f"{era}.json").read_text(encoding="utf-8"))["symbols"]
        text = json.dumps(select(rows), indent=1, sort_keys=True)
        (_DATA / f"{era}.json").write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
