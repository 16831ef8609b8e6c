# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""One hash for one draft, whatever layout its files have."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tensorrt_llm_ext.checkpoints.normalize import DraftCheckpoint, draft_config
from tensorrt_llm_ext.checkpoints.stream import Advance, digest, stored_tensor
from tensorrt_llm_ext.configs.draft import DraftConfig
from tensorrt_llm_ext.configs.quant import QuantConfig
from tensorrt_llm_ext.configs.target import TargetConfig


class TensorDigest(NamedTuple):
    """What identifies a tensor: dtype, shape, and SHA-256 of its bytes."""

    dtype: str
    shape: tuple[int, ...]
    sha256: str


def canonical_hash(
    draft: DraftCheckpoint,
    *,
    target: TargetConfig | None = None,
    boundaries: Sequence[int] | None = None,
) -> str:
    """Returns a SHA-256 that drafts share when they compute the same from the same bits.

    It covers name, dtype, shape and bytes of each canonical tensor and the settings of
    `DraftConfig`, and none of: layout, prefixes, fusion, spelling of layer ids, exclude lists.
    `t2d`, which follows from `d2t`, and the maps of a full vocabulary are left out.

    Args:
        draft: The draft; all of its tensors are read, in chunks.
        target: Its target, where layer ids need one to be understood.
        boundaries: The captured boundaries, where the files do not say them.

    Raises:
        CheckpointError, ConfigError, UnsupportedError: As `draft_config`.
    """
    config = draft_config(draft, target, boundaries=boundaries)
    return combined_hash(config, draft.quant, tensor_digests(draft, config))


def tensor_digests(
    draft: DraftCheckpoint, config: DraftConfig, *, advance: Advance | None = None
) -> dict[str, TensorDigest]:
    """Reads every canonical tensor, but for those that say nothing, and returns its digest."""
    digests = {}
    for name, ref in sorted(draft.tensors.refs.items()):
        if not is_redundant(name, config):
            tensor = stored_tensor(name, draft.files, ref)
            digests[name] = TensorDigest(tensor.dtype, tensor.shape, digest(tensor, advance))
    return digests


def is_redundant(name: str, config: DraftConfig) -> bool:
    """Whether a canonical tensor follows from the others: `t2d`, and maps of a full vocabulary."""
    is_full = config.draft_vocab_size == config.vocab_size
    return name == "t2d" or (name == "d2t" and is_full)


def canonical_settings(config: DraftConfig, quant: QuantConfig) -> dict[str, Any]:
    """Returns everything but tensors that decides what a draft computes, as plain data."""
    settings = dataclasses.asdict(config)
    del settings["boundaries_evidence"]
    # A map of a full vocabulary is the identity.
    settings["has_d2t"] = config.draft_vocab_size != config.vocab_size
    group = quant.group_size if quant.is_quantized else None
    if group is None and "NVFP4" in (quant.algo or ""):
        group = 16  # what NVFP4 means where nothing is said
    settings["quantization"] = [quant.algo, group, quant.kv_cache_algo]
    return settings


def combined_hash(
    config: DraftConfig, quant: QuantConfig, digests: Mapping[str, TensorDigest]
) -> str:
    """Returns the hash of settings and digests that are known already."""
    document = {
        "settings": canonical_settings(config, quant),
        "tensors": {name: list(value) for name, value in sorted(digests.items())},
    }
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
