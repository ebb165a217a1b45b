"""Free ranges: search, merging, and the bound of their fragmentation."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from memory.shared_blocks import FreeRanges

UNIT = 64
SIZE = 1024 * UNIT


def taken(free: FreeRanges, size: int) -> int:
    """Take a block that fits."""
    start = free.take(size)
    assert start is not None
    return start


class TestSearch:
    def test_whole_region_is_one_block(self) -> None:
        free = FreeRanges(SIZE)
        assert free.take(SIZE) == 0
        assert (free.take(UNIT), free.ranges(), free.free) == (None, [], 0)

    @pytest.mark.parametrize("size", [SIZE + 1, 3 * SIZE, 2**62])
    def test_block_beyond_region_is_refused(self, size: int) -> None:
        assert FreeRanges(SIZE).take(size) is None

    def test_latest_block_of_size_is_first(self) -> None:
        free = FreeRanges(SIZE)
        blocks = [taken(free, 37 * UNIT) for _ in range(8)]
        for start in (blocks[1], blocks[5], blocks[3]):
            free.give_back(start, 37 * UNIT)
        assert [free.take(37 * UNIT) for _ in range(3)] == [blocks[3], blocks[5], blocks[1]]

    def test_latest_larger_range_is_first(self) -> None:
        free = FreeRanges(SIZE)
        blocks = [taken(free, 37 * UNIT) for _ in range(6)]
        for start in (blocks[1], blocks[3]):
            free.give_back(start, 37 * UNIT)
        assert free.take(20 * UNIT) == blocks[3]

    def test_small_block_leaves_large_range_whole(self) -> None:
        free = FreeRanges(SIZE)
        small, _ = taken(free, 4 * UNIT), taken(free, UNIT)
        free.give_back(small, 4 * UNIT)
        assert free.take(3 * UNIT) == small
        assert free.ranges() == [(5 * UNIT, SIZE - 5 * UNIT), (3 * UNIT, UNIT)]

    def test_exact_fit_behind_smaller_ranges_is_found(self) -> None:
        # All in the class of 64 to 67 units, with one unit in use between them.
        free = FreeRanges(SIZE)
        blocks = [(taken(free, units * UNIT), units * UNIT, free.take(UNIT)) for units in (67, 64, 65, 66)]
        assert free.take(free.ranges()[0][1]) is not None
        for start, size, _ in blocks:
            free.give_back(start, size)
        assert free.take(67 * UNIT) == blocks[0][0]

    def test_range_sixteenth_larger_is_always_found(self) -> None:
        # More ranges than are looked at, each of the class of 64 to 67 units, and none large enough.
        free = FreeRanges(8 * SIZE)
        larger, _ = taken(free, 68 * UNIT), taken(free, UNIT)
        blocks = [(taken(free, 66 * UNIT), free.take(UNIT)) for _ in range(100)]
        free.give_back(larger, 68 * UNIT)
        for start, _ in blocks:
            free.give_back(start, 66 * UNIT)
        while free.ranges()[0][1] > 68 * UNIT:
            taken(free, free.ranges()[0][1])
        assert free.take(67 * UNIT) == larger
        assert free.take(67 * UNIT) is None

    def test_neighbours_merge_on_both_sides(self) -> None:
        free = FreeRanges(SIZE)
        starts = [taken(free, UNIT) for _ in range(3)]
        free.give_back(starts[0], UNIT)
        free.give_back(starts[2], UNIT)
        assert len(free.ranges()) == 2
        free.give_back(starts[1], UNIT)
        assert free.ranges() == [(0, SIZE)]


class AnyOrder(RuleBasedStateMachine):
    """Take and give back blocks in any order, and compare with the blocks in use."""

    def __init__(self) -> None:
        super().__init__()
        self.free = FreeRanges(SIZE)
        self.blocks: dict[int, int] = {}

    @rule(units=st.one_of(st.integers(1, 40), st.integers(1, 1024), st.sampled_from([64, 65, 66, 67])))
    def take(self, units: int) -> None:
        size = units * UNIT
        start = self.free.take(size)
        if start is None:
            largest = max((size for _, size in self.free.ranges()), default=0)
            assert largest < size
            assert self.free.free < (len(self.blocks) + 1) * size
        else:
            assert start not in self.blocks
            self.blocks[start] = size

    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        if self.blocks:
            start = data.draw(st.sampled_from(sorted(self.blocks)))
            self.free.give_back(start, self.blocks.pop(start))

    @invariant()
    def free_ranges_fill_gaps(self) -> None:
        """Blocks do not overlap, and each gap between them is one range: so no two ranges touch."""
        gaps, end = [], 0
        for start in [*sorted(self.blocks), SIZE]:
            assert start >= end
            assert start % UNIT == 0
            if start > end:
                gaps.append((end, start - end))
            end = start + self.blocks.get(start, 0)
        assert self.free.ranges() == gaps[::-1]
        assert self.free.free == SIZE - sum(self.blocks.values())

    def teardown(self) -> None:
        for start, size in self.blocks.items():
            self.free.give_back(start, size)
        assert self.free.ranges() == [(0, SIZE)]
        assert self.free.take(SIZE) == 0


TestAnyOrder = AnyOrder.TestCase
