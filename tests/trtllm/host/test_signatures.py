# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""What the doubles define has the signatures that were read in the sources of its era.

What was inferred, or recorded in part, gates nothing. `...` in a recorded default is a wildcard.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from tests.trtllm.host import ERAS, use_host

# How many there are to compare; fewer means that a name went missing.
MINIMUM = {"e1": 102, "e2": 80, "e3": 59}
OPS = "torch.ops.trtllm"


def read_signatures(era: str) -> Iterator[tuple[str, inspect.Signature]]:
    """The recorded symbols that were read whole, with their signatures."""
    from trtllm_double.signatures import parse, symbols

    for name, row in symbols(era.upper()).items():
        if row["evidence"] == "read" and not row.get("partial") and row.get("signature"):
            yield name, parse(row["signature"])


def found(symbol: str) -> Callable[..., Any] | None:
    """What is imported by that name, if the double defines it."""
    module, _, path = symbol.partition(":")
    try:
        value: Any = importlib.import_module(module)
        for part in path.split("."):
            value = inspect.getattr_static(value, part)
    except (ImportError, AttributeError):
        return None
    for attribute in ("__func__", "fget", "func"):  # static and class methods, properties
        value = getattr(value, attribute, None) or value
    is_theirs = value.__module__.startswith(("torch.", "pydantic."))  # of a base of the double's
    return None if is_theirs else value


def differences(wanted: inspect.Signature, function: Callable[..., Any]) -> list[str]:
    """In which ways a function does not have a signature, or cannot take what it lets in."""
    has = inspect.signature(function).parameters.values()
    wants = wanted.parameters.values()
    named = [(p.name, p.kind) for p in has], [(p.name, p.kind) for p in wants]
    if named[0] != named[1]:
        return [f"{inspect.signature(function)}, recorded {wanted}"]
    wrong = [
        f"{ours.name}={ours.default!r}, recorded {theirs.default!r}"
        for ours, theirs in zip(has, wants, strict=True)
        if theirs.default is not ... and not same(ours.default, theirs.default)
    ]
    inner = inspect.signature(inspect.unwrap(function), follow_wrapped=False).parameters
    if not any(p.kind is p.VAR_KEYWORD for p in inner.values()):
        takes = set(inner) | {"self", "cls"}
        lost = [p.name for p in wants if p.kind is not p.VAR_KEYWORD and p.name not in takes]
        wrong += [f"{name} is let in and not taken" for name in lost]
    return wrong


def same(ours: Any, theirs: Any) -> bool:
    """Defaults that are names of the host are recorded by name."""
    return ours is theirs or ours == theirs or str(ours) == repr(theirs)


def compare(era: str) -> tuple[int, dict[str, list[str]]]:
    """How many symbols were compared, and what is wrong with which."""
    count, wrong = 0, {}
    for symbol, signature in read_signatures(era):
        function = None if symbol.startswith(OPS) else found(symbol)
        if function is None:
            continue
        count += 1
        found_wrong = differences(signature, function)
        if found_wrong:
            wrong[symbol] = found_wrong
    return count, wrong


@pytest.mark.parametrize("era", ERAS)
def test_signatures(era: str) -> None:
    with use_host(era):
        importlib.import_module("tensorrt_llm")
        count, wrong = compare(era)
    assert wrong == {}
    assert count >= MINIMUM[era], count


@pytest.mark.parametrize("era", ERAS)
def test_ops(era: str) -> None:
    """Schemas are compared: names of arguments in order, and their defaults."""
    count = 0
    with use_host(era):
        importlib.import_module("tensorrt_llm._torch.modules.linear")
        for symbol, signature in read_signatures(era):
            name = symbol.removeprefix(f"{OPS}:")
            if name == symbol or not hasattr(torch.ops.trtllm, name):
                continue
            arguments = getattr(torch.ops.trtllm, name).default._schema.arguments
            empty = inspect.Parameter.empty
            has = [(a.name, a.default_value if a.has_default_value() else empty) for a in arguments]
            assert has == [(p.name, p.default) for p in signature.parameters.values()], symbol
            count += 1
    assert count == {"e1": 5, "e2": 3, "e3": 3}[era]


PLANTED = {
    "another name": lambda self, x, bias, lora_params=None, layer_idx=None: None,
    "another default": lambda self, input, bias, lora_params=None, layer_idx=0: None,
    "another kind": lambda self, input, bias, lora_params=None, *, layer_idx=None: None,
    "one more": lambda self, input, bias, lora_params=None, layer_idx=None, more=None: None,
}


@pytest.mark.parametrize("planted", PLANTED.values(), ids=PLANTED)
def test_a_difference_is_named(planted: Callable[..., Any]) -> None:
    with use_host("e1"):
        module = importlib.import_module("tensorrt_llm._torch.modules.linear")
        planted.__module__ = module.__name__
        module.Linear.apply_linear = planted
        wrong = compare("e1")[1]
    assert list(wrong) == ["tensorrt_llm._torch.modules.linear:Linear.apply_linear"]


def test_what_is_let_in_must_be_taken() -> None:
    """A recorded signature in front of a function that has no use for one of its names."""
    with use_host("e3"):
        importlib.import_module("tensorrt_llm")
        from trtllm_double.recorded import bind
        from trtllm_double.signatures import parse

        wanted = parse("(self, x, scale=None)")
        assert differences(wanted, bind(lambda self, x: x, wanted)) == [
            "scale is let in and not taken"
        ]
