# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The ledger of everything that is changed in the host's own modules, with the day it goes.

What the host offers a registry for is registered (`plugin`); only the rest is here. A patch puts a
wrapper in the place of a function and calls what was there before.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tensorrt_llm_ext.errors import HostError
from tensorrt_llm_ext.trtllm.host import Host, Located

_logger = logging.getLogger(__name__)
_MARK: Final = "__trtllm_ext_patch__"
Function = Callable[..., Any]


@dataclass(frozen=True, kw_only=True)
class Patch:
    """One change of the host.

    Attributes:
        name: Short stable name, which `doctor --trtllm` prints.
        target: Symbol in `versions.SYMBOLS` that is replaced.
        why: What goes wrong without it.
        upstream: Where upstream's side of it can be read.
        remove_when: What must be true for this row to go.
        applies: Whether this host needs it.
        wrap: Makes the replacement of what was there before.
    """

    name: str
    target: str
    why: str
    upstream: str
    remove_when: str
    applies: Callable[[Host], bool]
    wrap: Callable[[Function], Function]

    def apply(self, host: Host) -> None:
        """Puts the wrapper in place; one that is there already is replaced, not wrapped again.

        Raises:
            HostError: If the target is missing.
        """
        found = host.find(self.target)
        if found is None:
            raise HostError(
                f"The patch {self.name!r} finds no {self.target} in TensorRT-LLM {host.version}: "
                f"{self.why}. `trtllm-ext doctor --trtllm` lists what this installation lacks."
            )
        setattr(found.owner, found.attribute, self._wrapped(found))
        _logger.info("patched %s (%s)", found.place, self.name)

    def _wrapped(self, found: Located) -> Function:
        before = original(found.value)
        after = functools.wraps(before)(self.wrap(before))
        setattr(after, _MARK, self.name)
        return after


def original(function: Function) -> Function:
    """What was in the host before one of our wrappers, or the function itself."""
    while hasattr(function, _MARK):
        function = function.__wrapped__  # type: ignore[attr-defined]
    return function


def marked(function: Function, before: Function, name: str) -> Function:
    """Marks `function` as ours, with what was there before it; for the host's registries."""
    home = function.__module__
    after: Function = functools.wraps(before)(function)
    setattr(after, _MARK, name)
    # `wraps` makes it look like the host's own, which a registry may treat as built in.
    after.__module__ = home
    return after


def _builds_by_branches(host: Host) -> bool:
    return host.optional("get_registered_draft_model_builder") is None


def _wrap_get_draft_model(before: Function) -> Function:
    def get_draft_model(model_config: Any, draft_config: Any, lm_head: Any, model: Any) -> Any:
        from tensorrt_llm_ext.trtllm.builder import build_draft

        return build_draft(before, model_config, draft_config, lm_head, model)

    return get_draft_model


def _wrap_load(before: Function) -> Function:
    def load(self: Any, checkpoint_dir: Any, *args: Any, **kwargs: Any) -> Any:
        from tensorrt_llm_ext.trtllm.capture import prepare_loader

        prepare_loader(self, checkpoint_dir)
        return before(self, checkpoint_dir, *args, **kwargs)

    return load


def _wrap_prepare(before: Function) -> Function:
    def prepare(self: Any, *args: Any, **kwargs: Any) -> Any:
        from tensorrt_llm_ext.trtllm.stats import mark_rows

        result = before(self, *args, **kwargs)
        mark_rows(self)
        return result

    return prepare


PATCHES: Final[tuple[Patch, ...]] = (
    Patch(
        name="draft builder",
        target="get_draft_model",
        why="the one-model draft class is chosen by fixed branches, so no MLA draft of ours can "
        "be put in",
        upstream="https://github.com/NVIDIA/TensorRT-LLM/pull/9677",
        remove_when="every supported version has register_draft_model (1.4 has)",
        applies=_builds_by_branches,
        wrap=_wrap_get_draft_model,
    ),
    Patch(
        name="captured layers",
        target="ModelLoader.load",
        why="the target is built from a deep copy of the settings, while the executor captures "
        "states and makes the draft's cache by the original, which no class of a model sees",
        upstream="https://github.com/NVIDIA/TensorRT-LLM/blob/main/tensorrt_llm/_torch/pyexecutor/"
        "model_loader.py",
        remove_when="the host reads the captured layers from the draft's config itself",
        applies=lambda host: True,
        wrap=_wrap_load,
    ),
    Patch(
        name="rows that count",
        target="Eagle3OneModelSpecMetadata.prepare",
        why="acceptance counters on the device must know which rows are padding, and only the "
        "host side sees the ids of the requests",
        upstream="https://github.com/NVIDIA/TensorRT-LLM/blob/main/tensorrt_llm/_torch/"
        "speculative/eagle3.py",
        remove_when="the host counts accepted drafts per position for Eagle3 itself",
        applies=lambda host: host.find("Eagle3OneModelSpecMetadata.prepare") is not None,
        wrap=_wrap_prepare,
    ),
)


def needed_patches(host: Host) -> tuple[Patch, ...]:
    """The rows that this host needs."""
    return tuple(patch for patch in PATCHES if patch.applies(host))


def apply_patches(host: Host) -> tuple[str, ...]:
    """Applies what this host needs; a second call changes nothing.

    Returns:
        The names of the patches that are in place.

    Raises:
        HostError: If the target of one is missing.
    """
    needed = needed_patches(host)
    for patch in needed:
        patch.apply(host)
    return tuple(patch.name for patch in needed)
