"""Bound the bytes of a server of several processes, summed over all of them."""

from collections.abc import Callable
from ctypes import Structure, c_int64
from typing import Self

from frameworks.core.errors import Overloaded
from frameworks.scheduling.byte_limit import ByteLimit
from memory.shared_counters import CELL_BYTES, CounterRow

HELD_BYTES_CELL = 4
"""Behind those of SharedRequestLimit, which may count in the same row."""


class SharedByteLimit(ByteLimit, Structure):
    """A ByteLimit whose own bytes are a cell of a CounterRow. Any thread may use it.

    The only hold of all processes always grows. Bytes are counted before they are checked, so the bound is never
    exceeded; two holds that grow in the same microsecond may both be refused.
    """

    _fields_ = (("own_bytes", c_int64),)

    def __new__(
        cls,
        row: CounterRow,
        max_bytes: int | None,
        name: str = "server.max_buffered_bytes",
        refusal: Callable[[str, float], Exception] = Overloaded,
        within: ByteLimit | None = None,
    ) -> Self:
        return cls.from_buffer(row.memory, row.offset + HELD_BYTES_CELL * CELL_BYTES)

    def __init__(
        self,
        row: CounterRow,
        max_bytes: int | None,
        name: str = "server.max_buffered_bytes",
        refusal: Callable[[str, float], Exception] = Overloaded,
        within: ByteLimit | None = None,
    ) -> None:
        """`within`: a SharedByteLimit. Other arguments: as ByteLimit."""
        ByteLimit.__init__(self, max_bytes, name, refusal, within)
        self._all_bytes = row.of_all(HELD_BYTES_CELL)

    @property
    def held_bytes(self) -> int:
        return sum(self._all_bytes)

    def full_limit(self, own: int, more: int) -> ByteLimit | None:
        for limit in self._all:
            if limit.max_bytes is not None and (held := limit.held_bytes) != own and held + more > limit.max_bytes:
                return limit
        return None


def byte_limit(
    row: CounterRow | None,
    max_bytes: int | None,
    name: str = "server.max_buffered_bytes",
    refusal: Callable[[str, float], Exception] = Overloaded,
    within: ByteLimit | None = None,
) -> ByteLimit:
    """Return a limit over all processes that count in the row, or of this process if it is None."""
    if row is None:
        return ByteLimit(max_bytes, name, refusal, within)
    return SharedByteLimit(row, max_bytes, name, refusal, within)
