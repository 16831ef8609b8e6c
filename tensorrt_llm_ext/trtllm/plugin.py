# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The registration with the host, once per process, leader and workers alike."""

from __future__ import annotations

import importlib
import logging
from typing import Any, Final

from tensorrt_llm_ext.trtllm.builder import build_draft
from tensorrt_llm_ext.trtllm.host import Host, host
from tensorrt_llm_ext.trtllm.patches import apply_patches, marked, original

_logger = logging.getLogger(__name__)
KIMI_K2: Final = "kimi_k2"
_CONFIG_CLASS: Final = "KimiK2Config"
_REGISTERED: Final = "tensorrt_llm_ext.trtllm.registered"


def register() -> None:
    """Makes an installed TensorRT-LLM serve MLA Eagle3 drafts.

    Call it before `LLM(...)` is made; `trtllm-serve` does so through `--custom_module_dirs`. A
    second call changes nothing. Worker processes repeat it by themselves.

    Raises:
        HostError: If TensorRT-LLM is not installed, or lacks what a draft needs.
    """
    host()
    importlib.import_module(_REGISTERED)


def install(installed: Host) -> None:
    """Everything of the registration but the target classes, which `registered` holds."""
    register_configs()
    applied = apply_patches(installed)
    if installed.optional("get_registered_draft_model_builder") is not None:
        _register_builder(installed)
    _logger.info(
        "registered with TensorRT-LLM %s (%s); patches: %s",
        installed.version,
        installed.era,
        ", ".join(applied) or "none",
    )


def register_configs() -> None:
    """Makes `kimi_k2` known to transformers where it is not: it is DeepSeek-V3 by another name."""
    from transformers import AutoConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if KIMI_K2 not in CONFIG_MAPPING:
        AutoConfig.register(KIMI_K2, _kimi_config())


def _kimi_config() -> Any:
    """The class, kept under its name in this module so that its instances can be pickled."""
    known = globals().get(_CONFIG_CLASS)
    if known is None:
        from transformers import DeepseekV3Config

        known = type(
            _CONFIG_CLASS, (DeepseekV3Config,), {"model_type": KIMI_K2, "__module__": __name__}
        )
        globals()[_CONFIG_CLASS] = known
    return known


def __getattr__(name: str) -> Any:
    """Makes the config class for a process that un-pickles a config before it registers."""
    if name == _CONFIG_CLASS:
        return _kimi_config()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _register_builder(installed: Host) -> None:
    """The registry of newer hosts: ours is put in front of what builds drafts now."""
    mode = installed.symbol("SpeculativeDecodingMode").EAGLE3_ONE_MODEL
    before = installed.symbol("get_registered_draft_model_builder")(mode)
    previous = _missing_builder if before is None else original(before)

    def build(model_config: Any, draft_config: Any, lm_head: Any, model: Any) -> Any:
        return build_draft(previous, model_config, draft_config, lm_head, model)

    ours = marked(build, previous, "draft builder")
    installed.symbol("draft builder")(mode)(ours)


def _missing_builder(*_: Any) -> Any:
    raise NotImplementedError("this TensorRT-LLM has no builder of its own for Eagle3 drafts")
