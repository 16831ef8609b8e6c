# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""A linear layer over weights of any supported format, alone or several stacked."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, TypeAlias, get_args

import torch
from torch import nn
from torch.nn import functional

from tensorrt_llm_ext.errors import ConfigError, ShapeError, UnsupportedError, unknown_key_error
from tensorrt_llm_ext.ops.layout import empty_matrix
from tensorrt_llm_ext.ops.nvfp4 import nvfp4_fake_quantize, nvfp4_linear
from tensorrt_llm_ext.ops.nvfp4.format import E4M3_MAX
from tensorrt_llm_ext.ops.sampling import lm_head_argmax
from tensorrt_llm_ext.quantization.loading import TensorSource, copy_dense, take_weight
from tensorrt_llm_ext.quantization.siblings import share_scales
from tensorrt_llm_ext.quantization.tensors import FP8, Fp8Tensor, Nvfp4Tensor, Weight

Mode: TypeAlias = Literal["packed", "dequantized", "emulated"]
MODES: Final[tuple[Mode, ...]] = get_args(Mode)
_FP8_TILE: Final = 1 << 18  # weights


class QuantLinear(nn.Module):
    """`x W^T`, no bias, with weights as a checkpoint stores them.

    Modes:
        packed: Weights stay packed (0.5625 bytes each in NVFP4); each product dequantizes them
            tile by tile to the dtype of its input (W4A16, W8A16).
        dequantized: Weights are dequantized at load. Results are those of `packed` up to the order
            of sums; memory and speed are those of a float layer.
        emulated: The input is quantized too, with the checkpoint's `input_scale`: the numbers of a
            GPU that multiplies in FP4 (W4A4) or FP8 (W8A8), for judging what they cost. NVFP4
            weights lie unpacked in float32, so that measuring thousands of steps is bearable.

    Parts that follow each other in the same format become one matrix. Engines do the same and need
    one scale for it, so parts whose scales differ are made to share them (`siblings`), in every
    mode. Float parts stay float in every mode.

    Args:
        in_features: Width of the input.
        parts: (name below the prefix, rows) of each weight, in order; the empty name is the prefix
            itself.
        mode: See above.
        device: Where weights live.
        dtype: Dtype of inputs, of results, and of float and dequantized weights.

    Raises:
        ConfigError: If the mode is unknown.
    """

    def __init__(
        self,
        in_features: int,
        parts: Sequence[tuple[str, int]],
        *,
        mode: Mode = "dequantized",
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        if mode not in MODES:
            raise unknown_key_error("QuantLinear's mode", mode, MODES)
        self.in_features = in_features
        self.parts = tuple(parts)
        self.mode = mode
        self.device = device
        self.dtype = dtype
        self.stacks = nn.ModuleList()

    @property
    def out_features(self) -> int:
        """Rows of all parts."""
        return sum(rows for _, rows in self.parts)

    @property
    def weight(self) -> torch.Tensor:
        """[out_features, in_features] float, when all of it is; not all modes have one.

        Raises:
            UnsupportedError: If any of the weight is packed.
        """
        (stack, *others) = self._loaded()
        if others or not isinstance(stack, _DenseStack):
            raise UnsupportedError(
                f"This layer keeps its weight as {self.describe()}, so it has no float matrix. "
                "Call the layer, or load it with mode 'dequantized'."
            )
        return stack.weight

    @property
    def nbytes(self) -> int:
        """Bytes of weights and scales."""
        tensors = itertools.chain(self.parameters(), self.buffers())
        return sum(tensor.nbytes for tensor in tensors)

    def describe(self) -> str:
        """Names the formats and the mode, for instance "nvfp4 (packed)"."""
        kinds = dict.fromkeys(str(stack.kind) for stack in self._loaded())
        return f"{' + '.join(kinds)} ({self.mode})"

    def load(self, source: TensorSource, prefix: str) -> None:
        """Takes every part's weight and scales.

        Args:
            source: Where the tensors come from.
            prefix: Canonical name that the parts' names are below.

        Raises:
            CheckpointError: If a tensor is missing, misshapen or damaged, or if a part must not be
                quantized.
            UnsupportedError: If a part is in a format that this package does not run.
            ConfigError: See `set_weights`.
        """
        names = [f"{prefix}.{name}" if name else prefix for name, _ in self.parts]
        weights = [
            take_weight(source, name, (rows, self.in_features))
            for name, (_, rows) in zip(names, self.parts, strict=True)
        ]
        self.set_weights(weights, names=names)

    def set_weights(self, weights: Sequence[Weight], *, names: Sequence[str] = ()) -> None:
        """Takes the parts' weights from memory.

        Args:
            weights: One per part, each (rows, in_features).
            names: What errors call them; the parts' own names when empty.

        Raises:
            ShapeError: If a weight has another shape than its part.
            ConfigError: If the mode is "emulated" and a packed weight has no `input_scale`.
        """
        names = names or [name for name, _ in self.parts]
        expected = [(rows, self.in_features) for _, rows in self.parts]
        got = [tuple(weight.shape) for weight in weights]
        if got != expected:
            raise ShapeError(f"Weights of {list(names)} have shapes {got}, expected {expected}.")
        runs = [_merged(list(run)) for _, run in itertools.groupby(weights, key=_kind)]
        if self.mode == "emulated":
            _check_input_scales(runs, names)
        if self.mode == "dequantized":
            flat = itertools.chain.from_iterable(runs)
            self.stacks = nn.ModuleList([_DenseStack(list(flat), self.device, self.dtype)])
            return
        self.stacks = nn.ModuleList([self._stack(run) for run in runs])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[tokens, in_features] -> [tokens, out_features]."""
        results: list[torch.Tensor] = [stack(x) for stack in self._loaded()]
        return results[0] if len(results) == 1 else torch.cat(results, dim=-1)

    def argmax(
        self, hidden: torch.Tensor, d2t: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Does the work of a vocabulary head: the token with the largest logit in each row.

        Args:
            hidden: [rows, in_features].
            d2t: [out_features] int64, offset from each id to its target id; None is no offset.

        Returns:
            The ids (ties: the lowest) and the target ids, [rows] int64 each.
        """
        stacks = self._loaded()
        if len(stacks) == 1 and isinstance(stacks[0], _Nvfp4Stack):
            head = stacks[0]
            return lm_head_argmax(hidden, head.data, d2t, head.block_scale, head.global_scale)
        ids = self(hidden).argmax(dim=-1)
        return ids, ids if d2t is None else ids + d2t.index_select(0, ids)

    def _stack(self, run: Sequence[Weight]) -> nn.Module:
        first = run[0]
        if isinstance(first, Nvfp4Tensor) and self.mode == "emulated":
            return _EmulatedNvfp4Stack(first.to(self.device), self.dtype)
        if isinstance(first, Nvfp4Tensor):
            return _Nvfp4Stack(first.to(self.device))
        if isinstance(first, Fp8Tensor):
            return _Fp8Stack(first.to(self.device), is_emulated=self.mode == "emulated")
        return _DenseStack(run, self.device, self.dtype)

    def _loaded(self) -> nn.ModuleList:
        if not self.stacks:
            raise UnsupportedError(
                f"QuantLinear of {self.parts} has no weights yet. Call load or set_weights first."
            )
        return self.stacks


class _DenseStack(nn.Module):
    """One float matrix; what was quantized is dequantized into its rows."""

    kind = "float"

    def __init__(self, weights: Sequence[Weight], device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        rows = [weight.shape[0] for weight in weights]
        self.weight = empty_matrix((sum(rows), weights[0].shape[1]), device, dtype)
        with torch.no_grad():
            for destination, weight in zip(torch.split(self.weight, rows), weights, strict=True):
                copy_dense(destination, weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.weight)


class PackedModule(nn.Module):
    """Holds the tensors of packed weights as buffers, and refuses `Module.to(dtype)`."""

    input_scale: torch.Tensor | None

    def __init__(self, input_scale: torch.Tensor | None, *, is_emulated: bool) -> None:
        super().__init__()
        self.is_emulated = is_emulated
        self.register_buffer("input_scale", input_scale, persistent=False)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> nn.Module:
        before = [tensor.dtype for tensor in (*self.buffers(), *self.parameters())]
        module: nn.Module = super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if [tensor.dtype for tensor in (*self.buffers(), *self.parameters())] != before:
            raise UnsupportedError(
                "A packed layer was converted to another dtype, which rounds its scales. Move it "
                "between devices only, and set the dtype when it is built."
            )
        return module


class _Nvfp4Stack(PackedModule):
    kind = "nvfp4"
    data: torch.Tensor
    block_scale: torch.Tensor
    global_scale: torch.Tensor

    def __init__(self, weight: Nvfp4Tensor) -> None:
        super().__init__(weight.input_scale, is_emulated=False)
        self.register_buffer("data", weight.data, persistent=False)
        self.register_buffer("block_scale", weight.block_scale, persistent=False)
        self.register_buffer("global_scale", weight.global_scale, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nvfp4_linear(x, self.data, self.block_scale, self.global_scale)


class _EmulatedNvfp4Stack(PackedModule):
    """`nvfp4_linear` with an `input_scale`, its weight unpacked once and not in each call."""

    kind = "nvfp4"
    input_scale: torch.Tensor

    def __init__(self, weight: Nvfp4Tensor, dtype: torch.dtype) -> None:
        super().__init__(weight.input_scale, is_emulated=True)
        wide = torch.promote_types(dtype, torch.float32)
        self.unpacked = empty_matrix(weight.shape, weight.data.device, wide)
        with torch.no_grad():
            self.unpacked.copy_(weight.dequantize(wide))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.to(self.unpacked.dtype)
        rounded = nvfp4_fake_quantize(wide, self.input_scale, activation=True)
        return functional.linear(rounded, self.unpacked).to(x.dtype)


class _Fp8Stack(PackedModule):
    kind = "fp8"
    data: torch.Tensor
    scale: torch.Tensor

    def __init__(self, weight: Fp8Tensor, *, is_emulated: bool) -> None:
        super().__init__(weight.input_scale, is_emulated=is_emulated)
        self.register_buffer("data", weight.data, persistent=False)
        self.register_buffer("scale", weight.scale, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.is_emulated and self.input_scale is not None:
            return self._w8a8(x, self.input_scale)
        out = x.new_empty(x.shape[0], self.data.shape[0])
        for tile in self._tiles():
            weight = (self.data[tile].float() * self.scale).to(x.dtype)
            out[:, tile] = functional.linear(x, weight)
        return out

    def _w8a8(self, x: torch.Tensor, input_scale: torch.Tensor) -> torch.Tensor:
        """Multiplies e4m3 numbers in float32 and scales the sums, as a tensor core does."""
        wide = torch.promote_types(x.dtype, torch.float32)
        units = (x.float() / input_scale).clamp(-E4M3_MAX, E4M3_MAX).to(FP8).to(wide)
        out = x.new_empty(x.shape[0], self.data.shape[0])
        for tile in self._tiles():
            sums = functional.linear(units, self.data[tile].to(wide))
            out[:, tile] = sums.mul_(input_scale * self.scale)
        return out

    def _tiles(self) -> list[slice]:
        rows, columns = self.data.shape
        step = max(1, min(_FP8_TILE // columns, (rows + 1) // 2))
        return [slice(begin, min(begin + step, rows)) for begin in range(0, rows, step)]


def _kind(weight: Weight) -> str:
    return "float" if isinstance(weight, torch.Tensor) else type(weight).__name__


def _merged(run: Sequence[Weight]) -> list[Weight]:
    """Stacks the rows of packed weights of one format; float ones stay apart until copied."""
    parts = share_scales(run)
    nvfp4 = [part for part in parts if isinstance(part, Nvfp4Tensor)]
    fp8 = [part for part in parts if isinstance(part, Fp8Tensor)]
    if len(run) == 1 or not (nvfp4 or fp8):
        return list(run)
    if nvfp4:
        return [
            Nvfp4Tensor(
                data=torch.cat([part.data for part in nvfp4]),
                block_scale=_cat_fp8([part.block_scale for part in nvfp4]),
                global_scale=nvfp4[0].global_scale,
                input_scale=nvfp4[0].input_scale,
            )
        ]
    data = _cat_fp8([part.data for part in fp8])
    return [Fp8Tensor(data=data, scale=fp8[0].scale, input_scale=fp8[0].input_scale)]


def _cat_fp8(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Stacks rows of FP8 numbers as bytes, which every version and device of torch can do."""
    return torch.cat([tensor.view(torch.uint8) for tensor in tensors]).view(FP8)


def _check_input_scales(runs: Sequence[Sequence[Weight]], names: Sequence[str]) -> None:
    for weight in itertools.chain.from_iterable(runs):
        if not isinstance(weight, torch.Tensor) and weight.input_scale is None:
            raise ConfigError(
                "Mode 'emulated' (w4a4) quantizes activations, but the checkpoint has no "
                f"input_scale for all of {list(names)}: it is W4A16. Use mode 'packed' or "
                "'dequantized', or quantize it with a W4A4 recipe."
            )
