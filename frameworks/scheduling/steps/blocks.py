"""Allocate the blocks of the KV cache, and find cached prefixes. Pure: no tensor is touched.

A block holds the keys and values of `block_tokens` consecutive tokens. A full block is identified by its tokens and by
the block before it; the first one by its tokens and by a scope: tenants and adapters share no blocks. A sequence with
the same scope and prefix copies such blocks instead of computing them. The lowest free blocks are allocated, so that
the blocks in use are adjacent and are read as one tensor. Blocks cached after their sequence has ended move to the top,
unless adjacency is of no use to the steps. When no block is free, the least recently used cached one is evicted.
"""

import heapq
import itertools
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

Node = int | str
"""A block in the chain of a prefix; the scope stands for the block before the first one."""
Key = tuple[Node, tuple[int, ...]]
"""The block before, and the tokens in this one."""


class Copy(NamedTuple):
    """One block to be copied into another before the next step."""

    source: int
    destination: int


class PrefixMatch(NamedTuple):
    """The cached blocks of a prompt's prefix. `is_pending`: another sequence is computing the next one."""

    blocks: list[int]
    is_pending: bool


class BlockPool:
    """`blocks` blocks of `block_tokens` tokens each. Used by one thread."""

    def __init__(self, blocks: int, block_tokens: int) -> None:
        self.num_blocks = blocks
        self.block_tokens = block_tokens
        self.state_tokens = 0
        """Tokens whose blocks a sequence needs beside those of its own tokens."""
        self.num_spare = 1
        """Blocks that stay free for each running sequence when another one starts."""
        self.moves_ended = True
        """Whether cached blocks of ended sequences move to the top. False where steps read scattered blocks as fast."""
        self._free: list[int] = list(range(blocks))  # a heap: the lowest first
        self._nodes = itertools.count(1)
        # Full blocks by their content, of running sequences and of ended ones.
        self._node_of: dict[Key, int] = {}
        self._block_of_node: dict[int, int] = {}
        self._key_of_block: dict[int, Key] = {}
        # Cached blocks, the least recently used first.
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._pending: dict[Key, int] = {}

    @property
    def num_free(self) -> int:
        """Number of blocks that can be allocated now, cached ones included."""
        return len(self._free) + len(self._cached)

    @property
    def num_cached(self) -> int:
        """Number of cached blocks that no sequence holds."""
        return len(self._cached)

    @property
    def num_used(self) -> int:
        """Number of blocks that sequences hold."""
        return self.num_blocks - self.num_free

    def allocate(self, count: int, keep: Sequence[int] = ()) -> list[int] | None:
        """Allocate `count` blocks, or return None and change nothing if there are fewer.

        `keep`: cached blocks that will be copied, so they are not evicted.
        """
        for block in reversed(keep):
            if block in self._cached:
                self._cached.move_to_end(block)
        spare = sum(block in self._cached for block in keep)
        if count > self.num_free - spare:
            return None
        while len(self._free) < count:
            self._evict(next(iter(self._cached)))
        return [heapq.heappop(self._free) for _ in range(count)]

    def match(self, token_ids: Sequence[int], scope: str = "") -> PrefixMatch:
        """Find the longest prefix of a prompt that is cached in the scope, in full blocks.

        The prompt's last token is never part of it.
        """
        blocks: list[int] = []
        node: Node = scope
        is_pending = False
        for start in range(0, len(token_ids) - self.block_tokens, self.block_tokens):
            key = (node, tuple(token_ids[start : start + self.block_tokens]))
            known = self._node_of.get(key)
            if known is None:
                is_pending = key in self._pending
                break
            node = known
            blocks.append(self._block_of_node[known])
        # Every match of a longer prefix needs its first blocks, so these are evicted last.
        for block in reversed(blocks):
            if block in self._cached:
                self._cached.move_to_end(block)
        return PrefixMatch(blocks, is_pending)

    def mark_pending(self, chain: "Chain", token_ids: Sequence[int]) -> None:
        """Mark the next full block of a prompt as being computed: other sequences may wait for it."""
        start = chain.tokens
        if len(token_ids) - start > self.block_tokens:
            key = (chain.node, tuple(token_ids[start : start + self.block_tokens]))
            self._pending[key] = self._pending.get(key, 0) + 1
            chain.pending = key

    def unmark_pending(self, chain: "Chain") -> None:
        """Remove the mark: the block is computed, or never will be."""
        key, chain.pending = chain.pending, None
        if key is not None:
            remaining = self._pending[key] - 1
            if remaining:
                self._pending[key] = remaining
            else:
                del self._pending[key]

    def cache_full_blocks(
        self, chain: "Chain", token_ids: Sequence[int], num_computed_tokens: int, blocks: Sequence[int]
    ) -> None:
        """Make those blocks matchable that `num_computed_tokens` tokens of a sequence have filled."""
        while chain.tokens + self.block_tokens <= num_computed_tokens:
            start = chain.tokens
            key = (chain.node, tuple(token_ids[start : start + self.block_tokens]))
            if chain.pending == key:
                self.unmark_pending(chain)
            node = self._node_of.get(key)
            if node is None:
                block = blocks[start // self.block_tokens]
                node = self._node_of[key] = next(self._nodes)
                self._block_of_node[node] = block
                self._key_of_block[block] = key
            chain.node = node
            chain.tokens += self.block_tokens

    def release(self, blocks: Sequence[int]) -> list[Copy]:
        """Free a sequence's blocks. Matchable ones stay cached, and move to free blocks at the top where possible.

        Return the copies to make before anything else is written.
        """
        copies: list[Copy] = []
        moved: dict[int, int] = {}
        free = sorted(self._free)
        for block in blocks:
            key = self._key_of_block.get(block)
            if key is None:
                continue
            # Never into a block of this sequence: its own content may still have to be copied.
            if self.moves_ended and free and free[-1] > block:
                destination = free.pop()
                copies.append(Copy(block, destination))
                self._move(key, block, destination)
                moved[block] = destination
            else:
                moved[block] = block
        kept = set(moved.values())
        self._free = [*free, *(block for block in blocks if block not in kept)]
        heapq.heapify(self._free)
        # The last blocks of a chain are evicted before the first.
        for block in reversed(blocks):
            if block in moved:
                self._cached[moved[block]] = None
        return copies

    def clear_cache(self) -> None:
        """Make no block matchable any more, and free the cached ones."""
        for block in list(self._cached):
            self._evict(block)
        self._node_of.clear()
        self._block_of_node.clear()
        self._key_of_block.clear()

    def check_integrity(self, held: Sequence[int]) -> None:
        """Raise AssertionError unless the blocks in `held`, the free and the cached ones are all blocks, each once."""
        every_block = sorted([*held, *self._free, *self._cached])
        assert every_block == list(range(self.num_blocks)), "blocks were lost or allocated twice"
        assert set(self._key_of_block) <= {*held, *self._cached}, "a free block is matchable"
        for key, node in self._node_of.items():
            assert self._key_of_block[self._block_of_node[node]] == key, "a block has another key"

    def _move(self, key: Key, source: int, destination: int) -> None:
        del self._key_of_block[source]
        self._key_of_block[destination] = key
        self._block_of_node[self._node_of[key]] = destination

    def _evict(self, block: int) -> None:
        del self._cached[block]
        key = self._key_of_block.pop(block)
        del self._block_of_node[self._node_of.pop(key)]
        heapq.heappush(self._free, block)


class Chain:
    """The matchable blocks of one sequence: the last one, and the number of tokens up to its end."""

    __slots__ = ("node", "pending", "scope", "tokens")

    def __init__(self, scope: str = "") -> None:
        """`scope`: only sequences of the same scope match the blocks."""
        self.scope = scope
        self.node: Node = scope
        self.tokens = 0
        self.pending: Key | None = None
