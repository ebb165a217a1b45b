"""Order the sequences that wait to run. Pure: it reads no clock."""

import heapq
from typing import Generic, Protocol, TypeVar


class Ordered(Protocol):
    """A sequence as the queue sees it: a lower `order` is first; among equals, a lower `sequence_id`."""

    order: float

    @property
    def sequence_id(self) -> int: ...


Waiting = TypeVar("Waiting", bound=Ordered)


class WaitingQueue(Generic[Waiting]):
    """A heap with lazy deletion. Adding, removing and taking a sequence take O(log n) comparisons, amortised.

    A removed sequence stays in the heap until it is first, or until most entries of the heap are removed ones.
    """

    def __init__(self) -> None:
        # The heap names removed sequences by their id only, so they can be freed.
        self._by_order: list[tuple[float, int]] = []
        self._by_id: dict[int, Waiting] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, sequence: Waiting) -> bool:
        return sequence.sequence_id in self._by_id

    def add(self, sequence: Waiting) -> None:
        """Add a sequence. One that was removed is not added again; one that was taken may be."""
        self._by_id[sequence.sequence_id] = sequence
        heapq.heappush(self._by_order, (sequence.order, sequence.sequence_id))

    def remove(self, sequence: Waiting) -> None:
        """Remove a queued sequence, which was cancelled."""
        del self._by_id[sequence.sequence_id]
        self._drop_removed()

    def take(self) -> Waiting | None:
        """Remove and return the first sequence; None if the queue is empty."""
        while self._by_order:
            sequence = self._by_id.pop(heapq.heappop(self._by_order)[1], None)
            if sequence is not None:
                self._drop_removed()
                return sequence
        return None

    @property
    def first(self) -> Waiting | None:
        """The first sequence, which stays; None if the queue is empty."""
        while self._by_order:
            sequence = self._by_id.get(self._by_order[0][1])
            if sequence is not None:
                return sequence
            heapq.heappop(self._by_order)
        return None

    def sequences(self) -> list[Waiting]:
        """Return the queued sequences, in no order."""
        return list(self._by_id.values())

    def _drop_removed(self) -> None:
        if len(self._by_order) > 2 * len(self._by_id):
            self._by_order = [key for key in self._by_order if key[1] in self._by_id]
            heapq.heapify(self._by_order)
