# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Experts whose weights stay packed in NVFP4: the type, and the op `moe_experts_nvfp4`."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tensorrt_llm_ext.errors import ShapeError
from tensorrt_llm_ext.ops.checks import check_float, check_int64, check_shape
from tensorrt_llm_ext.ops.nvfp4.format import BLOCK_SIZE
from tensorrt_llm_ext.ops.registry import choose, chosen


@dataclass(frozen=True, kw_only=True, eq=False)
class PackedExperts:
    """One weight of every expert in NVFP4, stacked.

    Attributes:
        data: [num_experts, out_features, in_features / 2] uint8, two e2m1 codes per byte.
        block_scale: [num_experts, out_features, in_features / 16] float8_e4m3fn.
        global_scale: [num_experts] float32.
        input_scale: [] float32: quantizes the input of all experts (W4A4); None for W4A16.
    """

    data: torch.Tensor
    block_scale: torch.Tensor
    global_scale: torch.Tensor
    input_scale: torch.Tensor | None = None

    def expert(
        self, index: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Returns what `nvfp4_linear` takes of one expert, over the same memory."""
        return (
            self.data[index],
            self.block_scale[index],
            self.global_scale[index],
            self.input_scale,
        )

    @property
    def num_experts(self) -> int:
        """Number of experts."""
        return self.data.shape[0]

    @property
    def out_features(self) -> int:
        """Rows of each expert's weight."""
        return self.data.shape[1]

    @property
    def signature(self) -> tuple[object, ...]:
        """What a check or a choice of kernel may look at."""
        tensors = (self.data, self.block_scale, self.global_scale, self.input_scale)
        return tuple(None if t is None else (t.dtype, t.shape) for t in tensors)


def moe_experts_nvfp4(
    x: torch.Tensor,
    gate_up: PackedExperts,
    down: PackedExperts,
    weights: torch.Tensor,
    expert_ids: torch.Tensor,
    *,
    kernel: str | None = None,
) -> torch.Tensor:
    """Runs `moe_experts` on packed weights; on a CPU only those that a token chose are unpacked.

    Products are those of `nvfp4_linear`: with `input_scale`, a stack quantizes its input first.

    Args:
        x: [num_tokens, hidden_size], float.
        gate_up: [2 * intermediate_size, hidden_size] of each expert, gate rows first.
        down: [hidden_size, intermediate_size] of each expert.
        weights: [num_tokens, top_k], float: factor of each expert's result.
        expert_ids: [num_tokens, top_k] int64, each in 0..num_experts - 1.
        kernel: Name of a registered kernel; the best supported one when None.

    Returns:
        [num_tokens, hidden_size], dtype of `x`.

    Raises:
        ShapeError: If a shape or dtype is wrong.
        KernelNotFoundError: If no registered kernel takes these inputs.
    """
    key = (
        "moe_experts_nvfp4",
        kernel,
        x.dtype,
        x.device,
        x.shape,
        gate_up.signature,
        down.signature,
        weights.shape,
        expert_ids.shape,
    )
    run = chosen(key)
    if run is None:
        _check(x, gate_up, down, weights, expert_ids)
        run = choose(key, x, gate_up, down, weights, expert_ids)
    out: torch.Tensor = run(x, gate_up, down, weights, expert_ids)
    return out


def _check(
    x: torch.Tensor,
    gate_up: PackedExperts,
    down: PackedExperts,
    weights: torch.Tensor,
    expert_ids: torch.Tensor,
) -> None:
    op = "moe_experts_nvfp4"
    check_float(op, "x", x)
    check_shape(op, "x", x, (None, None), "[num_tokens, hidden_size]")
    num_tokens, hidden_size = x.shape
    check_shape(op, "down.data", down.data, (None, hidden_size, None), "[experts, out, in / 2]")
    experts, intermediate_size = down.num_experts, 2 * down.data.shape[2]
    check_shape(
        op,
        "gate_up.data",
        gate_up.data,
        (experts, 2 * intermediate_size, hidden_size // 2),
        "[num_experts, 2 * intermediate_size, hidden_size / 2]",
    )
    _check_stack(op, "gate_up", gate_up, hidden_size)
    _check_stack(op, "down", down, intermediate_size)
    check_shape(op, "weights", weights, (num_tokens, None), "[num_tokens, top_k]")
    check_float(op, "weights", weights)
    check_shape(op, "expert_ids", expert_ids, tuple(weights.shape), "[num_tokens, top_k]")
    check_int64(op, "expert_ids", expert_ids)


def _check_stack(op: str, name: str, stack: PackedExperts, in_features: int) -> None:
    experts, rows, _ = stack.data.shape
    if in_features % BLOCK_SIZE:
        raise ShapeError(
            f"{op}: {name} has {in_features} columns, expected a multiple of {BLOCK_SIZE}, because "
            f"{BLOCK_SIZE} values along a row share a scale. Leave the experts unquantized."
        )
    blocks = (experts, rows, in_features // BLOCK_SIZE)
    check_shape(op, f"{name}.block_scale", stack.block_scale, blocks, "[experts, out, in / 16]")
    check_shape(op, f"{name}.global_scale", stack.global_scale, (experts,), "[num_experts]")
    wanted = (torch.uint8, torch.float8_e4m3fn, torch.float32)
    got = (stack.data.dtype, stack.block_scale.dtype, stack.global_scale.dtype)
    if got != wanted:
        raise ShapeError(
            f"{op}: {name}'s data, block_scale and global_scale have dtypes {got}, expected "
            f"{wanted}, as checkpoints store them."
        )
    if stack.input_scale is not None:
        check_shape(op, f"{name}.input_scale", stack.input_scale, (), "one number")
