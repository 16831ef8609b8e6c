# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The states of a KV pool's blocks, and the journal with which changes are undone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import Any

from tensorrt_llm_ext.ops.attention.metadata import NULL_BLOCK


class Journal:
    """Changes containers and attributes; while open, remembers how to undo each change.

    Undoing strictly backwards makes each inverse see the state that its change left behind, so
    that a few operations suffice and nothing is copied when nothing fails.
    """

    def __init__(self) -> None:
        self._entries: list[tuple[Callable[..., object], tuple[Any, ...]]] | None = None

    @property
    def is_open(self) -> bool:
        """Whether changes are being remembered."""
        return self._entries is not None

    def open(self) -> None:
        """Begins to remember."""
        self._entries = []

    def close(self) -> None:
        """Forgets: the changes stay."""
        self._entries = None

    def undo(self) -> None:
        """Undoes everything since `open`, and closes."""
        entries, self._entries = self._entries or [], None  # inverses are not remembered
        for inverse, arguments in reversed(entries):
            inverse(*arguments)

    def record(self, inverse: Callable[..., object], *arguments: Any) -> None:
        """Remembers the inverse of a change that the caller makes."""
        if self._entries is not None:
            self._entries.append((inverse, arguments))

    def put(self, items: list[Any], index: int, value: Any) -> None:
        """`items[index] = value`."""
        self.record(items.__setitem__, index, items[index])
        items[index] = value

    def set(self, target: object, name: str, value: Any) -> None:
        """`target.name = value`."""
        self.record(setattr, target, name, getattr(target, name))
        setattr(target, name, value)

    def append(self, items: list[Any], value: Any) -> None:
        """`items.append(value)`."""
        items.append(value)
        self.record(items.pop)

    def pop(self, items: list[Any]) -> Any:
        """`items.pop()`."""
        value = items.pop()
        self.record(items.append, value)
        return value

    def insert(self, mapping: dict[Any, Any], key: Any, value: Any) -> None:
        """`mapping[key] = value` for a key that is absent."""
        mapping[key] = value
        self.record(mapping.__delitem__, key)

    def remove(self, mapping: dict[Any, Any], key: Any) -> None:
        """`del mapping[key]` for a key that is present."""
        self.record(mapping.__setitem__, key, mapping.pop(key))


class BlockPool:
    """Keeps each block free (on a stack), cached (in order of last use) or used (referenced).

    Block 0 is the null block: never handed out, it is the head of the ring of cached blocks.
    """

    def __init__(self, num_blocks: int, journal: Journal) -> None:
        self.num_blocks = num_blocks
        self.num_cached = 0
        self._journal = journal
        self._free = list(range(num_blocks - 1, NULL_BLOCK, -1))
        self._refs = [0] * num_blocks
        self._older = [NULL_BLOCK] * num_blocks
        self._newer = [NULL_BLOCK] * num_blocks

    @property
    def num_available(self) -> int:
        """Blocks that `take` can hand out."""
        return len(self._free) + self.num_cached

    def take(self) -> int:
        """Hands out a free block, else the oldest cached one, with one reference.

        The caller knows that there is one.
        """
        if self._free:
            block: int = self._journal.pop(self._free)
        else:
            block = self._newer[NULL_BLOCK]
            self._unlink(block)
        self._journal.put(self._refs, block, 1)
        return block

    def share(self, block: int) -> None:
        """Adds a reference to a cached or used block."""
        if self._refs[block] == 0:
            self._unlink(block)
        self._journal.put(self._refs, block, self._refs[block] + 1)

    def drop(self, block: int, *, keep: bool) -> None:
        """Takes a reference away; the last one leaves the block cached (`keep`) or free."""
        self._journal.put(self._refs, block, self._refs[block] - 1)
        if self._refs[block]:
            return
        if keep:
            self._link(block, self._older[NULL_BLOCK])
        else:
            self._journal.append(self._free, block)

    def _link(self, block: int, older: int) -> None:
        """Inserts a block into the ring of cached blocks, after `older`."""
        newer = self._newer[older]
        self._older[block], self._newer[block] = older, newer
        self._newer[older] = self._older[newer] = block
        self.num_cached += 1
        self._journal.record(self._unlink, block)

    def _unlink(self, block: int) -> None:
        older, newer = self._older[block], self._newer[block]
        self._newer[older], self._older[newer] = newer, older
        self.num_cached -= 1
        self._journal.record(self._link, block, older)

    def cached_blocks(self) -> list[int]:
        """Cached blocks, the next to be evicted first; stops where a broken ring repeats."""
        blocks: list[int] = []
        block = self._newer[NULL_BLOCK]
        while block != NULL_BLOCK and len(blocks) < self.num_blocks:
            blocks.append(block)
            block = self._newer[block]
        return blocks

    def problems(self, held: Counter[int], published: Collection[int]) -> Iterator[str]:
        """Compares the pool with what its users know.

        Args:
            held: How many tables hold each block.
            published: Blocks whose content can be found.
        """
        cached = self.cached_blocks()
        states = Counter([*self._free, *cached, *(block for block in held if held[block])])
        if len(cached) != self.num_cached:
            yield f"{len(cached)} blocks are cached, {self.num_cached} were counted"
        for block in sorted({*states, *range(self.num_blocks)}):
            is_real = NULL_BLOCK < block < self.num_blocks
            if states[block] != int(is_real):
                yield f"block {block} is in {states[block]} of: free, cached, used"
        for block, refs in enumerate(self._refs):
            if refs != held[block]:
                yield f"block {block} has {refs} references, but {held[block]} tables hold it"
        for block in cached:
            if self._older[self._newer[block]] != block or self._newer[self._older[block]] != block:
                yield f"the ring of cached blocks is broken at block {block}"
            if block not in published:
                yield f"block {block} is cached, but not published"
        for block in self._free:
            if block in published:
                yield f"block {block} is free, but still published"


__all__ = ["BlockPool", "Journal"]
