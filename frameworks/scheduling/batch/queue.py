"""The queue of one tenant at one model: its order, and entries that may share a batch. Reads no clock."""

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any

from frameworks.core.fairness import TenantShare


@dataclass(slots=True, eq=False, weakref_slot=True)
class QueueEntry:
    """Rows of one request that run in one batch. Entries of one `group` may share a batch.

    `work`: the caller's object for these rows; the queue does not use it. `share`: of its tenant. `length`: tokens or
    elements of the longest row, from which the cost is computed. `may_share`: whether its group may have other entries.
    `is_closed`: whether its group accepts no new entries. The queue sets `order`, `serial` and `is_queued`.
    """

    work: Any
    share: TenantShare
    rows: int
    length: int
    group: Hashable
    may_share: bool = True
    is_closed: bool = False
    order: float = 0.0
    serial: int = 0
    is_queued: bool = False


class RequestQueue:
    """Entries ordered by priority with ageing: an entry gains one level for every `ageing_s` seconds in the queue.

    Priority p after w seconds has the level p - w / ageing_s. The current time cancels out between two entries. Their
    order is therefore fixed when they are added: arrival + p * ageing_s.
    """

    def __init__(self, ageing_s: float) -> None:
        self._ageing_s = ageing_s
        self._serials = count()
        # The heap may name removed entries for long. It has their order and serial only, so they can be freed.
        self._by_order: list[tuple[float, int]] = []
        self._by_serial: dict[int, QueueEntry] = {}
        self._by_length: dict[Hashable, list[tuple[int, float, int, QueueEntry]]] = {}
        self.rows = 0
        self.entries = 0

    def add(self, entry: QueueEntry, priority: int, now_s: float) -> None:
        """Add an entry. `priority`: 1 is first."""
        entry.order = now_s + priority * self._ageing_s
        entry.serial = next(self._serials)
        entry.is_queued = True
        heappush(self._by_order, (entry.order, entry.serial))
        self._by_serial[entry.serial] = entry
        insort(self._by_length.setdefault(entry.group, []), (entry.length, entry.order, entry.serial, entry))
        self.rows += entry.rows
        self.entries += 1

    def remove(self, entry: QueueEntry) -> None:
        """Remove an entry, which joins a batch or was cancelled. Does nothing if it is not queued."""
        if not entry.is_queued:
            return
        entry.is_queued = False
        del self._by_serial[entry.serial]
        self.rows -= entry.rows
        self.entries -= 1
        group = self._by_length[entry.group]
        del group[bisect_left(group, (entry.length, entry.order, entry.serial))]
        if not group:
            del self._by_length[entry.group]
        # The heap keeps it until it is first, or until most entries of the heap are removed ones.
        if len(self._by_order) > 64 and len(self._by_order) > 2 * self.entries:
            self._by_order = [key for key in self._by_order if key[1] in self._by_serial]
            heapify(self._by_order)

    def head(self) -> QueueEntry | None:
        """Return the next entry without removing it; None if the queue is empty."""
        while self._by_order:
            entry = self._by_serial.get(self._by_order[0][1])
            if entry is not None:
                return entry
            heappop(self._by_order)
        return None

    def group_size(self, entry: QueueEntry) -> int:
        """Return the number of queued entries in the group of this one, itself included if it is queued here."""
        return len(self._by_length.get(entry.group, ()))

    def shorter(self, entry: QueueEntry) -> Iterator[QueueEntry]:
        """Yield the shorter entries of its group, the longest first; equal lengths in the order of the queue.

        The entry may be queued elsewhere, here as in `longer`.
        """
        group = self._by_length.get(entry.group, [])
        end = bisect_left(group, (entry.length, entry.order, entry.serial))
        while end:
            start = bisect_left(group, (group[end - 1][0],))
            for i in range(start, end):
                yield group[i][3]
            end = start

    def longer(self, entry: QueueEntry) -> Iterator[QueueEntry]:
        """Return the later entries of its group by length and order, the shortest first."""
        group = self._by_length.get(entry.group, [])
        at = bisect_left(group, (entry.length, entry.order, entry.serial))
        at += at < len(group) and group[at][3] is entry
        return (group[i][3] for i in range(at, len(group)))
