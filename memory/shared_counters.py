"""Count over several processes: each writes cells of its own, and reads the sum over all."""

import mmap

import numpy as np

from memory.buffers import Array

CELL_BYTES = 8
LINE_BYTES = 64
"""Size of a cache line. Each process has its own line of a row: a write does not slow the reads of other cells."""
CELLS = LINE_BYTES // CELL_BYTES
"""Number of cells that a process has in a row."""


class NoFreeRow(Exception):
    """All rows are in use."""


class CounterRow:
    """One row, as one process uses it: it writes its own line, and reads those of all.

    `memory`: of all rows. `offset`: of its own line, in bytes.
    """

    def __init__(self, memory: mmap.mmap, number: int, processes: int, process: int) -> None:
        """`number`: of the row."""
        first = number * processes * LINE_BYTES
        self.memory = memory
        self.number = number
        self.offset = first + process * LINE_BYTES
        self._cells = memoryview(memory)[first : first + processes * LINE_BYTES]
        self._own = self._cells[process * LINE_BYTES : (process + 1) * LINE_BYTES].cast("q")

    def set(self, cell: int, value: int) -> None:
        """Write a cell of this process."""
        self._own[cell] = value

    def of_all(self, cell: int) -> "memoryview[int]":
        """Return int64 [processes]: the cell with this index, of every process. A sum of it takes 70-170 ns."""
        return self._cells.cast("q")[cell::CELLS]

    def seconds_of_all(self, cell: int) -> "memoryview[float]":
        """Return float64 [processes]: the cell with this index, of every process."""
        return self._cells.cast("d")[cell::CELLS]


class SharedCounters:
    """Rows of counters in memory that a process and its forked children share. Create it before the fork.

    Each line has one writer, so no cell needs a lock: 8 aligned bytes are read and written at once.
    """

    def __init__(self, processes: int, rows: int, process: int) -> None:
        """All cells are zero. `process`: number of the process that creates them; see `use`."""
        self._processes = processes
        self._process = process
        self._memory = mmap.mmap(-1, rows * processes * LINE_BYTES)
        # Only the process that creates the counters divides the rows.
        self._unused = iter(range(rows))
        self._free: list[int] = []
        self._used = 0

    def use(self, process: int) -> None:
        """Write the lines of this number from now on. Called by a child before it creates its limits."""
        self._process = process

    def row(self, number: int) -> CounterRow:
        """Return a row for this process."""
        return CounterRow(self._memory, number, self._processes, self._process)

    def allocate_row(self) -> int:
        """Return the number of a row with zeros only. Raises NoFreeRow.

        A row that was freed is used again once no process counts in it, and as late as possible: until a process has
        applied the removal of a model, a request may still begin to count in its row.
        """
        number = next(self._unused, None)
        if number is not None:
            self._used = number + 1
            return number
        lines = self._lines()
        for index, number in enumerate(self._free):
            if not lines[number].any():
                return self._free.pop(index)
        raise NoFreeRow("models: expected fewer of them, got as many as the workers can count; remove some")

    def free_row(self, number: int) -> None:
        """Take a row back. Processes may still count down in it."""
        assert number < self._used
        assert number not in self._free
        self._free.append(number)

    def release(self, process: int) -> None:
        """Set all cells of a process to zero. Called after its end."""
        self._lines()[:, process] = 0

    def _lines(self) -> Array:
        """Return the rows that were ever used, as int64 [rows, processes, cells]."""
        shape = (self._used, self._processes, CELLS)
        return np.frombuffer(self._memory, np.int64, self._used * self._processes * CELLS).reshape(shape)
