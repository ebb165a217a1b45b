"""The choice of the entries of the next batch. It runs nothing and reads no clock."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from frameworks.scheduling.batch.cost import CostModel
from frameworks.scheduling.batch.queue import QueueEntry, RequestQueue

# An entry that does not join is expected to run later in a batch of this many equal entries. Replays of texts of mixed
# lengths were fastest with these values.
_LATER_BATCH_ENTRIES = 2
_LATER_BATCH_ENTRIES_LONG_QUEUE = 3
_LONG_QUEUE_ENTRIES = 64


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The bounds of a batch.

    `max_tokens`: rows times the longest row; None means no bound. `max_delay_s`: how long a batch may wait to fill.
    """

    max_rows: int
    max_tokens: int | None = None
    max_delay_s: float = 0.0

    def below(self, ceiling: int | None) -> "BatchLimits":
        """Return these limits with at most `ceiling` tokens; None means no further bound."""
        if ceiling is None:
            return self
        return replace(self, max_tokens=min(ceiling, self.max_tokens or ceiling))

    def most_rows(self, length: int) -> int:
        """Return how many rows of this length one batch may have, at least one."""
        return max(1, min(self.max_rows, self.max_tokens // length)) if self.max_tokens else self.max_rows


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """The entries of the next batch, all still queued. `is_full`: later arrivals cannot join it."""

    entries: list[QueueEntry]
    rows: int
    length: int
    is_full: bool


def next_batch(queue: RequestQueue, cost: CostModel, limits: BatchLimits) -> BatchPlan | None:
    """Return the batch of the next entry, None if the queue is empty.

    The next entry is always in it, so no request starves. Its neighbours by length join while the cost model expects
    the batch to be cheaper than separate runs. The neighbour that saves most joins first. The cost of an entry that
    does not join is its share of a small batch of equal entries, which is below its cost alone. This avoids padding
    that a later batch would not have (2 to 4 % of the throughput with MiniLM and mixed lengths).
    """
    head = queue.head()
    if head is None:
        return None
    entries, rows, length = [head], head.rows, head.length
    is_long = queue.entries >= _LONG_QUEUE_ENTRIES
    later_entries = min(queue.entries, _LATER_BATCH_ENTRIES_LONG_QUEUE if is_long else _LATER_BATCH_ENTRIES)
    sides = [_Peekable(queue.shorter(head)), _Peekable(queue.longer(head))]
    max_rows = min(limits.max_rows, cost.most_rows)
    is_full = rows >= max_rows or not head.shares
    while not is_full:
        best, best_saving = None, 0.0
        for side in sides:
            candidate = side.peek()
            if candidate is None:
                continue
            joint_rows, joint_length = rows + candidate.rows, max(length, candidate.length)
            if joint_rows > max_rows or (limits.max_tokens and joint_rows * joint_length > limits.max_tokens):
                is_full = True
                continue
            # Later it would hardly run alone, so it costs a share of a batch of equal entries. A row that fills the
            # caches by itself costs less alone.
            share_s = cost.seconds(candidate.rows * later_entries, candidate.length) / later_entries
            later_s = min(share_s, cost.seconds(candidate.rows, candidate.length))
            saving = cost.seconds(rows, length) + later_s - cost.seconds(joint_rows, joint_length)
            if saving > best_saving:
                best, best_saving = side, saving
        if best is None:
            break
        entry = best.take()
        entries.append(entry)
        rows, length = rows + entry.rows, max(length, entry.length)
        is_full = rows >= max_rows
    return BatchPlan(entries, rows, length, is_full or head.is_closed)


class _Peekable:
    """An iterator of entries that shows the next one before it is taken."""

    def __init__(self, entries: Iterator[QueueEntry]) -> None:
        self._entries = entries
        self._next = next(entries, None)

    def peek(self) -> QueueEntry | None:
        return self._next

    def take(self) -> QueueEntry:
        entry = self._next
        assert entry is not None
        self._next = next(self._entries, None)
        return entry
