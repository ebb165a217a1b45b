"""Which block of the key/value memory holds what: pure book-keeping, no tensor is touched.

A block holds the keys and values of `block_tokens` tokens in a row. A full block is known by the tokens in it and by
those before it; whoever begins with the same tokens copies it in the place of computing it. Sequences hold blocks from
the bottom up, so that those in use lie together and are read in one piece; what is kept of sequences that have left
lies at the top, and is given up, the longest unused first, when room is needed.
"""

import heapq
import itertools
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

Key = tuple[int, tuple[int, ...]]
"""The block before (0: none), and the tokens in this one."""


class Copy(NamedTuple):
    """One block's content, to be written into another block before the next step."""

    source: int
    destination: int


class PrefixMatch(NamedTuple):
    """How much of a prompt is known: the blocks that hold its beginning. `is_coming`: the next one is being computed
    for somebody else.
    """

    blocks: list[int]
    is_coming: bool


class BlockPool:
    """`blocks` blocks of `block_tokens` tokens each. Used by one thread."""

    def __init__(self, blocks: int, block_tokens: int) -> None:
        self.total = blocks
        self.block_tokens = block_tokens
        self._free: list[int] = list(range(blocks))  # a heap: the lowest first
        self._nodes = itertools.count(1)
        # Full blocks by what is in them, of sequences that run and of those that have left.
        self._node_of: dict[Key, int] = {}
        self._block_of_node: dict[int, int] = {}
        self._key_of_block: dict[int, Key] = {}
        # Kept ones, the longest unused first.
        self._kept: OrderedDict[int, None] = OrderedDict()
        self._coming: dict[Key, int] = {}

    @property
    def free(self) -> int:
        """Blocks that a sequence could get now, those included that are only kept."""
        return len(self._free) + len(self._kept)

    @property
    def kept(self) -> int:
        """Blocks of sequences that have left."""
        return len(self._kept)

    @property
    def used(self) -> int:
        """Blocks that sequences hold."""
        return self.total - self.free

    def take(self, count: int, keep: Sequence[int] = ()) -> list[int] | None:
        """`count` blocks for a sequence; None, and nothing has changed, where there are not so many. `keep`: blocks
        of a text's beginning that are to be copied, and not given up for it.
        """
        for block in reversed(keep):
            if block in self._kept:
                self._kept.move_to_end(block)
        spare = sum(block in self._kept for block in keep)
        if count > self.free - spare:
            return None
        while len(self._free) < count:
            self._give_up(next(iter(self._kept)))
        return [heapq.heappop(self._free) for _ in range(count)]

    def match(self, token_ids: Sequence[int]) -> PrefixMatch:
        """The longest known beginning of a prompt, in full blocks; its last token is never among them."""
        blocks: list[int] = []
        node = 0
        is_coming = False
        for start in range(0, len(token_ids) - self.block_tokens, self.block_tokens):
            key = (node, tuple(token_ids[start : start + self.block_tokens]))
            known = self._node_of.get(key)
            if known is None:
                is_coming = key in self._coming
                break
            node = known
            blocks.append(self._block_of_node[node])
        # The beginning is asked for whenever what follows is: it is to be kept the longest.
        for block in reversed(blocks):
            if block in self._kept:
                self._kept.move_to_end(block)
        return PrefixMatch(blocks, is_coming)

    def expect(self, chain: "Chain", token_ids: Sequence[int]) -> None:
        """The next full block of a prompt is going to be computed: others may wait for it."""
        start = chain.tokens
        if len(token_ids) - start > self.block_tokens:
            key = (chain.node, tuple(token_ids[start : start + self.block_tokens]))
            self._coming[key] = self._coming.get(key, 0) + 1
            chain.expected = key

    def forget_expected(self, chain: "Chain") -> None:
        """It is computed, or will not be."""
        key, chain.expected = chain.expected, None
        if key is not None:
            left = self._coming[key] - 1
            if left:
                self._coming[key] = left
            else:
                del self._coming[key]

    def fill(self, chain: "Chain", token_ids: Sequence[int], computed: int, blocks: Sequence[int]) -> None:
        """Of a sequence `computed` tokens lie in its blocks: the full ones among them become known."""
        while chain.tokens + self.block_tokens <= computed:
            start = chain.tokens
            key = (chain.node, tuple(token_ids[start : start + self.block_tokens]))
            if chain.expected == key:
                self.forget_expected(chain)
            node = self._node_of.get(key)
            if node is None:
                block = blocks[start // self.block_tokens]
                node = self._node_of[key] = next(self._nodes)
                self._block_of_node[node] = block
                self._key_of_block[block] = key
            chain.node = node
            chain.tokens += self.block_tokens

    def release(self, blocks: Sequence[int]) -> list[Copy]:
        """A sequence leaves its blocks. What is known by them is kept, as far as there is room, in other blocks at the
        top: the copies to be made before anything else is written.
        """
        copies: list[Copy] = []
        moved: dict[int, int] = {}
        room = sorted(self._free)
        for block in blocks:
            key = self._key_of_block.get(block)
            if key is None:
                continue
            # Not into a block that this sequence leaves now: its content may still have to be copied itself.
            if room and room[-1] > block:
                destination = room.pop()
                copies.append(Copy(block, destination))
                self._move(key, block, destination)
                moved[block] = destination
            else:
                moved[block] = block
        kept = set(moved.values())
        self._free = [*room, *(block for block in blocks if block not in kept)]
        heapq.heapify(self._free)
        # The end of a chain is given up before its beginning.
        for block in reversed(blocks):
            if block in moved:
                self._kept[moved[block]] = None
        return copies

    def forget(self) -> None:
        """No block is known for what is in it any more; those that were only kept are free."""
        for block in list(self._kept):
            self._give_up(block)
        self._node_of.clear()
        self._block_of_node.clear()
        self._key_of_block.clear()

    def check_integrity(self, held: Sequence[int]) -> None:
        """Raises AssertionError where those in `held`, the free and the kept ones are not all blocks, each once."""
        everybody = sorted([*held, *self._free, *self._kept])
        assert everybody == list(range(self.total)), "blocks were lost or given out twice"
        assert set(self._key_of_block) <= {*held, *self._kept}, "a free block is known by its tokens"
        for key, node in self._node_of.items():
            assert self._key_of_block[self._block_of_node[node]] == key, "a block is not what it is known for"

    def _move(self, key: Key, source: int, destination: int) -> None:
        del self._key_of_block[source]
        self._key_of_block[destination] = key
        self._block_of_node[self._node_of[key]] = destination

    def _give_up(self, block: int) -> None:
        del self._kept[block]
        key = self._key_of_block.pop(block)
        del self._block_of_node[self._node_of.pop(key)]
        heapq.heappush(self._free, block)


class Chain:
    """How far the blocks of one sequence are known: the last of them, and the tokens up to its end."""

    __slots__ = ("expected", "node", "tokens")

    def __init__(self) -> None:
        self.node = 0
        self.tokens = 0
        self.expected: Key | None = None
