# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The object of the installed host that turns speculation on, from a target and a draft."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final

from tensorrt_llm_ext.checkpoints.serving import read_serve_pair
from tensorrt_llm_ext.configs.boundaries import check_layers_to_capture
from tensorrt_llm_ext.errors import UnsupportedError, unknown_key_error
from tensorrt_llm_ext.planning.serve_config import ServeOptions, plan_serving
from tensorrt_llm_ext.trtllm.capture import PLAN_ERAS
from tensorrt_llm_ext.trtllm.host import host
from tensorrt_llm_ext.trtllm.plugin import register

_DRAFT_FIELDS: Final = ("speculative_model", "speculative_model_dir")
_CAPTURED: Final = "eagle3_layers_to_capture"


def speculative_config(
    target: str | os.PathLike[str],
    draft: str | os.PathLike[str],
    max_draft_len: int = 3,
    *,
    boundaries: Sequence[int] | None = None,
    **more: Any,
) -> Any:
    """Resolves what `LLM(speculative_config=...)` of the installed TensorRT-LLM takes.

    It registers this package with the host, without which the draft would not be used, and resolves
    as `trtllm-ext config` does.

    Args:
        target: Folder or hub id of the target.
        draft: Folder or hub id of the draft.
        max_draft_len: Draft tokens per round.
        boundaries: The captured boundaries, where the draft's files leave them open.
        **more: Further fields of the host's class.

    Returns:
        The host's `Eagle3DecodingConfig`, or `EagleDecodingConfig` where that is its name.

    Raises:
        HostError: If TensorRT-LLM is not installed, or lacks what a draft needs.
        CheckpointError: If files cannot be read or are unsafe.
        ConfigError: If the two do not fit, the host's class has no such field, or
            `eagle3_layers_to_capture` names other layers than the draft (V12).
        UnsupportedError: If this version cannot run the pair.
    """
    register()
    installed = host()
    pair = read_serve_pair(target, draft, boundaries=boundaries)
    options = ServeOptions(era=PLAN_ERAS[installed.era], gpus=1, max_draft_len=max_draft_len)
    plan = plan_serving(pair, options)
    if not plan.verdict.with_extension:
        raise UnsupportedError(
            f"TensorRT-LLM {installed.version} cannot run this pair: "
            f"{'; '.join(plan.verdict.extension_reasons)}. `trtllm-ext doctor TARGET DRAFT` lists "
            "the versions that can."
        )
    cls = installed.symbol("Eagle3 config")
    known = getattr(cls, "model_fields", {})
    values = dict(plan.speculative_arguments)
    folder = values.pop(_DRAFT_FIELDS[1])
    values[next((name for name in _DRAFT_FIELDS if name in known), _DRAFT_FIELDS[1])] = folder
    values[_CAPTURED] = set(values[_CAPTURED])
    if more.get(_CAPTURED) is not None:
        check_layers_to_capture(pair.draft.boundaries, more[_CAPTURED])
    for name in more:
        if known and name not in known:
            raise unknown_key_error(cls.__name__, name, known)
    # allow_advanced_sampling and the like are defaults of ours; the user's word counts.
    return cls(**{**values, **more, _CAPTURED: values[_CAPTURED]})
