# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Subclasses of the host's targets, registered in their place.

Importing this module is the registration. Worker processes import it too: the host sends its table
of model classes to them by pickle, and these two classes are in it. It needs an installed host.
"""

from __future__ import annotations

from typing import Any

from tensorrt_llm_ext.trtllm import hooks, stats
from tensorrt_llm_ext.trtllm.capture import prepare_draft
from tensorrt_llm_ext.trtllm.host import host

_register = host().symbol("register_auto_model")
_DeepseekV3: Any = host().symbol("DeepseekV3ForCausalLM")
_KimiK25: Any = host().optional("KimiK25ForConditionalGeneration")

hooks.install()


def _prepare(model_config: Any) -> None:
    """Before the target is built, because its layers ask the option what to capture."""
    prepare_draft(model_config.spec_config, model_config.pretrained_config)


def _observe(self: Any, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    metadata = kwargs.get("attn_metadata", args[0] if args else None)
    stats.observe(result, self.model_config, metadata, kwargs.get("spec_metadata"))
    return result


@_register("DeepseekV3ForCausalLM")
class ExtDeepseekV3ForCausalLM(_DeepseekV3):  # type: ignore[misc]
    """DeepSeek-V3 or Kimi-K2 with a draft of ours beside it; without one, the host's own class."""

    def __init__(self, model_config: Any) -> None:
        _prepare(model_config)
        super().__init__(model_config)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs target and draft, and counts acceptance where asked to."""
        return _observe(self, super().forward(*args, **kwargs), args, kwargs)


if _KimiK25 is not None:

    @_register("KimiK25ForConditionalGeneration")
    class ExtKimiK25ForConditionalGeneration(_KimiK25):  # type: ignore[misc]
        """The Kimi-K2.5 wrapper with a draft of ours beside it."""

        def __init__(self, model_config: Any, *args: Any, **kwargs: Any) -> None:
            _prepare(model_config)
            super().__init__(model_config, *args, **kwargs)

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            """Runs target and draft, and counts acceptance where asked to."""
            return _observe(self, super().forward(*args, **kwargs), args, kwargs)
