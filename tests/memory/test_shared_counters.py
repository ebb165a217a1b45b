"""Rows of counters as several processes see them, in one process: each has views of its own."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory.shared_counters import CELLS, CounterRow, NoFreeRow, SharedCounters

PROCESSES = 3


def views(counters: SharedCounters, number: int) -> list[CounterRow]:
    """Return a row as each process sees it."""
    rows = []
    for process in range(PROCESSES):
        counters.use(process)
        rows.append(counters.row(number))
    return rows


writes = st.lists(
    st.tuples(
        st.integers(0, 3), st.integers(0, PROCESSES - 1), st.integers(0, CELLS - 1), st.integers(-(2**62), 2**62)
    ),
    max_size=40,
)


@given(writes, st.integers(0, PROCESSES - 1))
def test_row_shows_cells_of_all(written: list[tuple[int, int, int, int]], lost: int) -> None:
    counters = SharedCounters(PROCESSES, 4, 0)
    rows = [views(counters, counters.allocate_row()) for _ in range(4)]
    expected = np.zeros((4, CELLS, PROCESSES), np.int64)
    for row, process, cell, value in written:
        rows[row][process].set(cell, value)
        expected[row, cell, process] = value
    for seen in range(PROCESSES):
        assert [[list(row[seen].of_all(cell)) for cell in range(CELLS)] for row in rows] == expected.tolist()
    counters.release(lost)
    expected[:, :, lost] = 0
    assert [[list(row[0].of_all(cell)) for cell in range(CELLS)] for row in rows] == expected.tolist()


def test_lines_of_processes_are_cache_lines() -> None:
    rows = views(SharedCounters(PROCESSES, 2, 0), 1)
    address = np.frombuffer(rows[0].memory, np.uint8).ctypes.data
    assert [row.offset for row in rows] == [192, 256, 320]
    assert address % 64 == 0


def test_freed_row_reused_once_all_zero() -> None:
    counters = SharedCounters(PROCESSES, 2, 0)
    first, second = counters.allocate_row(), counters.allocate_row()
    with pytest.raises(NoFreeRow, match="expected fewer of them"):
        counters.allocate_row()
    row = views(counters, first)[2]
    row.set(1, 5)
    counters.free_row(first)
    with pytest.raises(NoFreeRow):
        counters.allocate_row()
    counters.free_row(second)
    assert counters.allocate_row() == second
    row.set(1, 0)
    assert counters.allocate_row() == first
    row.set(3, 1)
    counters.free_row(first)
    counters.release(2)
    assert counters.allocate_row() == first


def test_floats_of_all_processes() -> None:
    counters = SharedCounters(PROCESSES, 1, 0)
    row = views(counters, counters.allocate_row())[1]
    memoryview(row.memory)[row.offset + 24 : row.offset + 32].cast("d")[0] = 1.5
    assert list(row.seconds_of_all(3)) == [0.0, 1.5, 0.0]
