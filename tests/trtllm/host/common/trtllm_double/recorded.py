# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Recorded signatures: a class of the double takes exactly what the host's takes, no more."""

from __future__ import annotations

import functools
import inspect
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

import trtllm_double

UNRECORDED = ...


class _Unknown(dict):
    """Stands in for names of the host that only annotations and enum defaults need."""

    def __missing__(self, name: str) -> Any:
        if name in ("Optional", "List", "Dict", "Tuple", "Union", "Callable", "Set", "Type"):
            return dict
        return _Member(name)


class _Member:
    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, name: str) -> _Member:
        return _Member(f"{self.name}.{name}")

    def __repr__(self) -> str:
        return self.name

    def __eq__(self, other: object) -> bool:
        return repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(self.name)


def folder() -> Path:
    """Where the recorded surfaces lie."""
    given = os.environ.get("TRTLLM_DOUBLE_RECORDED")
    return Path(given) if given else Path(__file__).parents[4] / "fixtures" / "host_api"


@functools.cache
def symbols(era: str) -> dict[str, dict[str, Any]]:
    """The recorded symbols of an era."""
    return json.loads((folder() / f"{era}.json").read_text(encoding="utf-8"))["symbols"]


def parse(text: str) -> inspect.Signature:
    """Returns the signature that a recorded text means; annotations are left out."""
    scope: dict[str, Any] = {}
    names = _Unknown(torch=torch, F=functional)
    source = "from __future__ import annotations\ndef f" + text + ": ..."
    exec(compile(source, "<recorded>", "exec"), scope, names)
    found = inspect.signature(names["f"])
    parameters = [p.replace(annotation=inspect.Parameter.empty) for p in found.parameters.values()]
    return inspect.Signature(parameters)


def recorded_signature(symbol: str) -> inspect.Signature | None:
    """The signature of `module:Qualified.name` in the current era; None where none is recorded."""
    row = symbols(trtllm_double.ERA).get(symbol)
    if row is None or row["evidence"] == "absent" or not row.get("signature"):
        return None
    return parse(row["signature"])


def bind(function: Callable[..., Any], signature: inspect.Signature) -> Callable[..., Any]:
    """Returns `function` behind a recorded signature; what was not given is not passed on."""

    @functools.wraps(function)
    def bound(*args: Any, **kwargs: Any) -> Any:
        call = signature.bind(*args, **kwargs)
        call.apply_defaults()
        positional, named = [], {}
        for name, parameter in signature.parameters.items():
            value = call.arguments[name]
            if parameter.kind is parameter.VAR_POSITIONAL:
                positional.extend(value)
            elif parameter.kind is parameter.VAR_KEYWORD:
                named.update(value)
            elif value is not UNRECORDED:
                named[name] = value
        if "self" in named:
            return function(named.pop("self"), *positional, **named)
        if "cls" in named:
            named.pop("cls")
        return function(*positional, **named)

    bound.__signature__ = signature  # type: ignore[attr-defined]
    return bound


def adopt(cls: type, module: str) -> type:
    """Gives a class its place in the host, and its methods their recorded signatures."""
    cls.__module__ = f"tensorrt_llm.{module}"
    for name, member in list(vars(cls).items()):
        if not inspect.isfunction(member):
            continue
        signature = recorded_signature(f"tensorrt_llm.{module}:{cls.__name__}.{name}")
        if signature is not None:
            setattr(cls, name, bind(member, signature))
    return cls


def adopt_function(function: Callable[..., Any], module: str) -> Callable[..., Any]:
    """Gives a function its recorded signature."""
    signature = recorded_signature(f"tensorrt_llm.{module}:{function.__name__}")
    return function if signature is None else bind(function, signature)
