# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Owners, references, prefix reuse and transactions of the KV pool's blocks.

Every block is in exactly one state:

* *free*: on a stack, with no content worth keeping;
* *cached*: published and owned by nobody, in a list ordered by last use, evicted oldest first;
* *used*: in the table of an owner, or of several owners that share it as a prefix.

Published content forms a tree. A child is found under its parent by the block's tokens and the
**successor token**, the first token after the block: the draft's row of the block's last slot
depends on it (DESIGN section 4). Keys are whole tuples, so two contents are never confused. A node
outlives its block while it has children or a table stands on it: content that is computed again
takes its old place and makes its cached children reachable again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from tensorrt_llm_ext.engine.block_pool import BlockPool, Journal
from tensorrt_llm_ext.errors import AllocatorError, ConfigError, OutOfBlocksError

_Key = tuple[tuple[int, ...], int]  # the tokens of a block, and the token after them


class _Node:
    """One block's content, given what precedes it."""

    __slots__ = ("block", "children", "key", "num_pins", "parent")

    def __init__(self, parent: _Node | None, key: _Key) -> None:
        self.parent = parent
        self.key = key
        self.children: dict[_Key, _Node] = {}
        self.block: int | None = None
        self.num_pins = 0  # tables that stand on this node


@dataclass(slots=True)
class _Table:
    """An owner's blocks; the first `len(nodes)` of them are sealed: nobody writes them again."""

    blocks: list[int] = field(default_factory=list)
    nodes: list[_Node] = field(default_factory=list)


class BlockManager:
    """Hands out the blocks of one KV pool, shared by the target's and the draft's layers.

    Each operation costs O(1) per block that it touches. Block 0, the null block, is never handed
    out.
    """

    def __init__(self, num_blocks: int, block_size: int, enable_block_reuse: bool = True) -> None:
        """Makes a pool with every block free.

        Args:
            num_blocks: Blocks of the cache, the null block included.
            block_size: Tokens per block.
            enable_block_reuse: Whether contents are published and found again.

        Raises:
            ConfigError: If no block could be handed out or a block would hold nothing.
        """
        if num_blocks < 2:
            raise ConfigError(
                f"num_blocks must be at least 2 (block 0 is the null block), got {num_blocks}. "
                "Give the KV cache more tokens or more memory."
            )
        if block_size < 1:
            raise ConfigError(f"block_size must be at least 1, got {block_size}.")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.enable_block_reuse = enable_block_reuse
        self._journal = Journal()
        self._pool = BlockPool(num_blocks, self._journal)
        self._tables: dict[int, _Table] = {}
        self._root = _Node(None, ((), -1))
        self._node_of: list[_Node | None] = [None] * num_blocks  # published content of each block

    # Queries

    @property
    def num_free(self) -> int:
        """Blocks that `ensure` can hand out: free ones and cached ones."""
        return self._pool.num_available

    @property
    def num_cached(self) -> int:
        """Published blocks that nobody owns; they keep their content until they are needed."""
        return self._pool.num_cached

    @property
    def num_used(self) -> int:
        """Blocks in at least one table."""
        return self.num_blocks - 1 - self.num_free

    @property
    def owners(self) -> tuple[int, ...]:
        """Owners that hold a table."""
        return tuple(self._tables)

    def block_ids(self, owner: int) -> list[int]:
        """Returns a copy of the owner's blocks, in the order of its positions."""
        return list(self._table(owner).blocks)

    def writable_from(self, owner: int) -> int:
        """First position that the owner may write; rows before it are shared or published."""
        return len(self._table(owner).nodes) * self.block_size

    def can_ensure(self, owner: int, num_tokens: int) -> bool:
        """Whether `ensure` with the same arguments would succeed."""
        return self._num_missing(self._table(owner), num_tokens) <= self.num_free

    def match_prefix(self, token_ids: Sequence[int]) -> int:
        """Counts the blocks of the longest published prefix that these tokens could reuse.

        At least the last token is left to be computed: its row yields the first new token.

        Returns:
            Number of blocks, at most `(len(token_ids) - 1) // block_size`.
        """
        return len(self._matching_nodes(token_ids))

    # Operations of owners

    def create(self, owner: int, token_ids: Sequence[int], *, reuse: bool = True) -> int:
        """Makes the owner's table and lets it share the published prefix of its tokens.

        Args:
            owner: A handle of the caller's choice that owns nothing now.
            token_ids: Committed tokens of the owner.
            reuse: Whether to look for a published prefix.

        Returns:
            Number of leading tokens whose rows are already in the cache.

        Raises:
            AllocatorError: If the owner has a table already.
        """
        if owner in self._tables:
            raise AllocatorError(
                f"Owner {owner} already has {len(self._tables[owner].blocks)} blocks. Release it "
                "before creating it again."
            )
        table = _Table()
        self._journal.insert(self._tables, owner, table)
        for node in self._matching_nodes(token_ids) if reuse else ():
            block = node.block
            if block is not None:
                self._pool.share(block)
                self._journal.append(table.blocks, block)
                self._seal(table, node)
        return len(table.nodes) * self.block_size

    def ensure(self, owner: int, num_tokens: int) -> None:
        """Grows the owner's table so that it holds positions 0..num_tokens-1.

        Free blocks are taken first, then the cached ones in the order of their last use.

        Raises:
            AllocatorError: If the owner has no table.
            OutOfBlocksError: If there are too few blocks; nothing has changed then.
        """
        table = self._table(owner)
        missing = self._num_missing(table, num_tokens)
        if missing > self.num_free:
            raise OutOfBlocksError(
                f"Owner {owner} needs {missing} more blocks of {self.block_size} tokens to hold "
                f"{num_tokens} positions, and {self.num_free} of {self.num_blocks - 1} can be "
                "had. Preempt or finish another request, or enlarge the KV cache."
            )
        for _ in range(missing):
            self._journal.append(table.blocks, self._take())

    def trim(self, owner: int, num_tokens: int) -> None:
        """Gives back the owner's blocks that hold only positions num_tokens and later."""
        self._shrink(self._table(owner), -(-max(num_tokens, 0) // self.block_size))

    def publish(self, owner: int, token_ids: Sequence[int], num_valid: int) -> None:
        """Publishes the owner's full blocks, for reuse by others, and seals them.

        A block is published when all its rows are among the first `num_valid` and its successor is
        in `token_ids`. Where another block with the same content is published, that one stays; the
        owner keeps its own copy.

        Args:
            owner: Whose blocks.
            token_ids: Committed tokens of the owner, from position 0.
            num_valid: Leading positions whose rows, the draft's included, are final.

        Raises:
            AllocatorError: If the owner has no table, or too few blocks or tokens for `num_valid`.
        """
        table = self._table(owner)
        size = self.block_size
        if num_valid > min(len(token_ids), len(table.blocks) * size):
            raise AllocatorError(
                f"Owner {owner} publishes {num_valid} rows, but has {len(token_ids)} tokens and "
                f"{len(table.blocks)} blocks of {size}. Publish only rows that were written."
            )
        if not self.enable_block_reuse:
            return
        for index in range(len(table.nodes), min(num_valid, len(token_ids) - 1) // size):
            parent = table.nodes[-1] if table.nodes else self._root
            start, end = index * size, (index + 1) * size
            key = (tuple(token_ids[start:end]), token_ids[end])
            node = parent.children.get(key) or self._add_child(parent, key)
            if node.block is None:
                self._set_block(node, table.blocks[index])
            self._seal(table, node)

    def release(self, owner: int) -> None:
        """Takes all blocks from the owner and forgets it; published blocks stay cached."""
        self._shrink(self._table(owner), 0)
        self._journal.remove(self._tables, owner)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Undoes everything done inside when the body raises, in the order of last use included.

        It must end before a kernel writes to blocks that were handed out inside: undoing gives an
        evicted block its published content back, and a released owner its rows.

        Raises:
            AllocatorError: If a transaction is open already.
        """
        if self._journal.is_open:
            raise AllocatorError(
                "A transaction is already open, and transactions do not nest. Do all reservations "
                "of a step in one."
            )
        self._journal.open()
        try:
            yield
        except BaseException:
            self._journal.undo()
            raise
        self._journal.close()

    def check_integrity(self) -> None:
        """Checks that no block is lost, owned twice, miscounted or published under a wrong key.

        Raises:
            AllocatorError: Listing everything that is wrong.
        """
        held = Counter(block for table in self._tables.values() for block in table.blocks)
        published = [block for block, node in enumerate(self._node_of) if node is not None]
        problems = [
            *self._pool.problems(held, published),
            *self._table_problems(held),
            *self._tree_problems(),
        ]
        if problems:
            raise AllocatorError("The block manager is inconsistent: " + "; ".join(problems))

    # Tables

    def _table(self, owner: int) -> _Table:
        try:
            return self._tables[owner]
        except KeyError:
            raise AllocatorError(
                f"Owner {owner} has no blocks: it was never created, or is released already."
            ) from None

    def _num_missing(self, table: _Table, num_tokens: int) -> int:
        return max(0, -(-num_tokens // self.block_size) - len(table.blocks))

    def _shrink(self, table: _Table, num_blocks: int) -> None:
        """Drops blocks from the end, so that a child is older, and evicted before its parent."""
        while len(table.blocks) > num_blocks:
            if len(table.nodes) == len(table.blocks):
                node = self._journal.pop(table.nodes)
                self._journal.set(node, "num_pins", node.num_pins - 1)
                self._prune(node)
            block = self._journal.pop(table.blocks)
            self._pool.drop(block, keep=self._node_of[block] is not None)

    def _seal(self, table: _Table, node: _Node) -> None:
        self._journal.append(table.nodes, node)
        self._journal.set(node, "num_pins", node.num_pins + 1)

    def _take(self) -> int:
        """Hands out a block with one reference; what was published in it is gone."""
        block = self._pool.take()
        node = self._node_of[block]
        if node is not None:
            self._journal.put(self._node_of, block, None)
            self._journal.set(node, "block", None)
            self._prune(node)
        return block

    # The tree of published contents

    def _matching_nodes(self, token_ids: Sequence[int]) -> list[_Node]:
        nodes: list[_Node] = []
        children, size = self._root.children, self.block_size
        for start in range(0, len(token_ids) - size, size):
            if not children:
                break
            key = (tuple(token_ids[start : start + size]), token_ids[start + size])
            node = children.get(key)
            if node is None or node.block is None:
                break
            nodes.append(node)
            children = node.children
        return nodes

    def _add_child(self, parent: _Node, key: _Key) -> _Node:
        node = _Node(parent, key)
        self._journal.insert(parent.children, key, node)
        return node

    def _set_block(self, node: _Node, block: int) -> None:
        self._journal.set(node, "block", block)
        self._journal.put(self._node_of, block, node)

    def _prune(self, node: _Node) -> None:
        """Removes contents that nothing refers to any more, upwards."""
        while node.parent is not None and node.block is None:
            if node.children or node.num_pins:
                return
            self._journal.remove(node.parent.children, node.key)
            node = node.parent

    # Integrity

    def _table_problems(self, held: Counter[int]) -> Iterator[str]:
        for block in sorted(held):
            if held[block] > 1 and self._node_of[block] is None:
                yield f"block {block} has {held[block]} owners, but is not a published prefix"
        for owner, table in self._tables.items():
            if len(table.nodes) > len(table.blocks):
                yield f"owner {owner} sealed {len(table.nodes)} of {len(table.blocks)} blocks"
            parent = self._root
            for index, node in enumerate(table.nodes):
                if node.parent is not parent:
                    yield f"owner {owner} stands on a foreign content at block index {index}"
                parent = node
            for index, block in enumerate(table.blocks):
                sealed = table.nodes[index] if index < len(table.nodes) else None
                if self._node_of[block] is not None and self._node_of[block] is not sealed:
                    yield f"owner {owner} may write to block {block}, which is published"

    def _tree_problems(self) -> Iterator[str]:
        pins = Counter(id(node) for table in self._tables.values() for node in table.nodes)
        lost = {block for block, node in enumerate(self._node_of) if node is not None}
        stack = [(self._root, key, node) for key, node in self._root.children.items()]
        while stack:
            parent, key, node = stack.pop()
            stack.extend((node, below, child) for below, child in node.children.items())
            name = "an evicted content" if node.block is None else f"the content of {node.block}"
            if node.parent is not parent or node.key != key or len(key[0]) != self.block_size:
                yield f"{name} is under a parent or a key that is not its own"
            if node.num_pins != pins.pop(id(node), 0):
                yield f"{name} has {node.num_pins} pins, but another number of tables"
            if node.block is not None:
                if self._node_of[node.block] is not node:
                    yield f"{name} is published, but the block holds something else"
                lost.discard(node.block)
            elif not node.children and not node.num_pins:
                yield f"{name} is kept, but nothing refers to it"
        if lost:
            yield f"blocks {sorted(lost)} are published, but cannot be found"
        if pins:
            yield f"tables stand on {len(pins)} contents that cannot be found"
