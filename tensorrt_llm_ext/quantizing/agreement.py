# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""How much a quantized draft says what the float one says, step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from tensorrt_llm_ext.models.eagle3 import Eagle3Draft
from tensorrt_llm_ext.ops.nvfp4 import nvfp4_linear
from tensorrt_llm_ext.quantization.linear import Mode, QuantLinear
from tensorrt_llm_ext.quantization.tensors import Nvfp4Tensor, QuantTensor
from tensorrt_llm_ext.quantizing.dense import replace_module
from tensorrt_llm_ext.quantizing.distill import divergence
from tensorrt_llm_ext.quantizing.rollout import TextPack, rollout


@dataclass(frozen=True, kw_only=True)
class StepAgreement:
    """One draft step, over all anchors.

    Attributes:
        step: 1 for the first draft.
        top1: Share of anchors at which both name the same token, fed with the same tokens.
        kl: Mean KL(float || quantized), in nats.
    """

    step: int
    top1: float
    kl: float


@dataclass(frozen=True, kw_only=True)
class DraftAgreement:
    """A quantized draft beside the float one on the same texts.

    Attributes:
        steps: By draft step.
        num_anchors: Chains that were compared.
        acceptance_length: 1 + mean number of leading drafts that are the target's tokens, each
            draft proposing its own chain, over all anchors.
        float_acceptance_length: The float draft's.
    """

    steps: tuple[StepAgreement, ...]
    num_anchors: int
    acceptance_length: float
    float_acceptance_length: float


class _PackedW4A4(nn.Module):
    """W4A4 by tiles. `QuantLinear` unpacks once and is faster, in four bytes per weight."""

    def __init__(self, weight: Nvfp4Tensor) -> None:
        super().__init__()
        self.packed = weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        part = self.packed
        return nvfp4_linear(x, part.data, part.block_scale, part.global_scale, part.input_scale)


def install_quantized(
    tree: nn.Module, core: Eagle3Draft, packed: Mapping[str, QuantTensor], mode: Mode
) -> None:
    """Replaces linear layers by the packed weights that a checkpoint holds.

    Args:
        tree: The draft's modules.
        core: The draft that runs them.
        packed: By canonical module name.
        mode: "dequantized" for W4A16, "emulated" for W4A4 and W8A8.
    """
    norm = core.norm.get_parameter("weight")
    for name, quantized in packed.items():
        if mode == "emulated" and isinstance(quantized, Nvfp4Tensor):
            replace_module(tree, core, name, _PackedW4A4(quantized))
            continue
        rows, columns = quantized.shape
        layer = QuantLinear(columns, (("", rows),), mode=mode, device=norm.device, dtype=norm.dtype)
        layer.set_weights([quantized], names=[name])
        replace_module(tree, core, name, layer)


@torch.no_grad()
def compare(
    exact: Eagle3Draft, quantized: Eagle3Draft, packs: Sequence[TextPack], steps: int
) -> DraftAgreement:
    """Runs both drafts over the same texts.

    Top-1 agreement and KL are taken with the float draft's chain fed to both, so that one
    disagreement does not count again at every later step; acceptance with each one's own chain.

    Args:
        exact: The float draft.
        quantized: The other.
        packs: Texts.
        steps: Drafts per chain.
    """
    same, kl = torch.zeros(steps), torch.zeros(steps)
    accepted = {"exact": 0.0, "quantized": 0.0}
    anchors = 0
    for pack in packs:
        ours = list(rollout(exact, pack, steps))
        accepted["exact"] += _accepted([item.tokens for item in ours], pack)
        fed = [item.tokens for item in ours]
        for said in rollout(quantized, pack, steps, tokens=fed):
            reference = ours[said.step].logits
            same[said.step] += (said.logits.argmax(-1) == reference.argmax(-1)).sum()
            kl[said.step] += divergence(reference, said.logits).sum()
        own = [item.tokens for item in rollout(quantized, pack, steps)]
        accepted["quantized"] += _accepted(own, pack)
        anchors += pack.anchors.numel()
    return DraftAgreement(
        steps=tuple(
            StepAgreement(step=i + 1, top1=float(same[i]) / anchors, kl=float(kl[i]) / anchors)
            for i in range(steps)
        ),
        num_anchors=anchors,
        acceptance_length=1.0 + accepted["quantized"] / anchors,
        float_acceptance_length=1.0 + accepted["exact"] / anchors,
    )


def _accepted(tokens: Sequence[torch.Tensor], pack: TextPack) -> float:
    """Leading drafts that equal the target's tokens, summed over the anchors."""
    hits = torch.stack(list(tokens), dim=1) == pack.labels
    return float(hits.long().cumprod(dim=1).sum())
