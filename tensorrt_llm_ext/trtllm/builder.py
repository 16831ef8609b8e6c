# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Which class a draft becomes: ours for an MLA draft that was prepared, the host's for all else."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from tensorrt_llm_ext.trtllm.capture import prepared

_logger = logging.getLogger(__name__)


def build_draft(
    previous: Callable[..., Any], model_config: Any, draft_config: Any, lm_head: Any, model: Any
) -> Any:
    """Builds the draft of a target.

    Args:
        previous: What built drafts before; it gets every draft that is not ours, unchanged.
        model_config: Settings of the target.
        draft_config: Settings of the draft, which the host has read from its folder.
        lm_head: The target's head.
        model: The target's body.

    Returns:
        The draft model.

    Raises:
        HostError: If the host lacks what the draft class is made of.
    """
    spec_config = model_config.spec_config
    draft = prepared(getattr(spec_config, "speculative_model", None))
    if draft is None:
        return previous(model_config, draft_config, lm_head, model)
    from tensorrt_llm_ext.trtllm.modeling import draft_class

    start = model_config.pretrained_config.num_hidden_layers
    _logger.info(
        "MLA draft %s: layers from %d on, capturing after target layers %s",
        draft.folder,
        start,
        list(draft.layers_to_capture),
    )
    return draft_class()(draft_config, start, draft)
