# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The host's own config object for a pair, from the resolver of `trtllm-ext config`."""

from __future__ import annotations

import os
from typing import Any

from tensorrt_llm_ext.checkpoints.serving import read_serve_pair
from tensorrt_llm_ext.planning.serve_config import plan_serving
from tensorrt_llm_ext.planning.serve_options import ServeOptions
from tensorrt_llm_ext.trtllm.host import host
from tensorrt_llm_ext.trtllm.plugin import register


def speculative_config(
    target: str | os.PathLike[str],
    draft: str | os.PathLike[str],
    max_draft_len: int = 3,
    **more: Any,
) -> Any:
    """Returns what `tensorrt_llm.LLM(speculative_config=...)` takes, with the layers resolved.

    Args:
        target: Folder of the target.
        draft: Folder of the draft.
        max_draft_len: Draft tokens per step.
        **more: Further fields of the host's config, for instance `draft_len_schedule`.

    Raises:
        HostError: If TensorRT-LLM is not installed.
        ConfigError: If the pair cannot be served together.
    """
    register()
    pair = read_serve_pair(os.fspath(target), os.fspath(draft))
    options = ServeOptions(era=host().era, gpus=1, max_draft_len=max_draft_len)
    arguments = {**plan_serving(pair, options).speculative_arguments, **more}
    arguments["eagle3_layers_to_capture"] = set(arguments["eagle3_layers_to_capture"])
    return host().symbol("Eagle3 config")(**arguments)


__all__ = ["speculative_config"]
