# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Recorded signatures: a class of the double takes exactly what the host's takes, no more."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import trtllm_double
from trtllm_double.signatures import parse, symbols

UNRECORDED = ...


def recorded_signature(symbol: str) -> inspect.Signature | None:
    """The signature of `module:Qualified.name` in the current era; None where none is recorded."""
    row = symbols(trtllm_double.ERA).get(symbol)
    if row is None or row["evidence"] == "absent" or not row.get("signature"):
        return None
    return parse(row["signature"])


def _plan(
    signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[list[str], dict[str, Any]]:
    """Names of the positional arguments, and the recorded defaults of what was not given."""
    signature.bind(*args, **kwargs)  # refuses what the host would refuse
    positional = [
        p.name
        for p in signature.parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    names = positional[: len(args)]
    defaults = {
        p.name: p.default
        for p in signature.parameters.values()
        if p.default is not p.empty and p.default is not UNRECORDED
    }
    return names, defaults


def bind(function: Callable[..., Any], signature: inspect.Signature) -> Callable[..., Any]:
    """Returns `function` behind a recorded signature; what was not given is not passed on."""

    parameters = signature.parameters.values()
    is_plain = not any(p.kind is p.VAR_POSITIONAL for p in parameters)
    plans: dict[Any, tuple[list[str], dict[str, Any]]] = {}

    @functools.wraps(function)
    def bound(*args: Any, **kwargs: Any) -> Any:
        key = (len(args), tuple(kwargs))
        if key not in plans:
            plans[key] = _plan(signature, args, kwargs)
        names, defaults = plans[key]
        rest = () if is_plain else args[len(names) :]
        named = {**defaults, **dict(zip(names, args, strict=not rest)), **kwargs}
        if "self" in named:
            return function(named.pop("self"), *rest, **named)
        named.pop("cls", None)
        return function(*rest, **named)

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
