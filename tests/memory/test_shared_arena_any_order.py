"""Leases, reads, frees and trims of an arena in any order: no byte is shared or lost, the counters add up."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from memory import shared_arena
from memory.buffers import Array
from memory.shared_arena import ArenaError, Block, SharedArena

MAX_BYTES = 4 * 1024**2


class AnyOrder(RuleBasedStateMachine):
    """`blocks`: leases in use, each with the number written into all its bytes: shared bytes would show.

    `reads`: arrays of the same process on some of them. A block is freed when its last array is deleted.
    """

    def __init__(self) -> None:
        super().__init__()
        self.kept_bytes = shared_arena.KEPT_BYTES
        shared_arena.KEPT_BYTES = 0
        self.arena = SharedArena.create(MAX_BYTES)
        self.blocks: dict[int, tuple[Block, int]] = {}
        self.reads: list[tuple[Array, int]] = []
        self.ended: list[int] = []
        self.peak_bytes = 0

    @rule(nbytes=st.one_of(st.integers(0, 1000), st.integers(0, MAX_BYTES)))
    def lease(self, nbytes: int) -> None:
        block = self.arena.lease(nbytes)
        if block is None:
            assert self.blocks or self.reads
            return
        assert block.number not in self.blocks
        mark = block.number % 255 + 1
        block.array[:] = mark
        self.blocks[block.number] = block, mark
        self.peak_bytes = max(self.peak_bytes, self.leased_bytes())

    @precondition(lambda self: self.blocks)
    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        """Keep only an array on the block, whose end frees it."""
        block, mark = self.blocks.pop(data.draw(st.sampled_from(sorted(self.blocks))))
        array = self.arena.read(block.number, block.offset, block.array.nbytes, self.arena.free)
        self.reads.append((array, mark))

    @precondition(lambda self: self.reads)
    @rule(data=st.data())
    def end_read(self, data: st.DataObject) -> None:
        del self.reads[data.draw(st.integers(0, len(self.reads) - 1))]

    @precondition(lambda self: self.blocks)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.blocks)))
        del self.blocks[number]
        self.arena.free(number)
        self.ended.append(number)

    @precondition(lambda self: self.ended)
    @rule()
    def free_again(self) -> None:
        try:
            self.arena.free(self.ended[-1])
        except ArenaError:
            return
        raise AssertionError(self.ended)

    @rule(times=st.integers(1, 50))
    def trim(self, times: int) -> None:
        for _ in range(times):
            self.arena.trim()

    @invariant()
    def bytes_are_intact(self) -> None:
        arrays = [(block.array, mark) for block, mark in self.blocks.values()]
        assert all((array == mark).all() for array, mark in arrays + self.reads)

    @invariant()
    def counters_add_up(self) -> None:
        stats = self.arena.stats()
        assert stats.leased_bytes == self.leased_bytes()
        assert (stats.leases, stats.reads) == (len(self.blocks) + len(self.reads), len(self.reads))
        assert stats.peak_bytes == self.peak_bytes

    def leased_bytes(self) -> int:
        arrays = [block.array for block, _ in self.blocks.values()] + [array for array, _ in self.reads]
        return sum(-(-max(1, array.nbytes) // 64) * 64 for array in arrays)

    def teardown(self) -> None:
        shared_arena.KEPT_BYTES = self.kept_bytes
        self.reads.clear()
        for number in self.blocks:
            self.arena.free(number)
        self.arena.check_integrity()
        whole = self.arena.lease(MAX_BYTES)
        assert whole is not None
        assert whole.offset == 0
        self.arena.close()


TestAnyOrder = AnyOrder.TestCase
