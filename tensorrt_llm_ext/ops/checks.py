# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Checks at the border of a public op; they run once per selection key, not once per call."""

from __future__ import annotations

import torch

from tensorrt_llm_ext.errors import ShapeError


def check_shape(
    op: str, name: str, tensor: torch.Tensor, expected: tuple[int | None, ...], layout: str
) -> None:
    """Raises ShapeError unless `tensor` has the expected shape.

    Args:
        op: Name of the public op.
        name: Name of the argument.
        tensor: The argument.
        expected: One size per dimension; None accepts any size.
        layout: The meaning of the dimensions, for the message: `"[num_tokens, hidden_size]"`.
    """
    got = tuple(tensor.shape)
    if len(got) == len(expected) and all(
        want is None or size == want for size, want in zip(got, expected, strict=True)
    ):
        return
    sizes = ", ".join("any" if size is None else str(size) for size in expected)
    raise ShapeError(f"{op}: {name} has shape {list(got)}, expected [{sizes}] = {layout}.")


def check_float(op: str, name: str, tensor: torch.Tensor) -> None:
    """Raises ShapeError unless `tensor` holds floating-point numbers."""
    if not tensor.is_floating_point():
        raise ShapeError(f"{op}: {name} has dtype {tensor.dtype}, expected a floating-point dtype.")


def check_ids(op: str, name: str, tensor: torch.Tensor) -> None:
    """Raises ShapeError unless `tensor` is int64 or int32."""
    if tensor.dtype not in (torch.int64, torch.int32):
        raise ShapeError(
            f"{op}: {name} has dtype {tensor.dtype}, expected int64 or int32. "
            "Convert it with .long()."
        )


def check_int64(op: str, name: str, tensor: torch.Tensor) -> None:
    """Raises ShapeError unless `tensor` is int64."""
    if tensor.dtype != torch.int64:
        raise ShapeError(
            f"{op}: {name} has dtype {tensor.dtype}, expected int64. Convert it with .long()."
        )


def check_same_dtype(op: str, name: str, tensor: torch.Tensor, dtype: torch.dtype) -> None:
    """Raises ShapeError unless `tensor` has the given dtype."""
    if tensor.dtype != dtype:
        raise ShapeError(
            f"{op}: {name} has dtype {tensor.dtype}, expected {dtype}, the dtype of the other "
            "inputs. Convert one of them; an op never casts its inputs."
        )


def check_latent_cache(
    op: str,
    latent_cache: torch.Tensor,
    latent_size: int,
    block_size: int | None,
    dtype: torch.dtype,
    latent_scale: torch.Tensor | None,
) -> None:
    """Refuses a latent cache of another shape or dtype, and an fp8 one without its scale.

    Args:
        op: Name of the op, for messages.
        latent_cache: [num_blocks, block_size, latent_size], `dtype`, or float8_e4m3fn.
        latent_size: kv_lora_rank + qk_rope_head_dim.
        block_size: Rows of a block; any when None.
        dtype: Dtype of the rows that are written or compared.
        latent_scale: [] float32 for an fp8 cache; None otherwise.

    Raises:
        ShapeError: If something is wrong.
    """
    layout = "[num_blocks, block_size, kv_lora_rank + qk_rope_head_dim]"
    check_shape(op, "latent_cache", latent_cache, (None, block_size, latent_size), layout)
    if latent_scale is None:
        check_same_dtype(op, "latent_cache", latent_cache, dtype)
        return
    check_same_dtype(op, "latent_cache", latent_cache, torch.float8_e4m3fn)
    check_shape(op, "latent_scale", latent_scale, (), "[]")
    check_same_dtype(op, "latent_scale", latent_scale, torch.float32)
