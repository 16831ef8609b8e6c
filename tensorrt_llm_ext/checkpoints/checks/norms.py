# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Checks of norms and their flags: V15 and V18 to V20."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tensorrt_llm_ext.checkpoints.checks.base import CheckContext, Finding
from tensorrt_llm_ext.checkpoints.checks.examination import DRAFT, Examination
from tensorrt_llm_ext.checkpoints.checks.rules import check, error, passed, warning
from tensorrt_llm_ext.configs.hf_draft import half_of_eagle_3_1
from tensorrt_llm_ext.configs.hf_keys import HFKeys
from tensorrt_llm_ext.configs.hf_target import LATENT_NORM_EPS

_MAX_EPS: Final = 1e-3  # models of this family have 1e-6 or 1e-5


@check("V15", "norm epsilon")
def norm_epsilon(ctx: CheckContext, found: Examination) -> Iterable[Finding]:
    """The draft's own epsilon is used in every norm, those of the latents included."""
    eps = HFKeys(ctx.draft.config, "config.json").positive_number("rms_norm_eps")
    draft = found.draft
    if draft is not None and not draft.rms_norm_eps == draft.mla.rms_norm_eps == eps:
        yield error(
            "V15",
            f"config.json has rms_norm_eps {eps:g}, but the norms were built with "
            f"{draft.rms_norm_eps:g} and those of the latents with {draft.mla.rms_norm_eps:g}. "
            "This is a fault of this package: please report it with the config.",
        )
        return
    if eps > _MAX_EPS:
        yield warning(
            "V15",
            f"rms_norm_eps is {eps:g}, expected 1e-6 or 1e-5 as in all public drafts. A value "
            "this large changes every norm: check it against the training config.",
            rms_norm_eps=eps,
        )
        return
    yield passed(
        "V15",
        f"rms_norm_eps {eps:g} from the draft's config, in the norms of the latents too (targets "
        f"have {LATENT_NORM_EPS:g} there).",
        rms_norm_eps=eps,
    )


@check("V18", "fc_norm", needs=(DRAFT,))
def fc_norm(ctx: CheckContext, found: Examination) -> Iterable[Finding]:
    """`fc_norm` is declared iff there is one norm per captured layer."""
    enabled = found.draft is not None and found.draft.fc_norm
    message = (
        f"fc_norm is on, with one norm for each of the {found.draft.num_captured} captured layers."
        if enabled and found.draft is not None
        else "fc_norm is off, and there are no fc_norm tensors."
    )
    yield passed("V18", message, fc_norm=enabled)


@check("V19", "norm_output", needs=(DRAFT,))
def norm_output(ctx: CheckContext, found: Examination) -> Iterable[Finding]:
    """EAGLE-3.1 drafts have both `fc_norm` and `norm_output`; no tensor shows the second."""
    if found.draft is None:
        return
    norm, output = found.draft.fc_norm, found.draft.norm_output
    data = {"fc_norm": norm, "norm_output": output}
    doubt = half_of_eagle_3_1(found.draft)
    if doubt is not None:
        yield warning("V19", doubt, **data)
        return
    kind = "EAGLE-3.1: both are on" if norm else "EAGLE-3: both are off"
    yield passed("V19", f"fc_norm and norm_output agree ({kind}).", **data)


@check("V20", "norm_before_fc", needs=(DRAFT,))
def norm_before_fc(ctx: CheckContext, found: Examination) -> Iterable[Finding]:
    """`norm_before_fc` is declared iff there is an `input_norm`."""
    enabled = found.draft is not None and found.draft.norm_before_fc
    state = "on, with input_norm.weight" if enabled else "off, and there is no input_norm.weight"
    yield passed("V20", f"norm_before_fc is {state}.", norm_before_fc=enabled)
