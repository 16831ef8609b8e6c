# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The target classes that the host builds, registered under the architectures of the targets.

They are what reaches worker processes: the host pickles its table of model classes by reference, so
that a worker which reads it imports this module, and with it performs the whole registration.
A class keeps the name of the one that it derives from, by which the host knows some models.

Kimi-K2.5 is served for text: the host finds the processor of images by class, and not by ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tensorrt_llm_ext.errors import UnsupportedError
from tensorrt_llm_ext.trtllm import plugin, stats
from tensorrt_llm_ext.trtllm.capture import prepare_draft
from tensorrt_llm_ext.trtllm.host import host

# What public MLA drafts call themselves. The one-model path never looks at it, the two-model path
# looks for the class, after it has rewritten the name where the draft has a vocabulary of its own.
DRAFT_ARCHITECTURES: Final = (
    "Eagle3DeepseekV2ForCausalLM",
    "Eagle3DeepseekV3ForCausalLM",
    "DeepseekV3ForCausalLMEagle3",
    "EAGLE3DeepseekV2ForCausalLM",
    "EAGLE3DeepseekV3ForCausalLM",
)

_host: Final = host()
plugin.install(_host)
_register: Final = _host.symbol("register_auto_model")

if TYPE_CHECKING:
    _Deepseek: Any = object
    _Kimi: Any = object
    _Eagle3: Any = object
else:
    _Deepseek = _host.symbol("DeepseekV3ForCausalLM")
    _Kimi = _host.optional("KimiK25ForConditionalGeneration")
    _Eagle3 = _host.symbol("Eagle3ForCausalLM")


class PreparesDraft:
    """Judges the draft before the host reads it, and counts what is accepted."""

    def __init__(self, model_config: Any, *args: Any, **kwargs: Any) -> None:
        draft = prepare_draft(model_config.spec_config, model_config.pretrained_config)
        super().__init__(model_config, *args, **kwargs)  # type: ignore[call-arg]
        if draft is not None:
            stats.start(model_config.spec_config, model_config.mapping)

    def post_load_weights(self) -> None:
        """As the host's; then workers that keep the draft's d2t get the one that was loaded.

        They took it when the model was built, before it was given memory and moved.
        """
        before = getattr(super(), "post_load_weights", None)
        if before is not None:
            before()
        owner = self if hasattr(self, "spec_worker") else getattr(self, "llm", None)
        draft = getattr(owner, "draft_model", None)
        renew = getattr(getattr(owner, "spec_worker", None), "set_draft_model", None)
        if renew is not None and draft is not None:
            renew(draft)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As the host's, and its result counted."""
        with stats.outermost() as counts:
            if not counts:
                return super().forward(*args, **kwargs)  # type: ignore[misc]
            metadata = kwargs["attn_metadata"] if "attn_metadata" in kwargs else args[0]
            num_contexts, num_seqs = metadata.num_contexts, metadata.num_seqs
            result = super().forward(*args, **kwargs)  # type: ignore[misc]
            stats.count(result, num_contexts, num_seqs, kwargs.get("spec_metadata"))
            return result


@_register("DeepseekV3ForCausalLM")
class DeepseekV3ForCausalLM(PreparesDraft, _Deepseek):  # type: ignore[misc]
    """The DeepSeek-V3 family, Kimi-K2 among it."""


if _Kimi is not None:

    @_register("KimiK25ForConditionalGeneration")
    class KimiK25ForConditionalGeneration(PreparesDraft, _Kimi):  # type: ignore[misc]
        """The Kimi-K2.5 wrapper."""


class TwoModelDraft(_Eagle3):  # type: ignore[misc]
    """What the host would build as a second model; our drafts run in the target's pass."""

    def __init__(self, model_config: Any, *args: Any, **kwargs: Any) -> None:
        raise UnsupportedError(
            "An MLA draft runs in one model with its target, and the host was told to run two. "
            "Remove eagle3_one_model: false from speculative_config, and if the draft was given as "
            "the model itself, give the target."
        )


for _name in DRAFT_ARCHITECTURES:
    _register(_name)(TwoModelDraft)
