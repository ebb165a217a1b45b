"""How large batches may be on devices that hold less than was asked, hold less for a while, or hold what they did."""

from hypothesis import given
from hypothesis import strategies as st

from frameworks.scheduling.batch.splitting import BatchCeiling

events = st.lists(st.tuples(st.booleans(), st.integers(1, 10_000)), max_size=300)


def run(ceiling: BatchCeiling, wanted: int, room: int) -> tuple[bool, int]:
    """A batch as large as the ceiling allows: whether the device holds it, and its size."""
    size = wanted if ceiling.size is None else min(wanted, ceiling.size)
    if size > room:
        ceiling.refused(size)
    else:
        ceiling.accepted(size)
    return size <= room, size


class TestAlways:
    @given(events)
    def test_it_falls_only_where_a_batch_did_not_fit_and_then_below_it(self, events: list[tuple[bool, int]]) -> None:
        ceiling = BatchCeiling()
        for fits, size in events:
            before = ceiling.size
            if fits:
                ceiling.accepted(size)
                assert (
                    before is None or ceiling.size is None or before <= ceiling.size <= max(before + 1, 1.25 * before)
                )
                assert ceiling.size is None or before is not None, "nothing that fits brings a ceiling"
            else:
                ceiling.refused(size)
                assert ceiling.size is not None
                assert 1 <= ceiling.size <= max(1, size - 1)
                assert before is None or ceiling.size <= before

    @given(events)
    def test_where_everything_fits_there_is_none(self, events: list[tuple[bool, int]]) -> None:
        ceiling = BatchCeiling()
        for _, size in events:
            ceiling.accepted(size)
            assert ceiling.size is None

    @given(events, st.integers(1, 10_000))
    def test_it_can_be_as_if_nothing_had_been(self, events: list[tuple[bool, int]], size: int) -> None:
        ceiling = BatchCeiling()
        for fits, each in events:
            (ceiling.accepted if fits else ceiling.refused)(each)
        before = ceiling.state
        ceiling.refused(size)
        ceiling.refused(max(1, size // 2))
        ceiling.restore(before)
        assert ceiling.state == before


class TestFirstBatches:
    def test_the_first_that_does_not_fit_halves_it(self) -> None:
        ceiling = BatchCeiling()
        ceiling.accepted(500)
        ceiling.refused(1000)
        assert ceiling.size == 500
        ceiling.refused(400)
        assert ceiling.size == 200

    def test_those_of_the_old_size_that_come_back_late_change_nothing(self) -> None:
        ceiling = BatchCeiling()
        for _ in range(4):
            ceiling.refused(1000)
        assert ceiling.size == 500

    def test_it_rises_by_a_quarter_after_sixteen_batches_near_it(self) -> None:
        ceiling = BatchCeiling()
        ceiling.refused(1000)
        for _ in range(100):
            ceiling.accepted(249)
        assert ceiling.size == 500, "small ones say nothing"
        for _ in range(15):
            ceiling.accepted(250)
        assert ceiling.size == 500
        ceiling.accepted(500)
        assert ceiling.size == 625

    def test_a_raise_that_fails_goes_back_to_what_held_and_is_tried_half_as_often(self) -> None:
        ceiling = BatchCeiling()
        ceiling.refused(1000)
        for patience in (16, 32, 64, 128, 256, 256):
            for _ in range(patience):
                assert ceiling.size == 500
                ceiling.accepted(500)
            assert ceiling.size == 625
            ceiling.accepted(600)
            ceiling.refused(610)
            ceiling.refused(610)  # another instance had one, too
            assert ceiling.size == 500

    def test_one_that_held_and_holds_no_more_is_halved(self) -> None:
        ceiling = BatchCeiling()
        ceiling.refused(1000)
        for _ in range(16):
            ceiling.accepted(500)
        ceiling.refused(625)
        ceiling.refused(500)
        assert ceiling.size == 250


class TestDevices:
    @given(st.integers(2, 100_000), st.integers(2, 100_000))
    def test_a_small_device_is_nearly_filled_and_hardly_ever_overfilled(self, wanted: int, room: int) -> None:
        """All of its memory but a fifth; of 5,000 batches few are split."""
        ceiling = BatchCeiling()
        outcomes = [run(ceiling, wanted, room) for _ in range(5000)]
        split = sum(not fits for fits, _ in outcomes)
        assert split <= max(0, wanted // room).bit_length() + 5000 // 256 + 8
        fitted = [size for fits, size in outcomes[-1000:] if fits]
        assert sum(fitted) / len(fitted) >= 0.75 * min(wanted, room)
        assert split == 0 or wanted > room

    @given(st.integers(16, 10_000), st.integers(2, 64), st.integers(0, 2000))
    def test_what_somebody_took_for_a_while_is_used_again(self, wanted: int, share: int, batches: int) -> None:
        ceiling = BatchCeiling()
        for _ in range(batches):
            run(ceiling, wanted, max(1, wanted // share))
        outcomes = [run(ceiling, wanted, wanted) for _ in range(256 * 24)]
        assert all(fits for fits, _ in outcomes)
        assert ceiling.size is None, "lifted, once it was past all that is ever asked"

    @given(st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 200)), min_size=1, max_size=12))
    def test_a_room_that_changes_splits_few_batches(self, phases: list[tuple[int, int]]) -> None:
        """Not more than it takes to halve down at each change, and one for each sixteen."""
        ceiling, split, batches = BatchCeiling(), 0, 0
        for room, count in phases:
            outcomes = [run(ceiling, 5000, room) for _ in range(count)]
            # A batch that does not fit runs in halves: of one row, it is told.
            split += sum(not fits and size > 1 for fits, size in outcomes)
            batches += count
        assert split <= 14 * len(phases) + batches // 16

    def test_rows_of_all_lengths_share_one_measure(self) -> None:
        """One short row among many that are near: what is small neither raises nor hinders."""
        ceiling = BatchCeiling()
        ceiling.refused(4096)
        for _ in range(40):
            ceiling.accepted(4)
            ceiling.accepted(2000)
        assert ceiling.size is not None
        assert ceiling.size > 2500
