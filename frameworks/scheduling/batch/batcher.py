"""When a batch is ready and what is in it. Pure: nothing is run, no clock is read."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from frameworks.scheduling.batch.cost import CostModel
from frameworks.scheduling.batch.queue import QueueEntry, RequestQueue

# Of how many equals a entry that is left behind will run, by how many wait: as replays of mixed texts had it best.
_COMPANY = 2
_COMPANY_IN_A_CROWD = 3
_CROWD = 64


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """`max_tokens` counts rows times longest; None is no bound. `max_delay_s`: how long a batch may wait to fill."""

    max_rows: int
    max_tokens: int | None = None
    max_delay_s: float = 0.0

    def below(self, ceiling: int | None) -> "BatchLimits":
        """These, with batches of `ceiling` tokens at most; None is no bound."""
        if ceiling is None:
            return self
        return replace(self, max_tokens=min(ceiling, self.max_tokens or ceiling))

    def most_rows(self, length: int) -> int:
        """Rows of such a length that may be in one batch; one always may."""
        return max(1, min(self.max_rows, self.max_tokens // length)) if self.max_tokens else self.max_rows


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """The entries that go together, all still in the line. `is_full`: waiting longer would add nothing to it."""

    entries: list[QueueEntry]
    rows: int
    length: int
    is_full: bool


def next_batch(line: RequestQueue, cost: CostModel, limits: BatchLimits) -> BatchPlan | None:
    """The batch around the entry that is next, None where nothing waits.

    It contains the next entry, so no request starves. Its neighbours by length join it for as long as the batch stays
    cheaper than its parts, by what the device has shown so far; the one that saves most joins first. A part's price is
    not that of running alone but, lower, its share of a small batch of equals: padding that another batch would not
    have is not bought (worth 2 to 4 % of the throughput with MiniLM and mixed lengths).
    """
    head = line.head()
    if head is None:
        return None
    entries, rows, length = [head], head.rows, head.length
    company = min(line.entries, _COMPANY if line.entries < _CROWD else _COMPANY_IN_A_CROWD)
    sides = [_Side(line.shorter(head)), _Side(line.longer(head))]
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
            # Left behind, it would hardly run alone: it is held to cost its share of a batch of its own kind, or less
            # where a row fills the caches by itself.
            share_s = cost.seconds(candidate.rows * company, candidate.length) / company
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


class _Side:
    """An iterator that can be looked at before it is taken from."""

    def __init__(self, entries: Iterator[QueueEntry]) -> None:
        self._pieces = entries
        self._next = next(entries, None)

    def peek(self) -> QueueEntry | None:
        return self._next

    def take(self) -> QueueEntry:
        entry = self._next
        assert entry is not None
        self._next = next(self._pieces, None)
        return entry
