# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Checks of what the host can do: V1 and V26."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tensorrt_llm_ext.checkpoints.checks.base import CheckContext, Finding
from tensorrt_llm_ext.checkpoints.checks.examination import Examination
from tensorrt_llm_ext.checkpoints.checks.rules import (
    check,
    error,
    not_applicable,
    not_checked,
    passed,
    warning,
)

# Missing names with this word matter to wrapped targets alone.
_WRAPPER: Final = "KimiK25"


@check("V1", "host capabilities")
def host_capabilities(ctx: CheckContext, found: Examination) -> Iterable[Finding]:
    """The installed TensorRT-LLM has what an MLA Eagle3 draft needs."""
    host = ctx.host
    if host is None:
        yield not_checked("V1", "no TensorRT-LLM was looked for (doctor --trtllm)")
        return
    if host.version is None and not host.missing:
        yield not_checked("V1", "TensorRT-LLM is not installed here")
        return
    data = {"version": host.version, "missing": list(host.missing)}
    label = f"TensorRT-LLM {host.version or '(version unknown)'}"
    if not host.missing:
        yield passed("V1", f"{label} has all that an MLA Eagle3 draft needs.", **data)
        return
    wrapped = found.target is None or bool(found.target.weight_prefix)
    needed = [name for name in host.missing if wrapped or _WRAPPER not in name]
    if needed:
        yield error(
            "V1",
            f"{label} lacks {', '.join(needed)}, which an MLA Eagle3 draft for this target needs. "
            "Install a release that has them, or run the pair with the embedded engine.",
            **data,
        )
        return
    yield warning(
        "V1",
        f"{label} lacks {', '.join(host.missing)}. This target is no Kimi-K2.5 wrapper and runs "
        "without; install a newer release before you serve one.",
        **data,
    )


@check("V26", "tree drafting")
def tree_drafting(ctx: CheckContext, found: Examination) -> Iterable[Finding]:
    """No MLA kernel of the host takes the mask of a tree."""
    if not ctx.use_tree:
        yield not_applicable("V26", "A chain is drafted; no tree was asked for.")
        return
    yield error(
        "V26",
        "A draft tree was asked for, but MLA attention has no kernel that takes a tree mask, "
        "neither in TensorRT-LLM nor here; such drafts must be chains. Remove eagle_choices / "
        "use_dynamic_tree (and --tree), and set max_draft_len instead.",
    )
