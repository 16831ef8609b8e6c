# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Routed experts whose NVFP4 weights stay packed."""

from __future__ import annotations

import torch

from tensorrt_llm_ext.errors import CheckpointError, ConfigError
from tensorrt_llm_ext.ops.moe import PackedExperts, moe_experts_nvfp4
from tensorrt_llm_ext.ops.nvfp4.format import BLOCK_SIZE
from tensorrt_llm_ext.quantization.linear import PackedModule
from tensorrt_llm_ext.quantization.loading import TensorSource, take_weight
from tensorrt_llm_ext.quantization.siblings import larger, share_nvfp4_scales
from tensorrt_llm_ext.quantization.tensors import FP8, Nvfp4Tensor


class QuantExperts(PackedModule):
    """Gate, up and down projections of every routed expert, 0.5625 bytes per weight.

    A pass unpacks the experts that it routes to, tile by tile (on a CPU; elsewhere all of them, one
    after the other, because no id may be read). An expert's gate and up share their scales
    (`siblings`). With emulated activations, all experts share the largest `input_scale`: engines
    quantize a token once and then hand it to its experts.

    Args:
        num_experts: Number of routed experts.
        hidden_size: Width of input and output, a multiple of 16.
        intermediate_size: Width of each expert, a multiple of 16.
        is_emulated: Whether activations are quantized too (W4A4).
        device: Where weights live.
    """

    gate_up_data: torch.Tensor
    gate_up_block_scale: torch.Tensor
    gate_up_global_scale: torch.Tensor
    down_data: torch.Tensor
    down_block_scale: torch.Tensor
    down_global_scale: torch.Tensor
    down_input_scale: torch.Tensor | None

    def __init__(
        self,
        num_experts: int,
        hidden_size: int,
        intermediate_size: int,
        *,
        is_emulated: bool,
        device: torch.device,
    ) -> None:
        super().__init__(None, is_emulated=is_emulated)
        self.num_experts = num_experts
        self.intermediate_size = intermediate_size
        self.hidden_size = hidden_size
        shapes = {
            "gate_up": (num_experts, 2 * intermediate_size, hidden_size),
            "down": (num_experts, hidden_size, intermediate_size),
        }
        for name, (count, rows, columns) in shapes.items():
            packed = {
                "data": torch.empty(count, rows, columns // 2, dtype=torch.uint8, device=device),
                "block_scale": torch.empty(
                    count, rows, columns // BLOCK_SIZE, dtype=torch.uint8, device=device
                ).view(FP8),
                "global_scale": torch.empty(count, dtype=torch.float32, device=device),
            }
            for suffix, buffer in packed.items():
                self.register_buffer(f"{name}_{suffix}", buffer, persistent=False)
        self.register_buffer("down_input_scale", None, persistent=False)

    @property
    def nbytes(self) -> int:
        """Bytes of weights and scales."""
        return sum(buffer.nbytes for buffer in self.buffers())

    def load(self, source: TensorSource, prefix: str) -> None:
        """Takes `{prefix}.{expert}.{gate,up,down}_proj` of every expert.

        Raises:
            CheckpointError: If a tensor is missing, misshapen or damaged.
            ConfigError: If activations are to be quantized and an expert has no `input_scale`.
        """
        input_scales: dict[str, list[torch.Tensor | None]] = {"gate_up": [], "down": []}
        for index in range(self.num_experts):
            gate, up, down = (
                self._take(source, f"{prefix}.{index}.{part}_proj", shape)
                for part, shape in (
                    ("gate", (self.intermediate_size, self.hidden_size)),
                    ("up", (self.intermediate_size, self.hidden_size)),
                    ("down", (self.hidden_size, self.intermediate_size)),
                )
            )
            self._store("gate_up", index, share_nvfp4_scales([gate, up]))
            self._store("down", index, (down,))
            input_scales["gate_up"] += [gate.input_scale, up.input_scale]
            input_scales["down"].append(down.input_scale)
        if self.is_emulated:
            device = self.down_data.device
            self.input_scale = _largest(input_scales["gate_up"], prefix).to(device)
            self.down_input_scale = _largest(input_scales["down"], prefix).to(device)

    def forward(
        self, x: torch.Tensor, weights: torch.Tensor, expert_ids: torch.Tensor
    ) -> torch.Tensor:
        """Runs each token through its experts.

        Args:
            x: [tokens, hidden_size].
            weights: [tokens, top_k]: factor of each expert's result.
            expert_ids: [tokens, top_k] int64.

        Returns:
            [tokens, hidden_size].
        """
        gate_up = PackedExperts(
            data=self.gate_up_data,
            block_scale=self.gate_up_block_scale,
            global_scale=self.gate_up_global_scale,
            input_scale=self.input_scale,
        )
        down = PackedExperts(
            data=self.down_data,
            block_scale=self.down_block_scale,
            global_scale=self.down_global_scale,
            input_scale=self.down_input_scale,
        )
        return moe_experts_nvfp4(x, gate_up, down, weights, expert_ids)

    def _take(self, source: TensorSource, name: str, shape: tuple[int, int]) -> Nvfp4Tensor:
        weight = take_weight(source, name, shape)
        if not isinstance(weight, Nvfp4Tensor):
            raise CheckpointError(
                f"{name} is not stored in NVFP4 as the other experts are. Load the checkpoint with "
                "mode 'dequantized', or quantize all experts alike."
            )
        return weight

    def _store(self, stack: str, index: int, parts: tuple[Nvfp4Tensor, ...]) -> None:
        data: torch.Tensor = getattr(self, f"{stack}_data")[index]
        block_scale: torch.Tensor = getattr(self, f"{stack}_block_scale")[index]
        begin = 0
        for part in parts:
            rows = slice(begin, begin + part.shape[0])
            data[rows].copy_(part.data)
            block_scale[rows].view(torch.uint8).copy_(part.block_scale.view(torch.uint8))
            begin = rows.stop
        getattr(self, f"{stack}_global_scale")[index].copy_(parts[0].global_scale)


def _largest(scales: list[torch.Tensor | None], prefix: str) -> torch.Tensor:
    scale = larger(scales)
    if scale is None:
        raise ConfigError(
            f"Mode 'emulated' (w4a4) quantizes activations, but not every expert below {prefix} "
            "has an input_scale: the checkpoint is W4A16. Use mode 'packed' or 'dequantized', or "
            "quantize it with a W4A4 recipe."
        )
    return scale
