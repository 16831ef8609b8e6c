# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""RMS norms, alone and as the draft uses them on its inputs."""

from __future__ import annotations

import torch

from tensorrt_llm_ext import _triton
from tensorrt_llm_ext.errors import ShapeError
from tensorrt_llm_ext.ops.checks import check_float, check_ids, check_same_dtype, check_shape
from tensorrt_llm_ext.ops.norm import library, reference, torch_kernels  # noqa: F401
from tensorrt_llm_ext.ops.nvfp4.format import BLOCK_SIZE
from tensorrt_llm_ext.ops.registry import choose, chosen

if _triton.AVAILABLE:
    from tensorrt_llm_ext.ops.norm import triton_kernels  # noqa: F401

__all__ = [
    "add_rms_norm",
    "draft_input_norm",
    "draft_input_norm_nvfp4",
    "fc_input_norm",
    "latent_norm_pair",
    "rms_norm",
]


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, *, kernel: str | None = None
) -> torch.Tensor:
    """Divides each row by its root mean square and multiplies by a weight.

    Args:
        x: [num_tokens, hidden_size], float; rows may be strided.
        weight: [hidden_size], dtype of `x`.
        eps: Added to the mean square.
        kernel: Name of a registered kernel; the best supported one when None.

    Returns:
        [num_tokens, hidden_size], dtype of `x`.

    Raises:
        ShapeError: If a shape or dtype is wrong.
        KernelNotFoundError: If no registered kernel takes these inputs.
    """
    key = ("rms_norm", kernel, x.dtype, x.device, x.shape, weight.dtype, weight.shape)
    run = chosen(key)
    if run is None:
        _check_rows("rms_norm", "x", x)
        _check_weight("rms_norm", "weight", weight, x)
        run = choose(key, x, weight, eps)
    normed: torch.Tensor = run(x, weight, eps)
    return normed


def add_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    *,
    kernel: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Adds a residual and norms the sum.

    Args:
        x: [num_tokens, hidden_size], float.
        residual: [num_tokens, hidden_size], dtype of `x`; not changed.
        weight: [hidden_size], dtype of `x`.
        eps: Added to the mean square.
        kernel: Name of a registered kernel; the best supported one when None.

    Returns:
        The normed sum and the sum, each [num_tokens, hidden_size], dtype of `x`.

    Raises:
        ShapeError: If a shape or dtype is wrong.
        KernelNotFoundError: If no registered kernel takes these inputs.
    """
    key = (
        "add_rms_norm",
        kernel,
        x.dtype,
        x.device,
        x.shape,
        residual.dtype,
        residual.shape,
        weight.dtype,
        weight.shape,
    )
    run = chosen(key)
    if run is None:
        _check_rows("add_rms_norm", "x", x)
        check_shape(
            "add_rms_norm", "residual", residual, tuple(x.shape), "[num_tokens, hidden_size]"
        )
        check_same_dtype("add_rms_norm", "residual", residual, x.dtype)
        _check_weight("add_rms_norm", "weight", weight, x)
        run = choose(key, x, residual, weight, eps)
    result: tuple[torch.Tensor, torch.Tensor] = run(x, residual, weight, eps)
    return result


def draft_input_norm(
    token_ids: torch.Tensor,
    embedding: torch.Tensor,
    embed_weight: torch.Tensor,
    hidden: torch.Tensor,
    hidden_weight: torch.Tensor,
    eps: float,
    *,
    kernel: str | None = None,
) -> torch.Tensor:
    """Builds the input of the draft's first layer: `[norm(embed(token)) | norm(hidden)]`.

    Args:
        token_ids: [num_tokens] int64 or int32, each in 0..vocab_size - 1.
        embedding: [vocab_size, hidden_size], float.
        embed_weight: [hidden_size], dtype of `embedding`: the weight of `input_layernorm`.
        hidden: [num_tokens, hidden_size], dtype of `embedding`: fused or recurrent states.
        hidden_weight: [hidden_size], dtype of `embedding`: the weight of `hidden_norm`.
        eps: Added to the mean squares.
        kernel: Name of a registered kernel; the best supported one when None.

    Returns:
        [num_tokens, 2 * hidden_size], dtype of `embedding`, the embedding half first.

    Raises:
        ShapeError: If a shape or dtype is wrong.
        KernelNotFoundError: If no registered kernel takes these inputs.
    """
    key = (
        "draft_input_norm",
        kernel,
        embedding.dtype,
        embedding.device,
        embedding.shape,
        token_ids.dtype,
        token_ids.shape,
        embed_weight.shape,
        hidden.dtype,
        hidden.shape,
        hidden_weight.shape,
    )
    run = chosen(key)
    if run is None:
        _check_draft_input_norm(token_ids, embedding, embed_weight, hidden, hidden_weight)
        run = choose(key, token_ids, embedding, embed_weight, hidden, hidden_weight, eps)
    out: torch.Tensor = run(token_ids, embedding, embed_weight, hidden, hidden_weight, eps)
    return out


def draft_input_norm_nvfp4(
    token_ids: torch.Tensor,
    embedding: torch.Tensor,
    embed_weight: torch.Tensor,
    hidden: torch.Tensor,
    hidden_weight: torch.Tensor,
    eps: float,
    input_scale: torch.Tensor,
    *,
    kernel: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`draft_input_norm`, quantized for a W4A4 projection: `nvfp4_quantize` of its result.

    Args:
        token_ids: As `draft_input_norm`, like the next five.
        embedding: Its width is a multiple of 16.
        embed_weight: [hidden_size].
        hidden: [num_tokens, hidden_size].
        hidden_weight: [hidden_size].
        eps: Added to the mean squares.
        input_scale: [] float32, the global scale of the projection's input.
        kernel: Name of a registered kernel; the best supported one when None.

    Returns:
        data [num_tokens, hidden_size] uint8, and block_scale [num_tokens, hidden_size / 8]
        float8_e4m3fn.

    Raises:
        ShapeError: If a shape or dtype is wrong.
        KernelNotFoundError: If no registered kernel takes these inputs.
    """
    op = "draft_input_norm_nvfp4"
    key = (
        op,
        kernel,
        embedding.dtype,
        embedding.device,
        embedding.shape,
        token_ids.dtype,
        token_ids.shape,
        hidden.dtype,
        hidden.shape,
        input_scale.dtype,
    )
    args = (token_ids, embedding, embed_weight, hidden, hidden_weight, eps, input_scale)
    run = chosen(key)
    if run is None:
        _check_draft_input_norm(token_ids, embedding, embed_weight, hidden, hidden_weight)
        if embedding.shape[1] % BLOCK_SIZE:
            raise ShapeError(
                f"{op}: hidden_size is {embedding.shape[1]}, expected a multiple of {BLOCK_SIZE}, "
                "because so many values share a scale."
            )
        check_shape(op, "input_scale", input_scale, (), "one number")
        check_same_dtype(op, "input_scale", input_scale, torch.float32)
        run = choose(key, *args)
    result: tuple[torch.Tensor, torch.Tensor] = run(*args)
    return result


def fc_input_norm(
    captured: torch.Tensor, weights: torch.Tensor, eps: float, *, kernel: str | None = None
) -> torch.Tensor:
    """Norms each captured target state with its own weight, ahead of the draft's `fc`.

    Args:
        captured: [num_tokens, L * target_hidden_size], float: L states side by side.
        weights: [L, target_hidden_size], dtype of `captured`.
        eps: Added to the mean squares.
        kernel: Name of a registered kernel; the best supported one when None.

    Returns:
        [num_tokens, L * target_hidden_size], dtype of `captured`.

    Raises:
        ShapeError: If a shape or dtype is wrong.
        KernelNotFoundError: If no registered kernel takes these inputs.
    """
    key = (
        "fc_input_norm",
        kernel,
        captured.dtype,
        captured.device,
        captured.shape,
        weights.dtype,
        weights.shape,
    )
    run = chosen(key)
    if run is None:
        op = "fc_input_norm"
        check_float(op, "captured", captured)
        check_shape(op, "weights", weights, (None, None), "[L, target_hidden_size]")
        check_same_dtype(op, "weights", weights, captured.dtype)
        check_shape(
            op,
            "captured",
            captured,
            (None, weights.shape[0] * weights.shape[1]),
            "[num_tokens, L * target_hidden_size]",
        )
        run = choose(key, captured, weights, eps)
    out: torch.Tensor = run(captured, weights, eps)
    return out


def latent_norm_pair(
    first: torch.Tensor,
    second: torch.Tensor,
    first_weight: torch.Tensor,
    second_weight: torch.Tensor,
    eps: float,
    *,
    kernel: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Norms the two slices of MLA's first projection, `q_a_layernorm` and `kv_a_layernorm`.

    Args:
        first: [num_tokens, q_lora_rank], float; may be a strided view.
        second: [num_tokens, kv_lora_rank], dtype of `first`; may be a strided view.
        first_weight: [q_lora_rank], dtype of `first`.
        second_weight: [kv_lora_rank], dtype of `first`.
        eps: Added to the mean squares.
        kernel: Name of a registered kernel; the best supported one when None.

    Returns:
        Both normed, contiguous, of the same shapes and dtype.

    Raises:
        ShapeError: If a shape or dtype is wrong.
        KernelNotFoundError: If no registered kernel takes these inputs.
    """
    key = (
        "latent_norm_pair",
        kernel,
        first.dtype,
        first.device,
        first.shape,
        second.dtype,
        second.shape,
        first_weight.shape,
        second_weight.shape,
    )
    run = chosen(key)
    if run is None:
        op = "latent_norm_pair"
        _check_rows(op, "first", first)
        check_shape(op, "second", second, (first.shape[0], None), "[num_tokens, kv_lora_rank]")
        check_same_dtype(op, "second", second, first.dtype)
        _check_weight(op, "first_weight", first_weight, first)
        _check_weight(op, "second_weight", second_weight, second)
        run = choose(key, first, second, first_weight, second_weight, eps)
    pair: tuple[torch.Tensor, torch.Tensor] = run(first, second, first_weight, second_weight, eps)
    return pair


def _check_rows(op: str, name: str, x: torch.Tensor) -> None:
    check_float(op, name, x)
    check_shape(op, name, x, (None, None), "[num_tokens, hidden_size]")


def _check_weight(op: str, name: str, weight: torch.Tensor, x: torch.Tensor) -> None:
    check_shape(op, name, weight, (x.shape[1],), "[hidden_size]")
    check_same_dtype(op, name, weight, x.dtype)


def _check_draft_input_norm(
    token_ids: torch.Tensor,
    embedding: torch.Tensor,
    embed_weight: torch.Tensor,
    hidden: torch.Tensor,
    hidden_weight: torch.Tensor,
) -> None:
    op = "draft_input_norm"
    check_float(op, "embedding", embedding)
    check_shape(op, "embedding", embedding, (None, None), "[vocab_size, hidden_size]")
    check_shape(op, "token_ids", token_ids, (None,), "[num_tokens]")
    check_ids(op, "token_ids", token_ids)
    _check_weight(op, "embed_weight", embed_weight, embedding)
    _check_weight(op, "hidden_weight", hidden_weight, embedding)
    check_shape(
        op,
        "hidden",
        hidden,
        (token_ids.shape[0], embedding.shape[1]),
        "[num_tokens, hidden_size]",
    )
    check_same_dtype(op, "hidden", hidden, embedding.dtype)


library.register(
    {
        "rms_norm": rms_norm,
        "add_rms_norm": add_rms_norm,
        "draft_input_norm": draft_input_norm,
        "draft_input_norm_nvfp4": draft_input_norm_nvfp4,
        "fc_input_norm": fc_input_norm,
        "latent_norm_pair": latent_norm_pair,
    }
)
