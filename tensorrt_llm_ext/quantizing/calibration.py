# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Largest activation of every linear module, over every draft step.

The extend row and each step of a chain feed the draft other inputs: the recurrent state of a draft
without `norm_output` grows from step to step. So amax is taken over all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from tensorrt_llm_ext.models.eagle3 import Eagle3Draft
from tensorrt_llm_ext.quantizing.dense import linear_names
from tensorrt_llm_ext.quantizing.rollout import TextPack, rollout

# Called with the number of packs that are done.
Advance = Callable[[int], None]


@dataclass(frozen=True, kw_only=True)
class InputStatistics:
    """What calibration saw.

    Attributes:
        per_step: By canonical module name, the largest magnitude of its input at each step; 0 for
            steps at which the module does not run (`fc` runs at the first only).
        num_rows: Rows that went through the first step.
    """

    per_step: Mapping[str, tuple[float, ...]] = field(repr=False)
    num_rows: int

    def amax(self, module: str) -> float:
        """Largest magnitude over all steps."""
        return max(self.per_step[module])


def run_all(
    core: Eagle3Draft,
    packs: Sequence[TextPack],
    steps: int,
    *,
    on_step: Callable[[int], None] | None = None,
    advance: Advance | None = None,
) -> None:
    """Runs every step of every pack, for what watches the modules; `on_step` goes before each."""
    with torch.no_grad():
        for pack in packs:
            if on_step is not None:
                on_step(0)
            for done in rollout(core, pack, steps):
                if on_step is not None:
                    on_step(done.step + 1)
            if advance is not None:
                advance(1)


def collect_inputs(
    tree: nn.Module,
    core: Eagle3Draft,
    packs: Sequence[TextPack],
    steps: int,
    *,
    advance: Advance | None = None,
) -> InputStatistics:
    """Measures the inputs of every linear module.

    Args:
        tree: The draft's modules.
        core: The draft that runs them.
        packs: Texts.
        steps: Drafts per chain.
        advance: Called after each pack.
    """
    current = 0
    largest: dict[str, list[torch.Tensor]] = {
        name: [torch.zeros(()) for _ in range(steps)] for name in linear_names(tree)
    }

    def watch(name: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def hook(_module: nn.Module, inputs: tuple[Any, ...]) -> None:
            amax = inputs[0].detach().abs().amax().float()
            largest[name][current] = torch.maximum(largest[name][current], amax)

        return hook

    def step_to(step: int) -> None:
        nonlocal current
        current = min(step, steps - 1)

    handles = [tree.get_submodule(name).register_forward_pre_hook(watch(name)) for name in largest]
    try:
        run_all(core, packs, steps, on_step=step_to, advance=advance)
    finally:
        for handle in handles:
            handle.remove()
    return InputStatistics(
        per_step={name: tuple(float(v) for v in values) for name, values in largest.items()},
        num_rows=sum(pack.successors.numel() for pack in packs),
    )
