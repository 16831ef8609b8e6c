# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The ledger: every place where the host is changed from outside, with why and until when.

A patch is a last resort: what a registry, a subclass or an option can do is done there.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tensorrt_llm_ext.trtllm import stats
from tensorrt_llm_ext.trtllm.host import Host

_logger = logging.getLogger(__name__)
_MARK: Final = "_trtllm_ext_patched"


@dataclass(frozen=True, kw_only=True, slots=True)
class Patch:
    """One change of the host.

    Attributes:
        name: Stable name.
        target: What is replaced.
        why: What goes wrong without it.
        upstream: Where upstream solved it, or where it is discussed.
        remove_when: When this row goes.
        applies: Whether this installation needs it, by its features.
        apply: Makes the change; called once per process.
    """

    name: str
    target: str
    why: str
    upstream: str
    remove_when: str
    applies: Callable[[Host], bool]
    apply: Callable[[Host], None]


def _has_no_registry(host: Host) -> bool:
    return host.optional("register_draft_model") is None


def _replace_get_draft_model(host: Host) -> None:
    module: Any = host.module_of("get_draft_model")
    previous = module.get_draft_model

    @functools.wraps(previous)
    def get_draft_model(model_config: Any, draft_config: Any, lm_head: Any, model: Any) -> Any:
        from tensorrt_llm_ext.trtllm.hooks import build_draft

        return build_draft(previous, model_config, draft_config, lm_head, model)

    setattr(get_draft_model, _MARK, True)
    module.get_draft_model = get_draft_model


def _mark_real_requests(host: Host) -> None:
    metadata = host.symbol("Eagle3OneModelSpecMetadata")
    previous = metadata.prepare

    @functools.wraps(previous)
    def prepare(self: Any) -> Any:
        result = previous(self)
        stats.mark_real_requests(self)
        return result

    setattr(prepare, _MARK, True)
    metadata.prepare = prepare


PATCHES: Final[tuple[Patch, ...]] = (
    Patch(
        name="get_draft_model",
        target="tensorrt_llm._torch.models.modeling_speculative.get_draft_model",
        why=(
            "It builds Eagle3ForCausalLM for every draft, which loads no reduced vocabulary with "
            "MLA, ignores the flags of EAGLE-3.1 and misreads NVFP4 drafts."
        ),
        upstream="https://github.com/NVIDIA/TensorRT-LLM (register_draft_model, on main)",
        remove_when="1.2 and 1.3 are no longer supported: 1.4 has a registry of builders",
        applies=_has_no_registry,
        apply=_replace_get_draft_model,
    ),
    Patch(
        name="real_requests",
        target="tensorrt_llm._torch.speculative.eagle3.Eagle3OneModelSpecMetadata.prepare",
        why=(
            "Padded CUDA graphs and idle ranks add dummy requests to a batch; without a mask of "
            "the real ones, acceptance is counted on them too. Only with "
            "TRTLLM_EXT_ACCEPT_STATS_DIR."
        ),
        upstream="https://github.com/NVIDIA/TensorRT-LLM/issues/9208 (acceptance by batch size)",
        remove_when="the host reports acceptance per position for Eagle3 itself",
        applies=lambda host: stats.is_wanted(),
        apply=_mark_real_requests,
    ),
)


def apply_patches(host: Host) -> tuple[str, ...]:
    """Applies what this installation needs; returns the names."""
    applied = []
    for patch in PATCHES:
        if patch.applies(host):
            patch.apply(host)
            applied.append(patch.name)
            _logger.info("patched %s: %s", patch.target, patch.why)
    return tuple(applied)


__all__ = ["PATCHES", "Patch", "apply_patches"]
