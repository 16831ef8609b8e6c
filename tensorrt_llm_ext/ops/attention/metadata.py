# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Where the rows of one forward pass live in the paged latent cache.

A pass has a *decode grid* first (`batch x query_len` rows: verification, or one chain step) and
then the rows of the *prefill chunks*, one after the other. Lengths that shape tensors are Python
integers known to the scheduler; everything else stays on the device and is never read by the host.

Block 0 of every cache is the null block: it holds zeros, no request owns it, and a slot of -1
(padding) writes nothing. Gathers of positions beyond a sequence may therefore point at slot 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch

from tensorrt_llm_ext.errors import ShapeError

NULL_BLOCK = 0
PADDING_SLOT = -1
MAX_TREE_NODES = 64  # bits of an int64


@dataclass
class DecodeMetadata:
    """The decode grid.

    A grid of chains: row (b, i) attends to the cached positions 0..positions[b, i] of its own
    sequence, its own row included. A grid of trees, with `starts` and `ancestors`: the rows are the
    nodes of a tree, and row (b, i) lies in the cache at `starts[b] + i`, whatever its depth is. It
    attends to the positions before `starts[b]` and to the nodes whose bit is set in its ancestors.

    Attributes:
        block_table: [batch, num_columns] int64, block ids; unused entries may hold any number.
        positions: [batch, query_len] int64, position of each row. Padding rows carry a position
            that is valid for their sequence.
        block_size: Tokens per cache block.
        starts: [batch] int64, where a tree's first node lies in the cache; None for chains.
        ancestors: [batch, query_len] int64, bit j of row i is set where node j is node i or one of
            its ancestors; at most 64 nodes. None for chains.
    """

    block_table: torch.Tensor
    positions: torch.Tensor
    block_size: int
    starts: torch.Tensor | None = None
    ancestors: torch.Tensor | None = None

    def __post_init__(self) -> None:
        """Refuses half a tree, and trees that 64 bits cannot hold."""
        if (self.starts is None) != (self.ancestors is None):
            raise ShapeError("DecodeMetadata: a tree needs both starts and ancestors, got one.")
        if self.ancestors is not None and self.ancestors.shape != self.positions.shape:
            raise ShapeError(
                f"DecodeMetadata: ancestors has shape {list(self.ancestors.shape)}, expected that "
                f"of positions, {list(self.positions.shape)}."
            )
        if self.ancestors is not None and self.query_len > MAX_TREE_NODES:
            raise ShapeError(
                f"DecodeMetadata: a tree of {self.query_len} nodes, expected at most "
                f"{MAX_TREE_NODES}: a row's ancestors are the bits of one integer."
            )

    @property
    def is_tree(self) -> bool:
        """Whether the rows are nodes of trees."""
        return self.ancestors is not None

    @property
    def batch_size(self) -> int:
        """Number of sequences in the grid."""
        return self.positions.shape[0]

    @property
    def query_len(self) -> int:
        """Rows per sequence, padding included."""
        return self.positions.shape[1]

    @cached_property
    def key_mask(self) -> torch.Tensor:
        """[batch, query_len, num_keys] bool: True where the row attends to the key."""
        keys = torch.arange(
            self.block_table.shape[1] * self.block_size, device=self.positions.device
        )
        if self.starts is None or self.ancestors is None:
            return keys <= self.positions.unsqueeze(-1)
        node = (keys - self.starts.unsqueeze(-1)).unsqueeze(1)  # [batch, 1, num_keys]
        bits = (self.ancestors.unsqueeze(-1) >> node.clamp(0, MAX_TREE_NODES - 1)) & 1
        return (node < 0) | ((bits != 0) & (node < self.query_len))

    @cached_property
    def lengths(self) -> torch.Tensor:
        """[batch] int32: cached positions that the rows of each sequence attend to."""
        if self.starts is not None:
            return (self.starts + self.query_len).to(torch.int32)
        return (self.positions.amax(dim=1) + 1).to(torch.int32)

    @cached_property
    def key_slots(self) -> torch.Tensor:
        """[batch, num_keys] int64: cache slot of each key position, 0 (null) past the sequence."""
        offsets = torch.arange(self.block_size, device=self.block_table.device)
        slots = torch.add(offsets, self.block_table.unsqueeze(-1), alpha=self.block_size)
        mask = self.key_mask
        is_key = mask[:, 0] if self.query_len == 1 else mask.any(dim=1)
        return slots.flatten(1).mul_(is_key)  # slot 0 is the null block's first

    @cached_property
    def flat_key_slots(self) -> torch.Tensor:
        """[batch * num_keys] int64: `key_slots`, flattened once for all layers."""
        return self.key_slots.flatten()

    @cached_property
    def _biases(self) -> dict[tuple[torch.dtype, int], torch.Tensor]:
        return {}  # derived from the values, like the other cached properties: never a field

    def key_bias(self, dtype: torch.dtype, num_heads: int) -> torch.Tensor:
        """Returns the additive form of `key_mask`, computed once for all layers.

        Args:
            dtype: Of the scores that it is added to.
            num_heads: Heads of the scores.

        Returns:
            [batch, query_len * num_heads, num_keys]: 0 where the row attends, -inf elsewhere. With
            one row per sequence the middle dimension is 1 and broadcasts over the heads.
        """
        bias = self._biases.get((dtype, num_heads))
        if bias is None:
            bias = self.key_mask.to(dtype).log_()  # log 1 = 0, log 0 = -inf
            if self.query_len > 1:
                bias = bias.repeat_interleave(num_heads, dim=1)
            self._biases[dtype, num_heads] = bias
        return bias


@dataclass
class PrefillMetadata:
    """One prefill chunk: `num_tokens` rows at positions `start .. start + num_tokens - 1`.

    Attributes:
        block_table: [num_columns] int64, the sequence's blocks.
        start: Cached positions before the chunk (a prefix that is already in the cache).
        num_tokens: Rows in this chunk.
        block_size: Tokens per cache block.
    """

    block_table: torch.Tensor
    start: int
    num_tokens: int
    block_size: int

    def __post_init__(self) -> None:
        """Refuses a chunk that its block table cannot hold."""
        capacity = self.block_table.shape[0] * self.block_size
        if self.start < 0 or self.num_tokens < 1 or self.num_keys > capacity:
            raise ShapeError(
                f"PrefillMetadata: {self.num_tokens} rows from position {self.start} on, expected "
                f"at least one row within 0..{capacity - 1}, because block_table has "
                f"{self.block_table.shape[0]} blocks of {self.block_size}. Allocate blocks first."
            )

    @property
    def num_keys(self) -> int:
        """Cached positions that the chunk's last row attends to, itself included."""
        return self.start + self.num_tokens

    @cached_property
    def key_slots(self) -> torch.Tensor:
        """[num_keys] int64: cache slot of positions 0..num_keys-1."""
        keys = torch.arange(self.num_keys, device=self.block_table.device)
        blocks = self.block_table[keys // self.block_size]
        return blocks * self.block_size + keys % self.block_size

    @cached_property
    def _biases(self) -> dict[tuple[int, torch.dtype], torch.Tensor]:
        return {}

    def causal_bias(self, size: int, dtype: torch.dtype) -> torch.Tensor:
        """Returns [size, size]: 0 on and below the diagonal, -inf above; kept for all layers."""
        bias = self._biases.get((size, dtype))
        if bias is None:
            device = self.block_table.device
            bias = torch.full((size, size), float("-inf"), dtype=dtype, device=device).triu_(1)
            self._biases[size, dtype] = bias
        return bias


@dataclass
class MLAMetadata:
    """All rows of one forward pass: the decode grid, then the chunks, in the order of the rows.

    Attributes:
        slot_mapping: [num_tokens] int64, cache slot that each row writes; -1 writes nothing.
        has_padding: Whether `slot_mapping` may contain -1 (known to the host).
    """

    slot_mapping: torch.Tensor
    decode: DecodeMetadata | None = None
    prefill: tuple[PrefillMetadata, ...] = field(default=())
    has_padding: bool = False

    @property
    def num_decode_tokens(self) -> int:
        """Rows of the decode grid."""
        return 0 if self.decode is None else self.decode.positions.numel()
