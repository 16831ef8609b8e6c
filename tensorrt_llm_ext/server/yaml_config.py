# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The YAML of `trtllm-serve --config`, read for the embedded engine.

A field is honoured; or it has no effect here, which is logged once; or it is refused, because it
would change results or because nobody knows it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tensorrt_llm_ext.errors import ConfigError

logger = logging.getLogger(__name__)
_LAYOUT: Final = "the embedded engine runs on one device, whatever the layout"
# Refused by `LLM`, where a script asks for them; in a file for trtllm-serve they are about a
# cluster, and no token depends on them.
_ABOUT_THE_CLUSTER: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        (
            "tensor_parallel_size",
            "pipeline_parallel_size",
            "context_parallel_size",
            "moe_cluster_parallel_size",
            "moe_tensor_parallel_size",
            "moe_expert_parallel_size",
            "enable_attention_dp",
            "attention_dp_config",
            "enable_lm_head_tp_in_adp",
            "pp_partition",
            "cp_config",
        ),
        _LAYOUT,
    ),
    "env_overrides": "variables of worker processes, of which there are none",
    "cache_transceiver_config": "caches are not sent to other instances",
    "stream_interval": "every step of a streamed request is sent",
}


def read_yaml(path: Path) -> dict[str, Any]:
    """Reads a file of LLM arguments.

    Raises:
        ConfigError: If it cannot be read, or is no mapping of names.
    """
    import yaml

    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} cannot be read as YAML: {error}") from error
    if values is None:
        return {}
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise ConfigError(f"{path} must hold fields of trtllm-serve, as `name: value` lines.")
    return values


def engine_arguments(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments for `LLM`; those about a cluster are logged and left out.

    `LLM` judges the rest: it logs what has no effect, and refuses what it cannot honour or does
    not know.
    """
    arguments = {}
    for key, value in values.items():
        if key in _ABOUT_THE_CLUSTER:
            logger.info("%s=%r has no effect here: %s.", key, value, _ABOUT_THE_CLUSTER[key])
        else:
            arguments[key] = value
    return arguments


__all__ = ["engine_arguments", "read_yaml"]
