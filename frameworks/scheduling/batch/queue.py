"""Queue the entries of one model by priority, arrival and length. Pure: the clock is an argument."""

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any


@dataclass(slots=True, eq=False, weakref_slot=True)
class QueueEntry:
    """Rows of one request that run in one batch. Pieces of one `group` may share a batch.

    `length`: what a row costs is measured by it. `work`: whose they are, for the worker. `shares`: whether any other
    entry can be of its group. `is_closed`: whether nothing new comes to its group.
    """

    work: Any
    rows: int
    length: int
    group: Hashable
    shares: bool = True
    is_closed: bool = False
    order: float = 0.0
    serial: int = 0
    waits: bool = False


class RequestQueue:
    """Ordered by priority with ageing: a entry that waits gains a level every `ageing_s` seconds.

    Level p after waiting w stands at p - w / ageing_s. Between two entries the present cancels out, so their order is
    settled when they arrive: by arrival + p * ageing_s.
    """

    def __init__(self, ageing_s: float) -> None:
        self._ageing_s = ageing_s
        self._serials = count()
        # A heap of order and serial alone: it may name removed entries for long and must not reference them.
        self._by_order: list[tuple[float, int]] = []
        self._by_serial: dict[int, QueueEntry] = {}
        self._by_length: dict[Hashable, list[tuple[int, float, int, QueueEntry]]] = {}
        self.rows = 0
        self.entries = 0

    def add(self, entry: QueueEntry, priority: int, now_s: float) -> None:
        """Puts a entry in its place. `priority`: 1 is first."""
        entry.order = now_s + priority * self._ageing_s
        entry.serial = next(self._serials)
        entry.waits = True
        heappush(self._by_order, (entry.order, entry.serial))
        self._by_serial[entry.serial] = entry
        insort(self._by_length.setdefault(entry.group, []), (entry.length, entry.order, entry.serial, entry))
        self.rows += entry.rows
        self.entries += 1

    def remove(self, entry: QueueEntry) -> None:
        """Takes a entry out: it goes into a batch, or its caller is gone. Harmless for one that waits no more."""
        if not entry.waits:
            return
        entry.waits = False
        del self._by_serial[entry.serial]
        self.rows -= entry.rows
        self.entries -= 1
        group = self._by_length[entry.group]
        del group[bisect_left(group, (entry.length, entry.order, entry.serial))]
        if not group:
            del self._by_length[entry.group]
        # In the heap it stays until it comes up, or until most of the heap is of its kind.
        if len(self._by_order) > 64 and len(self._by_order) > 2 * self.entries:
            self._by_order = [entry for entry in self._by_order if entry[1] in self._by_serial]
            heapify(self._by_order)

    def head(self) -> QueueEntry | None:
        """The entry that is next; it stays in the line."""
        while self._by_order:
            entry = self._by_serial.get(self._by_order[0][1])
            if entry is not None:
                return entry
            heappop(self._by_order)
        return None

    def group_size(self, entry: QueueEntry) -> int:
        """How many entries of its group wait, itself included."""
        return len(self._by_length[entry.group])

    def shorter(self, entry: QueueEntry) -> Iterator[QueueEntry]:
        """The entries of its group before it by length, the nearest first; of one length the first in order first."""
        group = self._by_length[entry.group]
        end = bisect_left(group, (entry.length, entry.order, entry.serial))
        while end:
            start = bisect_left(group, (group[end - 1][0],))
            for i in range(start, end):
                yield group[i][3]
            end = start

    def longer(self, entry: QueueEntry) -> Iterator[QueueEntry]:
        """The entries of its group after it by length, the nearest first."""
        group = self._by_length[entry.group]
        at = bisect_left(group, (entry.length, entry.order, entry.serial))
        return (group[i][3] for i in range(at + 1, len(group)))
