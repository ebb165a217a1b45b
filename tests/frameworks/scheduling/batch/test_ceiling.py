"""The bound of batches on devices with less memory, for a while or for good."""

from hypothesis import given
from hypothesis import strategies as st

from frameworks.scheduling.batch.splitting import BatchCeiling

events = st.lists(st.tuples(st.booleans(), st.integers(1, 10_000)), max_size=300)


def run(ceiling: BatchCeiling, wanted: int, room: int) -> tuple[bool, int]:
    """Run a batch of the allowed size; return whether it fits, and its size."""
    size = wanted if ceiling.size is None else min(wanted, ceiling.size)
    if size > room:
        ceiling.refused(size)
    else:
        ceiling.accepted(size)
    return size <= room, size


class TestInvariants:
    @given(events)
    def test_ceiling_falls_only_below_failed_batch(self, events: list[tuple[bool, int]]) -> None:
        ceiling = BatchCeiling()
        for fits, size in events:
            before = ceiling.size
            if fits:
                ceiling.accepted(size)
                assert (
                    before is None or ceiling.size is None or before <= ceiling.size <= max(before + 1, 1.25 * before)
                )
                assert ceiling.size is None or before is not None, "a batch that fits never creates a ceiling"
            else:
                ceiling.refused(size)
                assert ceiling.size is not None
                assert 1 <= ceiling.size <= max(1, size - 1)
                assert before is None or ceiling.size <= before

    @given(events)
    def test_fitting_batches_set_no_ceiling(self, events: list[tuple[bool, int]]) -> None:
        ceiling = BatchCeiling()
        for _, size in events:
            ceiling.accepted(size)
            assert ceiling.size is None

    @given(events, st.integers(1, 10_000))
    def test_reset_clears_ceiling(self, events: list[tuple[bool, int]], size: int) -> None:
        ceiling = BatchCeiling()
        for fits, each in events:
            (ceiling.accepted if fits else ceiling.refused)(each)
        before = ceiling.state
        ceiling.refused(size)
        ceiling.refused(max(1, size // 2))
        ceiling.restore(before)
        assert ceiling.state == before


class TestChanges:
    def test_first_failure_halves_ceiling(self) -> None:
        ceiling = BatchCeiling()
        ceiling.accepted(500)
        ceiling.refused(1000)
        assert ceiling.size == 500
        ceiling.refused(400)
        assert ceiling.size == 200

    def test_late_failures_of_old_size_are_ignored(self) -> None:
        ceiling = BatchCeiling()
        for _ in range(4):
            ceiling.refused(1000)
        assert ceiling.size == 500

    def test_ceiling_rises_after_sixteen_batches_near_it(self) -> None:
        ceiling = BatchCeiling()
        ceiling.refused(1000)
        for _ in range(100):
            ceiling.accepted(249)
        assert ceiling.size == 500, "batches far below the ceiling do not count"
        for _ in range(15):
            ceiling.accepted(250)
        assert ceiling.size == 500
        ceiling.accepted(500)
        assert ceiling.size == 625

    def test_failed_rise_restores_ceiling_and_doubles_interval(self) -> None:
        ceiling = BatchCeiling()
        ceiling.refused(1000)
        for patience in (16, 32, 64, 128, 256, 256):
            for _ in range(patience):
                assert ceiling.size == 500
                ceiling.accepted(500)
            assert ceiling.size == 625
            ceiling.accepted(600)
            ceiling.refused(610)
            ceiling.refused(610)  # another instance ran the same size
            assert ceiling.size == 500

    def test_ceiling_that_fails_again_is_halved(self) -> None:
        ceiling = BatchCeiling()
        ceiling.refused(1000)
        for _ in range(16):
            ceiling.accepted(500)
        ceiling.refused(625)
        ceiling.refused(500)
        assert ceiling.size == 250


class TestSimulatedDevices:
    @given(st.integers(2, 100_000), st.integers(2, 100_000))
    def test_small_device_is_filled_with_few_splits(self, wanted: int, room: int) -> None:
        """Batches use four fifths of the memory, and few of 5,000 are split."""
        ceiling = BatchCeiling()
        outcomes = [run(ceiling, wanted, room) for _ in range(5000)]
        split = sum(not fits for fits, _ in outcomes)
        assert split <= max(0, wanted // room).bit_length() + 5000 // 256 + 8
        fitted = [size for fits, size in outcomes[-1000:] if fits]
        assert sum(fitted) / len(fitted) >= 0.75 * min(wanted, room)
        assert split == 0 or wanted > room

    @given(st.integers(16, 10_000), st.integers(2, 64), st.integers(0, 2000))
    def test_memory_freed_later_is_used_again(self, wanted: int, share: int, batches: int) -> None:
        ceiling = BatchCeiling()
        for _ in range(batches):
            run(ceiling, wanted, max(1, wanted // share))
        outcomes = [run(ceiling, wanted, wanted) for _ in range(256 * 24)]
        assert all(fits for fits, _ in outcomes)
        assert ceiling.size is None, "the ceiling is removed past the largest batch"

    @given(st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 200)), min_size=1, max_size=12))
    def test_changing_memory_splits_few_batches(self, phases: list[tuple[int, int]]) -> None:
        """At most the splits that halve down at each change, and one for each sixteen batches."""
        ceiling, split, batches = BatchCeiling(), 0, 0
        for room, count in phases:
            outcomes = [run(ceiling, 5000, room) for _ in range(count)]
            # A batch that does not fit runs in halves; a single row fails.
            split += sum(not fits and size > 1 for fits, size in outcomes)
            batches += count
        assert split <= 14 * len(phases) + batches // 16

    def test_ceiling_counts_rows_times_length(self) -> None:
        """A short row among many near the ceiling neither raises it nor prevents a rise."""
        ceiling = BatchCeiling()
        ceiling.refused(4096)
        for _ in range(40):
            ceiling.accepted(4)
            ceiling.accepted(2000)
        assert ceiling.size is not None
        assert ceiling.size > 2500
