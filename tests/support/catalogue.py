# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The catalogue of public drafts and targets: one JSON per row, built as header-only folders.

`tests/fixtures/drafts/README.md` explains the keys of a row.
"""

from __future__ import annotations

import copy
import fnmatch
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch

from tests.support.header_only import DTYPES, Spec, write_header_only

FIXTURES = Path(__file__).parents[1] / "fixtures"
# Where a name is looked up, in this order.
_FOLDERS = ("drafts", "targets")
_BRACES = re.compile(r"\{([^{}]+)\}")
_PATTERN_LISTS = ("exclude_modules", "ignore", "exclude")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One checkpoint of the catalogue.

    Attributes:
        repo: Public name, or a descriptive one where nothing was published.
        provenance: "read" when its config was read in a public source, else "inferred".
        inferred: Parts of a read row that are inferred all the same.
        config: Its config.json.
        tensors: dtype name and shape by stored name.
        extra_json: Further documents by file name.
        values: Tensors that have real values.
        shards: Number of files.
        target: The row of its target; None when it is judged alone.
        expect: What detection and checks should say.
    """

    repo: str
    provenance: str
    inferred: tuple[str, ...]
    config: dict[str, Any] = field(repr=False)
    tensors: dict[str, Spec] = field(repr=False)
    extra_json: dict[str, dict[str, Any]] = field(repr=False)
    values: dict[str, torch.Tensor] = field(repr=False)
    shards: int
    target: str | None
    expect: dict[str, Any] = field(repr=False)


def rows() -> tuple[str, ...]:
    """Names of all drafts."""
    return _names("drafts")


def target_rows() -> tuple[str, ...]:
    """Names of all targets."""
    return _names("targets")


def row(name: str) -> Row:
    """Reads one row, templates expanded; the caller may change what it gets."""
    document = _document(name)
    tensors = dict(_tensors(name))
    config = _expand_patterns(_config(name))
    extra = {file: _expand_patterns(value) for file, value in _merged(name, "extra_json").items()}
    return Row(
        repo=name,
        provenance=document["provenance"],
        inferred=tuple(document.get("inferred", ())),
        config=config,
        tensors=tensors,
        extra_json=extra,
        values=_values(tensors, config, _merged(name, "values")),
        shards=document.get("shards", 1),
        target=document.get("target"),
        expect=document["expect"],
    )


def build(
    item: Row | str,
    folder: Path,
    *,
    config: Mapping[str, Any] | None = None,
    without: Sequence[str] = (),
) -> Path:
    """Writes the header-only checkpoint of a row.

    Args:
        item: The row or its name.
        folder: Where to.
        config: Keys of config.json that replace the row's.
        without: Keys of config.json to leave out.
    """
    item = row(item) if isinstance(item, str) else item
    merged = {**item.config, **(config or {})}
    for key in without:
        del merged[key]
    return write_header_only(
        folder,
        merged,
        item.tensors,
        values=item.values,
        extra_json=item.extra_json,
        shards=item.shards,
    )


def expand(pattern: str) -> Iterator[str]:
    """Expands `{a,b}` and `{0..3}` (both ends included), all combinations."""
    parts = _BRACES.split(pattern)
    choices = [_choices(part) if i % 2 else (part,) for i, part in enumerate(parts)]
    return ("".join(words) for words in itertools.product(*choices))


def _choices(text: str) -> tuple[str, ...]:
    first, dots, last = text.partition("..")
    if dots:
        return tuple(str(number) for number in range(int(first), int(last) + 1))
    return tuple(text.split(","))


def _names(kind: str) -> tuple[str, ...]:
    root = FIXTURES / kind
    found = (path.relative_to(root).with_suffix("").as_posix() for path in root.rglob("*.json"))
    return tuple(sorted(found))


@cache
def _document(name: str) -> dict[str, Any]:
    for folder in _FOLDERS:
        path = FIXTURES / folder / f"{name}.json"
        if path.exists():
            return json.loads(path.read_text(encoding="utf-8"))
    raise ValueError(f"{name} is in none of {_FOLDERS} below {FIXTURES}")


def _config(name: str) -> dict[str, Any]:
    document = _document(name)
    base: dict[str, Any] = {}
    if "config_file" in document:
        base = json.loads((FIXTURES / document["config_file"]).read_text(encoding="utf-8"))
    elif "like" in document:
        base = _config(document["like"])
    base |= copy.deepcopy(document.get("config", {}))
    text = document.get("text_config", {})
    if text:
        base["text_config"] = {**base["text_config"], **text}
    for key in document.get("config_without", ()):
        section, _, inner = key.rpartition(".")
        del (base[section] if section else base)[inner]
    return base


def _merged(name: str, key: str) -> dict[str, Any]:
    document = _document(name)
    inherited = _merged(document["like"], key) if "like" in document else {}
    return {**inherited, **copy.deepcopy(document.get(key, {}))}


@cache
def _tensors(name: str) -> dict[str, Spec]:
    """The tensors in the order of their names, as most tools write them."""
    document = _document(name)
    found = dict(_tensors(document["like"])) if "like" in document else {}
    for pattern in document.get("tensors_without", ()):
        gone = set(expand(pattern))
        if not gone <= set(found):
            raise ValueError(f"{name}: tensors_without {pattern} names absent tensors")
        found = {tensor: spec for tensor, spec in found.items() if tensor not in gone}
    for pattern, replacement in document.get("rename", {}).items():
        regex = re.compile(pattern)
        found = {regex.sub(replacement, tensor): spec for tensor, spec in found.items()}
    for dtype, shapes in document.get("tensors", {}).items():
        for pattern, shape in shapes.items():
            spec = (dtype, tuple(shape))
            found.update(dict.fromkeys(expand(pattern), spec))
    return dict(sorted(found.items()))


def _expand_patterns(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: [text for item in inner for text in expand(item)]
            if key in _PATTERN_LISTS and isinstance(inner, list)
            else _expand_patterns(inner)
            for key, inner in value.items()
        }
    return value


def _values(
    tensors: Mapping[str, Spec], config: Mapping[str, Any], fills: Mapping[str, Any]
) -> dict[str, torch.Tensor]:
    """Norms are ones, vocabulary maps consistent, and whatever a pattern names is filled."""
    values: dict[str, torch.Tensor] = {}
    for pattern, number in {"*norm*.weight": 1.0, **fills}.items():
        for tensor in fnmatch.filter(tensors, pattern):
            dtype, shape = tensors[tensor]
            values[tensor] = torch.full(shape, number, dtype=torch.float32).to(DTYPES[dtype][1])
    maps = {tensor: tensor.rpartition(".")[2] for tensor in tensors}
    maps = {tensor: last for tensor, last in maps.items() if last in ("d2t", "t2d")}
    if maps:
        inner = config.get("transformer_layer_config", config)
        kept = kept_ids(config["draft_vocab_size"], inner["vocab_size"])
        mask = torch.zeros(inner["vocab_size"], dtype=torch.bool)
        mask[kept] = True
        offsets = kept - torch.arange(len(kept))
        values |= {tensor: mask if last == "t2d" else offsets for tensor, last in maps.items()}
    return values


def kept_ids(draft_vocab: int, vocab: int) -> torch.Tensor:
    """Ascending target ids that a pruned vocabulary keeps; the same ones in every run."""
    generator = torch.Generator().manual_seed(0)
    return torch.randperm(vocab, generator=generator)[:draft_vocab].sort().values
