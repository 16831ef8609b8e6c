# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

import copy

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tensorrt_llm_ext.engine.block_manager import BlockManager
from tensorrt_llm_ext.errors import AllocatorError, ConfigError, OutOfBlocksError


class PlainPool:
    """What BlockManager means, without its data structures.

    A published block is known by all tokens from position 0 to its successor, and every question
    is answered by a scan. It predicts each block id.
    """

    def __init__(self, num_blocks, block_size):
        self.size = block_size
        self.free = list(range(num_blocks - 1, 0, -1))
        self.cached = []
        self.published = {}
        self.tables = {}
        self.sealed = {}

    def num_refs(self, block):
        return sum(blocks.count(block) for blocks in self.tables.values())

    def match(self, tokens):
        blocks = []
        while (len(blocks) + 1) * self.size < len(tokens):
            key = tuple(tokens[: (len(blocks) + 1) * self.size + 1])
            if key not in self.published:
                break
            blocks.append(self.published[key])
        return blocks

    def create(self, owner, tokens, reuse):
        blocks = self.match(tokens) if reuse else []
        self.tables[owner] = blocks
        self.sealed[owner] = len(blocks)
        self.cached = [block for block in self.cached if block not in blocks]
        return len(blocks) * self.size

    def num_missing(self, owner, num_tokens):
        return -(-num_tokens // self.size) - len(self.tables[owner])

    def ensure(self, owner, num_tokens):
        for _ in range(self.num_missing(owner, num_tokens)):
            if self.free:
                block = self.free.pop()
            else:
                block = self.cached.pop(0)
                self.published = {k: b for k, b in self.published.items() if b != block}
            self.tables[owner].append(block)

    def trim(self, owner, num_tokens):
        while self.num_missing(owner, num_tokens) < 0:
            block = self.tables[owner].pop()
            if self.num_refs(block) == 0:
                is_published = block in self.published.values()
                (self.cached if is_published else self.free).append(block)
        self.sealed[owner] = min(self.sealed[owner], len(self.tables[owner]))

    def publish(self, owner, tokens, num_valid):
        while (self.sealed[owner] + 1) * self.size <= min(num_valid, len(tokens) - 1):
            index = self.sealed[owner]
            key = tuple(tokens[: (index + 1) * self.size + 1])
            self.published.setdefault(key, self.tables[owner][index])
            self.sealed[owner] += 1

    def release(self, owner):
        self.trim(owner, 0)
        del self.tables[owner], self.sealed[owner]


def state_of(manager):
    """Everything that a transaction must restore, the order of eviction included."""
    nodes = {}

    def walk(node, path):
        nodes[path] = (node.block, node.num_pins)
        for key, child in node.children.items():
            walk(child, (*path, key))

    walk(manager._root, ())
    pool = manager._pool
    tables = {
        owner: (list(table.blocks), [id(node) for node in table.nodes])
        for owner, table in manager._tables.items()
    }
    return nodes, tables, list(pool._free), pool.cached_blocks(), list(pool._refs)


TOKENS = st.lists(st.integers(0, 1), max_size=14)
OWNERS = st.integers(0, 3)
OPERATION = st.one_of(
    st.tuples(st.just("create"), OWNERS, TOKENS, st.booleans()),
    st.tuples(st.just("grow"), OWNERS, TOKENS),
    st.tuples(st.just("ensure"), OWNERS, st.integers(0, 24)),
    st.tuples(st.just("trim"), OWNERS, st.integers(0, 16)),
    st.tuples(st.just("publish"), OWNERS, st.integers(0, 24)),
    st.tuples(st.just("release"), OWNERS),
)


class BlockManagerMachine(RuleBasedStateMachine):
    """Drives the manager and the plain pool side by side, with a simulated cache.

    Each row of the cache holds the tokens that it depends on, so that sharing, eviction or a
    rollback that hands a block to two contents shows as a wrong row of some owner.
    """

    @initialize(num_blocks=st.integers(2, 12), block_size=st.integers(1, 3))
    def start(self, num_blocks, block_size):
        self.size = block_size
        self.manager = BlockManager(num_blocks, block_size)
        self.plain = PlainPool(num_blocks, block_size)
        self.tokens = {}  # committed tokens of each owner
        self.num_valid = {}  # leading rows that were written
        self.rows = {}  # (block, offset) -> tokens up to the row's successor

    @rule(operation=OPERATION)
    def operate(self, operation):
        self.apply(*operation, writes=True)

    @rule(tokens=TOKENS)
    def finish(self, tokens):
        """A whole request, so that published blocks that nobody owns are common."""
        for operation in (
            ("create", 9, [], False),
            ("grow", 9, tokens),
            ("publish", 9, 99),
            ("release", 9),
        ):
            self.apply(*operation, writes=True)

    @rule(operations=st.lists(OPERATION, min_size=2, max_size=8), fails=st.booleans())
    def transact(self, operations, fails):
        state = state_of(self.manager)
        saved = copy.deepcopy((self.plain, self.tokens, self.num_valid))
        try:
            with self.manager.transaction():
                for operation in operations:
                    self.apply(*operation, writes=False)
                    self.manager.check_integrity()
                if fails:
                    raise KeyError("the step failed")
        except KeyError:
            assert fails
            self.plain, self.tokens, self.num_valid = saved
            assert state_of(self.manager) == state

    def apply(self, name, owner, *arguments, writes):
        if name == "create":
            self.create(owner, *arguments)
        elif owner not in self.tokens:
            self.refuse_stale_handle(name, owner)
        elif name == "grow":
            self.grow(owner, *arguments, writes=writes)
        elif name == "ensure":
            self.ensure(owner, *arguments)
        elif name == "trim":
            self.manager.trim(owner, max(arguments[0], self.num_valid[owner]))
            self.plain.trim(owner, max(arguments[0], self.num_valid[owner]))
        elif name == "publish":
            num_valid = min(arguments[0], self.num_valid[owner])
            self.manager.publish(owner, self.tokens[owner], num_valid)
            self.plain.publish(owner, self.tokens[owner], num_valid)
        else:
            self.manager.release(owner)
            self.plain.release(owner)
            del self.tokens[owner], self.num_valid[owner]

    def refuse_stale_handle(self, name, owner):
        calls = {
            "grow": lambda: self.manager.block_ids(owner),
            "ensure": lambda: self.manager.ensure(owner, 1),
            "trim": lambda: self.manager.trim(owner, 0),
            "publish": lambda: self.manager.publish(owner, [], 0),
            "release": lambda: self.manager.release(owner),
        }
        with pytest.raises(AllocatorError, match="never created"):
            calls[name]()

    def create(self, owner, tokens, reuse):
        if owner in self.tokens:
            with pytest.raises(AllocatorError, match="already has"):
                self.manager.create(owner, tokens)
            return
        assert self.manager.match_prefix(tokens) == len(self.plain.match(tokens))
        num_reused = self.manager.create(owner, tokens, reuse=reuse)
        assert num_reused == self.plain.create(owner, tokens, reuse)
        assert num_reused == 0 or num_reused < len(tokens)
        self.tokens[owner] = list(tokens)
        self.num_valid[owner] = num_reused

    def ensure(self, owner, num_tokens):
        fits = self.plain.num_missing(owner, num_tokens) <= self.manager.num_free
        assert self.manager.can_ensure(owner, num_tokens) == fits
        if not fits:
            state = state_of(self.manager)
            with pytest.raises(OutOfBlocksError, match="more blocks"):
                self.manager.ensure(owner, num_tokens)
            assert state_of(self.manager) == state
            return
        self.manager.ensure(owner, num_tokens)
        self.plain.ensure(owner, num_tokens)

    def grow(self, owner, more, writes):
        """Commits more tokens and, outside transactions, writes the rows before the last one."""
        tokens = self.tokens[owner] + more
        if not self.manager.can_ensure(owner, len(tokens)):
            return
        self.ensure(owner, len(tokens))
        self.tokens[owner] = tokens
        if not writes:
            return
        blocks = self.manager.block_ids(owner)
        first = max(self.num_valid[owner], self.manager.writable_from(owner))
        assert first == self.num_valid[owner]
        for position in range(first, len(tokens) - 1):
            row = (blocks[position // self.size], position % self.size)
            self.rows[row] = tuple(tokens[: position + 2])
        self.num_valid[owner] = max(first, len(tokens) - 1)

    @invariant()
    def agrees(self):
        if not hasattr(self, "manager"):
            return
        self.manager.check_integrity()
        plain = self.plain
        assert self.manager.num_free == len(plain.free) + len(plain.cached)
        assert self.manager.num_cached == len(plain.cached)
        assert self.manager.num_used == len({b for t in plain.tables.values() for b in t})
        assert set(self.manager.owners) == set(plain.tables) == set(self.tokens)
        for owner, tokens in self.tokens.items():
            blocks = self.manager.block_ids(owner)
            assert blocks == plain.tables[owner]
            assert self.manager.writable_from(owner) == plain.sealed[owner] * self.size
            for position in range(self.num_valid[owner]):
                row = (blocks[position // self.size], position % self.size)
                assert self.rows[row] == tuple(tokens[: position + 2])

    def teardown(self):
        if not hasattr(self, "manager"):
            return
        for owner in list(self.tokens):
            self.manager.release(owner)
        self.manager.check_integrity()
        assert self.manager.num_used == 0


TestBlockManagerMachine = BlockManagerMachine.TestCase
TestBlockManagerMachine.settings = settings(
    max_examples=3 * settings.default.max_examples, stateful_step_count=40
)


def finished(manager, owner, tokens):
    """Runs a request: reuse, compute all rows but the last token's, publish, release."""
    manager.create(owner, tokens)
    manager.ensure(owner, len(tokens))
    blocks = manager.block_ids(owner)
    manager.publish(owner, tokens, len(tokens) - 1)
    manager.release(owner)
    return blocks


def test_the_null_block_is_never_handed_out():
    manager = BlockManager(5, 2)
    manager.create(1, [])
    manager.ensure(1, 8)
    assert sorted(manager.block_ids(1)) == [1, 2, 3, 4]
    assert (manager.num_free, manager.num_used) == (0, 4)


def test_ensure_grows_only_by_what_is_missing():
    manager = BlockManager(9, 4)
    manager.create(1, [7])
    manager.ensure(1, 5)
    blocks = manager.block_ids(1)
    manager.ensure(1, 8)
    assert manager.block_ids(1) == blocks
    manager.ensure(1, 3)
    assert manager.block_ids(1) == blocks
    manager.trim(1, 4)
    assert manager.block_ids(1) == blocks[:1]


def test_a_prefix_is_shared_and_the_last_token_is_left_to_compute():
    manager = BlockManager(9, 2)
    blocks = finished(manager, 1, [1, 2, 3, 4, 5])
    assert manager.match_prefix([1, 2, 3, 4]) == 1
    assert manager.match_prefix([1, 2, 3, 4, 5]) == 2
    assert manager.create(2, [1, 2, 3, 4, 5, 6]) == 4
    assert manager.create(3, [1, 2, 3]) == 2
    assert manager.block_ids(2) == blocks[:2]
    assert manager.block_ids(3) == blocks[:1]
    assert manager.writable_from(2) == 4
    manager.release(2)
    assert manager.num_used == 1
    manager.check_integrity()


def test_the_successor_is_part_of_the_key():
    manager = BlockManager(9, 2)
    finished(manager, 1, [1, 2, 3, 4])
    assert manager.match_prefix([1, 2, 3, 9]) == 1
    assert manager.match_prefix([1, 2, 8, 9]) == 0
    finished(manager, 2, [1, 2, 8, 9])
    assert manager.match_prefix([1, 2, 8, 9]) == 1
    assert manager.num_cached == 2


def test_a_block_without_successor_or_with_missing_rows_is_not_published():
    manager = BlockManager(9, 2)
    manager.create(1, [1, 2, 3, 4])
    manager.ensure(1, 4)
    manager.publish(1, [1, 2, 3, 4], 4)
    assert manager.writable_from(1) == 2  # the second block's successor is not known
    manager.publish(1, [1, 2, 3, 4, 5], 3)
    assert manager.writable_from(1) == 2  # its last row is not final
    manager.publish(1, [1, 2, 3, 4, 5], 4)
    assert manager.writable_from(1) == 4


def test_publishing_rows_that_do_not_exist_is_refused():
    manager = BlockManager(9, 2)
    manager.create(1, [1, 2, 3])
    manager.ensure(1, 2)
    with pytest.raises(AllocatorError, match="Publish only rows that were written"):
        manager.publish(1, [1, 2, 3], 3)
    with pytest.raises(AllocatorError, match="Publish only rows that were written"):
        manager.publish(1, [1], 2)


def test_an_equal_content_keeps_its_first_block_and_no_block_is_aliased():
    manager = BlockManager(9, 2)
    for owner in (1, 2):
        manager.create(owner, [1, 2, 3])
        manager.ensure(owner, 3)
    first, second = manager.block_ids(1), manager.block_ids(2)
    manager.publish(1, [1, 2, 3], 2)
    manager.publish(2, [1, 2, 3], 2)
    assert manager.block_ids(2) == second
    manager.release(2)
    assert manager.num_cached == 0
    manager.release(1)
    assert manager.num_cached == 1
    manager.create(3, [1, 2, 3])
    assert manager.block_ids(3) == first[:1]
    manager.check_integrity()


def test_free_blocks_go_first_and_cached_ones_by_last_use():
    manager = BlockManager(5, 2)
    oldest = finished(manager, 1, [1, 1, 0])[0]
    newer = finished(manager, 2, [2, 2, 0])[0]
    manager.create(3, [1, 1, 0])  # used again: now the newest
    manager.release(3)
    manager.create(4, [9, 9, 9, 9])
    manager.ensure(4, 4)
    assert not {oldest, newer} & set(manager.block_ids(4))
    manager.ensure(4, 6)
    assert manager.block_ids(4)[2] == newer
    assert manager.match_prefix([2, 2, 0]) == 0
    assert manager.match_prefix([1, 1, 0]) == 1
    manager.ensure(4, 8)
    assert manager.block_ids(4)[3] == oldest
    assert manager.num_cached == 0


def test_a_child_is_evicted_before_its_parent():
    manager = BlockManager(4, 1)
    finished(manager, 1, [1, 2, 3])
    manager.create(2, [9])
    manager.ensure(2, 2)
    assert manager.match_prefix([1, 2, 3]) == 1


def test_a_child_is_found_again_when_its_evicted_parent_is_recomputed():
    manager = BlockManager(6, 1)
    tokens = [1, 2, 3]
    for owner in (1, 2):
        manager.create(owner, tokens)
        manager.ensure(owner, 2)
    manager.publish(1, tokens, 1)
    manager.publish(2, tokens, 2)  # the parent is owner 1's block, the child owner 2's
    manager.release(1)
    manager.create(3, [7])
    manager.ensure(3, 3)  # evicts the parent
    assert manager.match_prefix(tokens) == 0
    manager.check_integrity()
    manager.release(3)
    manager.release(2)
    manager.create(4, tokens)
    manager.ensure(4, 1)
    manager.publish(4, tokens, 1)
    assert manager.match_prefix(tokens) == 2
    manager.check_integrity()


def test_without_reuse_nothing_is_published():
    manager = BlockManager(9, 2, enable_block_reuse=False)
    finished(manager, 1, [1, 2, 3, 4, 5])
    assert manager.match_prefix([1, 2, 3, 4, 5]) == 0
    assert manager.num_cached == 0
    assert manager.create(2, [1, 2, 3, 4, 5]) == 0


def test_a_request_may_decline_reuse():
    manager = BlockManager(9, 2)
    finished(manager, 1, [1, 2, 3])
    assert manager.create(2, [1, 2, 3], reuse=False) == 0
    assert manager.block_ids(2) == []


def test_transactions_do_not_nest():
    manager = BlockManager(5, 2)
    manager.create(1, [])

    def nest():
        with manager.transaction():
            manager.ensure(1, 4)
            with manager.transaction():
                pass

    with pytest.raises(AllocatorError, match="do not nest"):
        nest()
    assert manager.block_ids(1) == []
    with manager.transaction():  # usable again
        manager.ensure(1, 4)
    assert len(manager.block_ids(1)) == 2


def test_a_transaction_restores_evicted_contents_and_released_owners():
    manager = BlockManager(5, 2)
    finished(manager, 1, [1, 2, 3])
    manager.create(2, [5, 6, 7])
    manager.ensure(2, 4)
    before = state_of(manager)

    def run_out_of_blocks():
        with manager.transaction():
            manager.release(2)
            manager.create(3, [1, 2, 3])
            manager.ensure(3, 8)
            assert manager.num_free == 0
            manager.ensure(3, 9)

    with pytest.raises(OutOfBlocksError):
        run_out_of_blocks()
    assert state_of(manager) == before
    assert manager.match_prefix([1, 2, 3]) == 1
    manager.check_integrity()


@pytest.mark.parametrize(("num_blocks", "block_size"), [(1, 4), (0, 4), (8, 0)])
def test_impossible_pools_are_refused(num_blocks, block_size):
    with pytest.raises(ConfigError):
        BlockManager(num_blocks, block_size)


def lose_a_block(manager):
    manager._pool._free.pop()


def own_a_block_twice(manager):
    manager._tables[2].blocks.append(manager._tables[1].blocks[-1])


def free_a_used_block(manager):
    manager._pool._free.append(manager._tables[1].blocks[-1])


def miscount_references(manager):
    manager._pool._refs[manager._tables[1].blocks[0]] += 1


def hand_out_the_null_block(manager):
    manager._tables[2].blocks.append(0)


def map_a_key_to_another_block(manager):
    manager._tables[1].nodes[0].block = manager._tables[2].blocks[0]


def forget_a_key(manager):
    manager._root.children.clear()


def unseal_a_published_block(manager):
    manager._tables[1].nodes.pop()


def swap_the_chain(manager):
    manager._tables[1].nodes.reverse()


def miscount_cached_blocks(manager):
    manager._pool.num_cached += 1


def break_the_ring(manager):
    pool = manager._pool
    pool._older[pool.cached_blocks()[-1]] = manager._tables[2].blocks[0]


def keep_a_useless_content(manager):
    manager._add_child(manager._root, ((8, 8), 8))


FAULTS = [
    lose_a_block,
    own_a_block_twice,
    free_a_used_block,
    miscount_references,
    hand_out_the_null_block,
    map_a_key_to_another_block,
    forget_a_key,
    unseal_a_published_block,
    swap_the_chain,
    miscount_cached_blocks,
    break_the_ring,
    keep_a_useless_content,
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_check_integrity_finds(fault):
    manager = BlockManager(12, 2)
    finished(manager, 9, [6, 6, 6, 6, 6])
    manager.create(1, [1, 2, 3, 4, 5, 6])
    manager.create(2, [1, 2, 9])
    manager.ensure(1, 6)
    manager.ensure(2, 3)
    manager.publish(1, [1, 2, 3, 4, 5, 6], 5)
    manager.check_integrity()
    fault(manager)
    with pytest.raises(AllocatorError, match="inconsistent"):
        manager.check_integrity()
