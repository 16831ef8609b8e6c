# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""What the layouts share: looking at odd files without falling over, and flat configs."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from tensorrt_llm_ext.checkpoints.formats.base import DraftFiles

IDS_KEY: Final = "eagle_aux_hidden_state_layer_ids"
EAGLE: Final = "eagle_config"
# A draft wrapped in another config carries its own one under one of these.
_INNER: Final = ("text_config", "transformer_layer_config")
# Settings of the draft whose values must not be chosen between: a reader reports both.
_CONTESTED_WORDS: Final = (
    "eagle_aux_hidden_state_layer_ids aux_hidden_states_layer_ids trtllm_ext_aux_boundaries "
    "fc_norm use_aux_norm norm_output return_hidden_post_norm norm_before_fc norm_before_residual "
    "num_aux_hidden_states"
)
_CONTESTED: Final = frozenset(_CONTESTED_WORDS.split())

STRIP_PREFIXES: Final = (re.compile(r"^(?:(?:model|draft_model|eagle_module)\.)+"), "")
MIDLAYER_NUMBERED: Final = (re.compile(r"^midlayer\.([0-9]+)\."), r"layers.\1.")
MIDLAYER: Final = (re.compile(r"^midlayer\."), "layers.0.")
EMBED_NORM: Final = (re.compile(r"^(layers\.[0-9]+\.)embed_layernorm\."), r"\1input_layernorm.")
UNION: Final = (STRIP_PREFIXES, MIDLAYER_NUMBERED, MIDLAYER, EMBED_NORM)


def mapping(value: object) -> Mapping[str, Any]:
    """Returns a mapping, or an empty one for anything else."""
    return value if isinstance(value, Mapping) else {}


def eagle_config(files: DraftFiles) -> Mapping[str, Any]:
    """Returns the nested eagle settings, or an empty mapping."""
    return mapping(files.config.get(EAGLE))


def architectures(files: DraftFiles) -> tuple[str, ...]:
    """Returns the declared architecture strings."""
    names = files.config.get("architectures")
    names = [names] if isinstance(names, str) else names
    return tuple(n for n in names if isinstance(n, str)) if isinstance(names, (list, tuple)) else ()


def setting(files: DraftFiles, key: str) -> Any:
    """Returns a key of the nested eagle settings, or of the top of the file."""
    nested = eagle_config(files).get(key)
    return files.config.get(key) if nested is None else nested


def layer_ids(files: DraftFiles, key: str = IDS_KEY) -> tuple[int, ...] | None:
    """Returns a list of layer ids, or None when it is absent or no list of integers."""
    value = setting(files, key)
    if not isinstance(value, (list, tuple)) or not value:
        return None
    whole = all(isinstance(item, int) and not isinstance(item, bool) for item in value)
    return tuple(value) if whole else None


def has(names: Iterable[str], pattern: str) -> bool:
    """Whether a regular expression is found in any of the names."""
    compiled = re.compile(pattern)
    return any(compiled.search(name) for name in names)


def has_embedding(files: DraftFiles) -> bool:
    """Whether the draft brings an embedding of its own."""
    return has(files.shapes, r"(^|\.)embed_tokens\.weight$")


def present(keys: Collection[str], *sections: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the keys that any of the sections has, null or not, sorted."""
    return tuple(sorted(key for key in keys if any(key in section for section in sections)))


def without_nulls(value: Any) -> Any:
    """Returns a JSON value whose objects have no null members, at any depth."""
    if isinstance(value, Mapping):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return value


def null_keys(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the names of the keys that are null, nested ones as `outer.inner`, sorted."""
    found = []
    for key, value in config.items():
        if value is None:
            found.append(key)
        elif isinstance(value, Mapping):
            found += [f"{key}.{inner}" for inner in null_keys(value)]
    return tuple(sorted(found))


def flat_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Flattens a draft's config.json into the keys that `configs.hf_draft` reads.

    Wrappers (`text_config`, `transformer_layer_config`) and `eagle_config` move to the top, nulls
    go, and `num_nextn_predict_layers: 0` counts as absent. Where a nested key contradicts one at
    the top it stays in `eagle_config`, so that the reader sees, and refuses, both.
    """
    clean: dict[str, Any] = without_nulls(config)
    nested = clean.pop(EAGLE, None)
    flat = dict(clean)
    contested: dict[str, Any] = {}
    for name in _INNER:
        inner = flat.get(name)
        if not isinstance(inner, Mapping):
            continue
        del flat[name]
        for key, value in inner.items():
            if key in _CONTESTED and key in flat and flat[key] != value:
                contested[key] = value
            elif key not in _CONTESTED or key not in flat:
                flat[key] = value
        if isinstance(inner.get(EAGLE), Mapping) and nested is None:
            nested = flat.pop(EAGLE)
    if nested is not None and not isinstance(nested, Mapping):
        flat[EAGLE] = nested  # the reader says what is wrong with it
        nested = None
    for key, value in {**contested, **mapping(nested)}.items():
        if key not in flat:
            flat[key] = value
        elif flat[key] != value:
            flat.setdefault(EAGLE, {})[key] = value
    if flat.get("num_nextn_predict_layers") == 0:
        del flat["num_nextn_predict_layers"]
    return flat
