# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""From a setting to a draft that runs, with the ends of the target that it borrows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from tensorrt_llm_ext.configs.target import TargetConfig
from tensorrt_llm_ext.diagnostics.canary.opening import Setting
from tensorrt_llm_ext.errors import CheckpointError, ConfigError
from tensorrt_llm_ext.models.blocks import TorchBlocks
from tensorrt_llm_ext.models.eagle3 import Eagle3Draft
from tensorrt_llm_ext.models.interfaces import HeadModule, TargetModel, TargetTokenId


@dataclass
class TargetEnds:
    """What a draft may borrow from its target, where no target runs. Implements `TargetModel`.

    Attributes:
        config: The target.
        embed_tokens: Its embedding, or an empty stand-in where the draft has its own.
        lm_head: Its head, likewise.
    """

    config: TargetConfig
    embed_tokens: torch.nn.Module
    lm_head: HeadModule

    def forward(
        self,
        token_ids: TargetTokenId,
        positions: torch.Tensor,
        ctx: Any,
        boundaries: tuple[int, ...],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Refuses: there are no layers."""
        raise ConfigError("This target has no layers loaded; its states come from a file.")

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Refuses: there is no final norm."""
        raise ConfigError("This target has no layers loaded; its tokens come from a file.")


class MappingSource:
    """A `WeightSource` over tensors in memory, by canonical name."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = tensors

    def has(self, name: str) -> bool:
        """Whether a tensor of this name exists."""
        return name in self._tensors

    def take(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """Returns a tensor; CheckpointError when it is missing or misshapen."""
        tensor = self._tensors.get(name)
        found = None if tensor is None else tuple(tensor.shape)
        if tensor is None or found != tuple(shape):
            raise CheckpointError(
                f"The draft's tensor {name!r} has shape {found}, expected {tuple(shape)} from its "
                "config. Config and tensors belong to different drafts."
            )
        return tensor


def build_draft(
    setting: Setting,
    target: TargetModel,
    *,
    device: torch.device,
    dtype: torch.dtype,
    max_positions: int | None = None,
    first_layer_idx: int = 0,
) -> Eagle3Draft:
    """Builds the draft that a setting describes.

    Args:
        setting: Configuration and tensors.
        target: Lends embedding and head where the draft has none; a loaded target does as well.
        device: Where the weights go.
        dtype: Of weights and activations.
        max_positions: Longest text that it is to run on; shortens the rotary table.
        first_layer_idx: Cache layer of its first layer.

    Raises:
        CheckpointError: If a tensor is missing or misshapen.
        ConfigError: If the draft does not fit the target.
    """
    config = setting.config
    if max_positions is not None:
        rope = config.mla.rope
        rope = replace(
            rope, max_position_embeddings=min(rope.max_position_embeddings, max_positions)
        )
        config = replace(config, mla=replace(config.mla, rope=rope))
    with torch.no_grad():
        draft = Eagle3Draft(config, TorchBlocks(device, dtype), first_layer_idx)
        draft.load_weights(MappingSource(setting.tensors))
        draft.share_with(target)
    return draft.eval()
