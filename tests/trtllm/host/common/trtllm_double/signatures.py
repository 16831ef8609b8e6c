# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Recorded texts to signatures. Kept between hosts of one process: it knows of no era."""

from __future__ import annotations

import functools
import inspect
import json
import os
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional


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


@functools.cache
def parse(text: str) -> inspect.Signature:
    """Returns the signature that a recorded text means; annotations are left out."""
    scope: dict[str, Any] = {}
    names = _Unknown(torch=torch, F=functional)
    source = "from __future__ import annotations\ndef f" + text + ": ..."
    exec(compile(source, "<recorded>", "exec"), scope, names)
    found = inspect.signature(names["f"])
    parameters = [p.replace(annotation=inspect.Parameter.empty) for p in found.parameters.values()]
    return inspect.Signature(parameters)
