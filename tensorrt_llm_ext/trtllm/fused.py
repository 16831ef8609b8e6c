# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Kernels of this package inside the host's modules.

Each changes one instance that the draft owns, never a class of the host: the instance gets a
subclass of its own class, so that type tests and attributes of the host still hold.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import nn

from tensorrt_llm_ext.errors import ConfigError
from tensorrt_llm_ext.ops.norm import draft_input_norm, latent_norm_pair
from tensorrt_llm_ext.ops.nvfp4 import nvfp4_linear
from tensorrt_llm_ext.ops.nvfp4.format import BLOCK_SIZE
from tensorrt_llm_ext.ops.sampling import lm_head_max
from tensorrt_llm_ext.quantization.tensors import Nvfp4Tensor, Weight

_ONE_HOT: Final = 1e4


class _PackedMethods:
    """A linear layer of the host whose weight stays packed on GPUs that multiply no FP4."""

    packed: torch.Tensor
    packed_scale: torch.Tensor
    packed_global: torch.Tensor

    def apply_linear(self, input: torch.Tensor, bias: Any, *_: Any, **__: Any) -> torch.Tensor:
        """[..., in] -> [..., out] of this rank; the host gathers or reduces it as ever."""
        rows = input.flatten(0, -2)
        out = nvfp4_linear(rows, self.packed, self.packed_scale, self.packed_global)
        return out.view(*input.shape[:-1], out.shape[-1])


class _MaxMethods:
    """A vocabulary head that tells the largest logit of its rows, and whose it is."""

    def apply_linear(self, input: torch.Tensor, bias: Any, *_: Any, **__: Any) -> torch.Tensor:
        """[rows, in] -> [rows, 2]: logit and id over all ranks, which the host then gathers.

        Ids are exact in float32, whose integers reach 2**24.
        """
        layer: Any = self
        packed = getattr(layer, "packed", None)
        if packed is None:
            values, ids = lm_head_max(input, layer.weight)
        else:
            values, ids = lm_head_max(input, packed, layer.packed_scale, layer.packed_global)
        if layer.tp_mode is not None:
            ids = ids + layer.tp_rank * layer.out_features
        return torch.stack((values, ids.to(values.dtype)), dim=-1)


class _TakingMethods:
    """A norm of the host that hands out what was computed together with its sibling's."""

    _pair: _NormPair
    _slice: int

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """The normed slice, or the norm itself for anything but that slice."""
        ready = self._pair.take(self._slice, x)
        if ready is not None and not args and not kwargs:
            return ready
        return super().forward(x, *args, **kwargs)  # type: ignore[misc]


@functools.cache
def _derived(names: tuple[Any, Any]) -> type:
    methods, base = names
    derived: type = type(base)(f"Ext{base.__name__}", (methods, base), {"__module__": __name__})
    return derived


def hold_packed(linear: Any) -> None:
    """Prepares a linear layer of the host, created unquantized, for `load_packed`.

    Raises:
        ConfigError: If a rank's part of a row is no whole number of blocks.
    """
    if linear.in_features % BLOCK_SIZE:
        raise ConfigError(
            f"A rank's part of this draft's rows is {linear.in_features} wide, expected a multiple "
            f"of {BLOCK_SIZE}, which share a scale. Use fewer ranks, or set "
            "TRTLLM_EXT_DRAFT_QUANT=dequantize."
        )
    # By torch.empty: hosts build without memory, and allow few other ops on what has none.
    nothing = torch.empty(0, dtype=linear.weight.dtype)
    linear.weight = nn.Parameter(nothing, requires_grad=False)
    linear.__class__ = _derived((_PackedMethods, type(linear)))


def tell_max(linear: Any) -> None:
    """Lets a head of the host return each rank's largest logit and its id; see `logits_of_max`."""
    linear.__class__ = _derived((_MaxMethods, type(linear)))


def logits_of_max(pairs: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Logits that the host's worker draws the right token from, whatever it does with them.

    Drafts are greedy (DESIGN section 4), so a draft's distribution is one-hot. Ranks exchange two
    numbers per row in place of a vocabulary of logits.

    Args:
        pairs: [rows, 2 * ranks], each rank's largest logit and its id.
        vocab_size: Of the whole head.

    Returns:
        [rows, vocab_size], dtype of `pairs`: 0, and at the token a number that no temperature of
        use brings near it.
    """
    by_rank = pairs.view(pairs.shape[0], -1, 2)
    winner = by_rank[..., 0].argmax(dim=1, keepdim=True)  # the first rank has the lowest id
    ids = by_rank[..., 1].gather(1, winner).long()
    return pairs.new_zeros(pairs.shape[0], vocab_size).scatter_(1, ids, _ONE_HOT)


def load_packed(linear: Any, parts: Sequence[Weight], *, columns: Any) -> None:
    """Loads this rank's rows or columns of the parts, one below the other.

    Args:
        linear: A layer after `hold_packed`.
        parts: NVFP4 weights with one global scale, whole.
        columns: The host's name for a split of rows of the weight (TensorParallelMode.COLUMN).
    """
    packed = [part for part in parts if isinstance(part, Nvfp4Tensor)]
    device = linear.weight.device
    shards = [_shard(linear, part, columns).to(device) for part in packed]
    scales = torch.cat([shard.block_scale.view(torch.uint8) for shard in shards])
    linear.register_buffer("packed", torch.cat([shard.data for shard in shards]))
    linear.register_buffer("packed_scale", scales.view(torch.float8_e4m3fn))
    linear.register_buffer("packed_global", shards[0].global_scale)


def _shard(linear: Any, part: Nvfp4Tensor, columns: Any) -> Nvfp4Tensor:
    size, rank = linear.tp_size, linear.tp_rank
    if linear.tp_mode is None or size == 1:
        return part
    if linear.tp_mode == columns:
        rows = part.shape[0] // size
        return part.rows(rank * rows, (rank + 1) * rows)
    data, scale = (t.chunk(size, dim=1)[rank].contiguous() for t in (part.data, part.block_scale))
    return Nvfp4Tensor(data=data, block_scale=scale, global_scale=part.global_scale)


class _NormPair:
    """Both norms of the fused first projection of MLA in one launch, right after it.

    The host norms the slices one by one, on two streams; here they are ready before it asks.
    """

    def __init__(self, mla: Any, sizes: tuple[int, int], eps: float) -> None:
        self._norms, self._sizes, self._eps = (mla.q_a_layernorm, mla.kv_a_layernorm), sizes, eps
        self._ready: list[torch.Tensor | None] = [None, None]

    def norm(self, _: nn.Module, __: Any, projected: torch.Tensor) -> None:
        """Forward hook of the projection."""
        first, second = self._sizes
        q_norm, kv_norm = self._norms
        slices = projected[:, :first], projected[:, first : first + second]
        self._ready = list(
            latent_norm_pair(*slices, q_norm.weight, kv_norm.weight, self._eps),
        )

    def take(self, index: int, x: torch.Tensor) -> torch.Tensor | None:
        """Hands a slice out once; None if it is not the one that is asked for."""
        ready, self._ready[index] = self._ready[index], None
        return ready if ready is not None and ready.shape == x.shape else None


def share_norms(mla: Any, sizes: tuple[int, int], eps: float) -> None:
    """Lets the two norms of the host's MLA run as `latent_norm_pair`.

    Args:
        mla: The host's attention.
        sizes: q_lora_rank and kv_lora_rank.
        eps: Of both norms.
    """
    pair = _NormPair(mla, sizes, eps)
    mla.kv_a_proj_with_mqa.register_forward_hook(pair.norm)
    for index, norm in enumerate((mla.q_a_layernorm, mla.kv_a_layernorm)):
        norm.__class__ = _derived((_TakingMethods, type(norm)))
        norm._pair, norm._slice = pair, index


def fused_draft_input(
    token_ids: torch.Tensor,
    embedding: Any,
    embed_weight: torch.Tensor,
    hidden: torch.Tensor,
    hidden_weight: torch.Tensor,
    eps: float,
) -> torch.Tensor | None:
    """`draft_input_norm` where the embedding is whole on this rank; else None."""
    module = getattr(embedding, "inner", embedding)
    table = getattr(module, "weight", None)
    is_whole = getattr(module, "tp_size", 1) == 1 or getattr(module, "tp_mode", None) is None
    if not isinstance(table, torch.Tensor) or not is_whole:
        return None
    if table.dim() != 2 or table.shape[1] != hidden.shape[1] or table.dtype != hidden.dtype:
        return None
    return draft_input_norm(token_ids, table, embed_weight, hidden, hidden_weight, eps)


__all__ = [
    "fused_draft_input",
    "hold_packed",
    "load_packed",
    "logits_of_max",
    "share_norms",
    "tell_max",
]
