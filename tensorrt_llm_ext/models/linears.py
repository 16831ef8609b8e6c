# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Linear layers of the embedded host, and which kind of them a module gets.

A float layer loads weights of any format: quantized ones are dequantized into it. `Linears` makes
it, unless the weight is stored quantized and is to stay so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import nn
from torch.nn import functional

from tensorrt_llm_ext.errors import CheckpointError
from tensorrt_llm_ext.models.interfaces import (
    DraftTokenId,
    HeadModule,
    TargetTokenId,
    WeightSource,
)
from tensorrt_llm_ext.ops.layout import empty_matrix
from tensorrt_llm_ext.ops.sampling import lm_head_argmax
from tensorrt_llm_ext.quantization import loading
from tensorrt_llm_ext.quantization.linear import Mode, QuantLinear
from tensorrt_llm_ext.quantization.siblings import share_scales
from tensorrt_llm_ext.quantization.tensors import FLOATS


def take_into(destination: torch.Tensor, source: WeightSource, name: str) -> None:
    """Takes the float tensor `name`, of the destination's shape, and converts it to its dtype.

    Raises:
        CheckpointError: If it is missing, misshapen, or not in floating point.
    """
    tensor = source.take(name, tuple(destination.shape))
    if tensor.dtype not in FLOATS:
        raise CheckpointError(
            f"{name} has dtype {tensor.dtype}, expected floating point: this tensor is never "
            "quantized. Export the checkpoint again without it."
        )
    with torch.no_grad():
        destination.copy_(tensor)


class Linear(nn.Module):
    """`x W^T`, no bias."""

    def __init__(
        self, in_features: int, out_features: int, *, device: torch.device, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.weight = empty_matrix((out_features, in_features), device, dtype)

    def load(self, source: WeightSource, prefix: str) -> None:
        """Takes the weight of module `prefix`, [out_features, in_features], in any format."""
        loading.take_into(self.weight, source, prefix)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[tokens, in_features] -> [tokens, out_features]."""
        return functional.linear(x, self.weight)


class FusedLinear(Linear):
    """Several matrices with the same input as one matmul; `parts` are (checkpoint name, rows)."""

    def __init__(
        self,
        in_features: int,
        parts: tuple[tuple[str, int], ...],
        *,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        super().__init__(in_features, sum(rows for _, rows in parts), device=device, dtype=dtype)
        self.parts = parts

    def load(self, source: WeightSource, prefix: str) -> None:
        """Takes the weight of each part below `prefix` into its rows.

        Quantized neighbours get the scales that they would share in a packed layer, so that both
        compute the same.
        """
        in_features = self.weight.shape[1]
        weights = [
            loading.take_weight(source, f"{prefix}.{name}", (rows, in_features))
            for name, rows in self.parts
        ]
        destinations = torch.split(self.weight, [rows for _, rows in self.parts])
        for destination, weight in zip(destinations, share_scales(weights), strict=True):
            loading.copy_dense(destination, weight)


class LMHead(Linear):
    """Vocabulary head."""

    def argmax(
        self, hidden: torch.Tensor, d2t: torch.Tensor | None
    ) -> tuple[DraftTokenId, TargetTokenId]:
        """Row-wise argmax without keeping the logits; ties take the lowest id.

        Args:
            hidden: [rows, hidden_size].
            d2t: [vocab_size] int64, offset from each id to its target id; None is no offset.

        Returns:
            The ids and the target ids, [rows] int64 each.
        """
        draft_ids, target_ids = lm_head_argmax(hidden, self.weight, d2t)
        return DraftTokenId(draft_ids), TargetTokenId(target_ids)


class PackedLMHead(QuantLinear):
    """Vocabulary head over packed weights."""

    def argmax(
        self, hidden: torch.Tensor, d2t: torch.Tensor | None
    ) -> tuple[DraftTokenId, TargetTokenId]:
        """See `LMHead.argmax`; the logits of these rows exist for the while of the call."""
        draft_ids, target_ids = super().argmax(hidden, d2t)
        return DraftTokenId(draft_ids), TargetTokenId(target_ids)


class Linears:
    """Makes the linear layers of one model.

    Args:
        device: Where weights live.
        dtype: Dtype of inputs, results, and float and dequantized weights.
        formats: How the checkpoint stores the weight of each module, by canonical name: "nvfp4" or
            "fp8"; modules that are not named are float.
        mode: What becomes of quantized weights, see `quantization.linear.QuantLinear`. Layers of
            the mode "dequantized" are those of a float model.
    """

    def __init__(
        self,
        device: torch.device,
        dtype: torch.dtype,
        *,
        formats: Mapping[str, str] | None = None,
        mode: Mode = "dequantized",
    ) -> None:
        self.device = device
        self.dtype = dtype
        self.mode = mode
        self._formats = dict(formats or {})

    def kinds(self, names: Iterable[str]) -> set[str]:
        """Formats of these modules that stay as they are stored; "float" for all others."""
        if self.mode == "dequantized":
            return {"float"}
        return {self._formats.get(name, "float") for name in names}

    def one(self, name: str, in_features: int, out_features: int) -> nn.Module:
        """[tokens, in_features] -> [tokens, out_features]; loads from `name`."""
        if self.kinds([name]) == {"float"}:
            return Linear(in_features, out_features, device=self.device, dtype=self.dtype)
        return QuantLinear(
            in_features,
            (("", out_features),),
            mode=self.mode,
            device=self.device,
            dtype=self.dtype,
        )

    def fused(self, prefix: str, in_features: int, parts: tuple[tuple[str, int], ...]) -> nn.Module:
        """One layer for several modules below `prefix`; their results stand side by side."""
        if self.kinds(f"{prefix}.{name}" for name, _ in parts) == {"float"}:
            return FusedLinear(in_features, parts, device=self.device, dtype=self.dtype)
        return QuantLinear(in_features, parts, mode=self.mode, device=self.device, dtype=self.dtype)

    def head(self, name: str, hidden_size: int, vocab_size: int) -> HeadModule:
        """A vocabulary head."""
        if self.kinds([name]) == {"float"}:
            return LMHead(hidden_size, vocab_size, device=self.device, dtype=self.dtype)
        return PackedLMHead(
            hidden_size,
            (("", vocab_size),),
            mode=self.mode,
            device=self.device,
            dtype=self.dtype,
        )
