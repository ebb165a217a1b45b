"""Pairs of numbers that processes share: what is read was written at once, also if the writer is killed."""

from hypothesis import given
from hypothesis import strategies as st

from memory.shared_pairs import SharedPairs

numbers = st.floats(allow_nan=False)


@given(st.lists(st.tuples(st.integers(0, 2), numbers, numbers), max_size=20))
def test_pairs_keep_last_write(writes: list[tuple[int, float, float]]) -> None:
    shared = SharedPairs(3)
    expected = [(0.0, 0.0)] * 3
    for number, first, second in writes:
        pair = shared.pair(number)
        with pair:
            pair.write(first, second)
        expected[number] = first, second
    assert [shared.pair(number).read() for number in range(3)] == expected


def test_reader_skips_half_written_copy() -> None:
    pair = SharedPairs(1).pair(0)
    with pair:
        pair.write(1.0, 1.0)
    # A writer that was killed has changed a part of the copy that is not valid yet.
    pair._values[1] = 2.0
    assert pair.read() == (1.0, 1.0)
    with pair:
        pair.write(3.0, 3.0)
    assert pair.read() == (3.0, 3.0)
