"""Choose the entries of the next batch. Pure: runs no model and reads no clock."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from frameworks.core.fairness import TenantShare
from frameworks.scheduling.batch.cost import CostModel
from frameworks.scheduling.batch.fair_queue import FairQueue
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
    `packs`: a row is not padded to the longest one, and the length of a batch is the mean of its rows.
    """

    max_rows: int
    max_tokens: int | None = None
    max_delay_s: float = 0.0
    packs: bool = False

    def below(self, ceiling: int | None) -> "BatchLimits":
        """Return these limits with at most `ceiling` tokens; None means no further bound."""
        if ceiling is None:
            return self
        return replace(self, max_tokens=min(ceiling, self.max_tokens or ceiling))

    def length_of(self, longest: int, rows: int, tokens: int) -> float:
        """Return the length of a batch. `tokens`: of all its rows, without padding."""
        return tokens / rows if self.packs and rows else longest

    def most_rows(self, length: int) -> int:
        """Return how many rows of this length one batch may have, at least one."""
        return max(1, min(self.max_rows, self.max_tokens // length)) if self.max_tokens else self.max_rows


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """The entries of the next batch, all still queued. `length`: as `BatchLimits.length_of`. `is_full`: later arrivals
    cannot join it.
    """

    entries: list[QueueEntry]
    rows: int
    length: float
    is_full: bool


def next_batch(
    queue: FairQueue, cost: CostModel, limits: BatchLimits, may_join: Callable[[TenantShare], bool] = lambda _: True
) -> BatchPlan | None:
    """Return the batch of the next entry, None if the queue is empty.

    The next entry is always in it, so no request starves. Its neighbours by length join while the cost model expects
    the batch to be cheaper than separate runs. The neighbour that saves most joins first. The cost of an entry that
    does not join is its share of a small batch of equal entries, which is below its cost alone. This avoids padding
    that a later batch would not have (2 to 4 % of the throughput with MiniLM and mixed lengths).

    With several tenants the next neighbour is always one of the tenant with the least time, charged with its entries
    that have joined. A tenant that has no more that joins is passed over. `may_join`: tenants that may fill the batch
    of another.
    """
    share = queue.first()
    if share is None:
        return None
    own = queue.of(share)
    head = own.head()
    assert head is not None, "a tenant in the queue has an entry"
    batch = _GrowingBatch(head, queue.entries, cost, limits)
    if queue.num_tenants == 1 or not head.may_share:
        batch.fill(_Sides(own, head))
    else:
        batch.fill_fairly({each: queue.of(each) for each in queue.shares if each is share or may_join(each)})
    return batch.plan()


class _GrowingBatch:
    """A batch to which entries are added. It begins with the head of the queue."""

    def __init__(self, head: QueueEntry, num_queued: int, cost: CostModel, limits: BatchLimits) -> None:
        self._cost = cost
        self._limits = limits
        self._max_rows = min(limits.max_rows, cost.most_rows)
        is_long = num_queued >= _LONG_QUEUE_ENTRIES
        self._later_entries = min(num_queued, _LATER_BATCH_ENTRIES_LONG_QUEUE if is_long else _LATER_BATCH_ENTRIES)
        self._entries = [head]
        self._rows, self._tokens = head.rows, head.rows * head.length
        self._longest = head.length
        self._seconds = cost.seconds(head.rows, head.length)
        # Neighbours are often equal: (rows, length) of the last candidate, and its seconds if it does not join.
        self._last_shape = (0, 0)
        self._last_later_s = 0.0
        self._is_full = self._rows >= self._max_rows or not head.may_share

    @property
    def _length(self) -> float:
        return self._limits.length_of(self._longest, self._rows, self._tokens)

    def plan(self) -> BatchPlan:
        return BatchPlan(self._entries, self._rows, self._length, self._is_full or self._entries[0].is_closed)

    def fill(self, sides: "_Sides") -> None:
        """Add neighbours until none saves anything or fits."""
        while not self._is_full and self._add_best(sides):
            pass

    def fill_fairly(self, queues: dict[TenantShare, RequestQueue]) -> None:
        """Add neighbours of the tenant with the least time, again and again."""
        head = self._entries[0]
        sides = {share: _Sides(queue, head) for share, queue in queues.items()}
        # The time of a tenant with its entries of this batch; of equal ones, the least recent run is first.
        times = {share: (share.time, share.last_run) for share in queues}
        times[head.share] = self._charged(times[head.share], head)
        overflows = False
        while sides and not self._is_full:
            share = min(sides, key=times.__getitem__)
            if self._add_best(sides[share]):
                times[share] = self._charged(times[share], self._entries[-1])
            else:
                overflows = overflows or self._is_full
                self._is_full = False
                del sides[share]
        self._is_full = self._is_full or overflows

    def _add_best(self, sides: "_Sides") -> bool:
        """Add the neighbour that saves most. Return False if none does; the batch is full if one did not fit."""
        best, best_saving = None, 0.0
        for side in sides.both:
            candidate = side.peek()
            if candidate is None:
                continue
            saving = self._saving(candidate)
            if saving is None:
                self._is_full = True
            elif saving > best_saving:
                best, best_saving = side, saving
        if best is None:
            return False
        entry = best.take()
        self._entries.append(entry)
        self._longest = max(self._longest, entry.length)
        self._rows, self._tokens = self._rows + entry.rows, self._tokens + entry.rows * entry.length
        self._seconds = self._cost.seconds(self._rows, self._length)
        self._is_full = self._rows >= self._max_rows
        return True

    def _saving(self, candidate: QueueEntry) -> float | None:
        """Return the seconds that are saved if the candidate joins; None if it does not fit."""
        cost, limits = self._cost, self._limits
        joint_rows, joint_tokens = self._rows + candidate.rows, self._tokens + candidate.rows * candidate.length
        joint_length = limits.length_of(max(self._longest, candidate.length), joint_rows, joint_tokens)
        if joint_rows > self._max_rows or (limits.max_tokens and joint_rows * joint_length > limits.max_tokens):
            return None
        shape = (candidate.rows, candidate.length)
        if shape != self._last_shape:
            # Later it would hardly run alone, so it costs a share of a batch of equal entries. A row that fills the
            # caches by itself costs less alone.
            share_s = cost.seconds(candidate.rows * self._later_entries, candidate.length) / self._later_entries
            self._last_shape, self._last_later_s = shape, min(share_s, cost.seconds(*shape))
        return self._seconds + self._last_later_s - cost.seconds(joint_rows, joint_length)

    def _charged(self, time: tuple[float, int], entry: QueueEntry) -> tuple[float, int]:
        """Return the time of a tenant with this entry, which is charged for its rows of the present batch."""
        seconds = self._seconds * entry.rows / max(1, self._rows)
        return time[0] + seconds / entry.share.tenant.weight, time[1] + 1


class _Sides:
    """The neighbours of an entry in the queue of one tenant: the shorter and the longer ones."""

    def __init__(self, queue: RequestQueue, head: QueueEntry) -> None:
        self.both = (_Peekable(queue.shorter(head)), _Peekable(queue.longer(head)))


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
