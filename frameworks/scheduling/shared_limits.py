"""Bound the requests and bytes of a server of several processes: the counts are in shared memory, and are summed."""

import time
from collections.abc import Callable, Iterable
from ctypes import Structure, c_double, c_int64
from dataclasses import dataclass
from math import inf
from typing import Self

from frameworks.core.errors import Overloaded
from frameworks.scheduling.admission import RequestLimit
from frameworks.scheduling.byte_limit import ByteLimit
from frameworks.scheduling.drain_rate import sane_wait_s
from memory.shared_counters import CELL_BYTES, CounterRow, SharedCounters
from memory.shared_pairs import SharedPair, SharedPairs

_INFLIGHT, _WAITING, _RESPONSES, _DRAINS_SINCE = range(4)


class SharedRequestLimit(RequestLimit, Structure):
    """A RequestLimit whose own counts are cells of a CounterRow: permits write them in place.

    A request is counted before it is checked, so the bounds are never exceeded; requests that arrive at two processes
    in the same microsecond may both be refused the last slot. All cells are zero while no request is in flight.
    """

    # The first cells of the process in its row. A field costs 20 ns more than an attribute; a property would cost 60.
    _fields_ = (
        ("own_inflight", c_int64),
        ("own_waiting", c_int64),
        # The responses that the drain rate is computed from, and the time of the first, without the idle time since.
        ("_responses", c_int64),
        ("_drains_since_s", c_double),
    )

    def __new__(cls, row: CounterRow, *_: object, **__: object) -> Self:
        return cls.from_buffer(row.memory, row.offset)

    def __init__(
        self,
        row: CounterRow,
        owner: str,
        max_queue_size: int | None,
        max_concurrent_requests: int | None,
        clock: Callable[[], float] = time.monotonic,
        byte_limit: ByteLimit | None = None,
    ) -> None:
        """`row`: written by no other limit with a bound of requests. `clock`: the same one in all processes."""
        RequestLimit.__init__(self, owner, max_queue_size, max_concurrent_requests, clock, byte_limit)
        # Every request to a limit with a bound asks for the counts of all processes.
        self.own_queue_bound = inf if max_queue_size is None else -1
        self.own_concurrency_bound = inf if max_concurrent_requests is None else -1
        self._all_inflight = row.of_all(_INFLIGHT)
        self._all_waiting = row.of_all(_WAITING)
        self._all_responses = row.of_all(_RESPONSES)
        self._all_drain_since_s = row.seconds_of_all(_DRAINS_SINCE)

    @property
    def inflight(self) -> int:
        return sum(self._all_inflight)

    @property
    def waiting(self) -> int:
        return sum(self._all_waiting)

    def enter(self, slots: int = 0) -> None:
        """As RequestLimit's, which is called where a bound may be reached."""
        if self.own_inflight:
            self.own_inflight += 1
        else:
            self.acquire()
        self.own_waiting += slots
        if (self.max_queue_size is not None and sum(self._all_waiting) >= self.queue_bound) or (
            self.max_concurrent_requests is not None and sum(self._all_inflight) > self.concurrency_bound
        ):
            self._check_entered(slots)

    def add_slots(self, slots: int, own: int = 0) -> None:
        self.own_waiting += slots
        if sum(self._all_waiting) > self.queue_bound:
            self._check_added(slots, own)

    def acquire(self) -> None:
        super().acquire()
        if self.own_inflight == 1:
            self._publish_rate()

    def release(self, completed: bool) -> None:
        """As RequestLimit's, inline: this code runs twice for every request."""
        self.own_inflight = left = self.own_inflight - 1
        if completed or not left:
            now_s = self._clock()
            completed_at_s, shift_s = self._completed_at_s, self._busy_since_s - self._busy_s
            if completed:
                completed_at_s.append(now_s - shift_s)
            if left:
                self._responses = len(completed_at_s) - 1
                self._drains_since_s = shift_s + completed_at_s[0]
            else:
                self._busy_s = now_s - shift_s
                self._responses, self._drains_since_s = 0, 0.0

    def seconds_to_drain(self, requests: int) -> float:
        """Return the seconds until `requests` complete at the rate of all processes that have requests in flight."""
        now_s = self._clock()
        per_second = sum(
            responses / max(1e-6, now_s - since_s)
            for responses, since_s in zip(self._all_responses, self._all_drain_since_s, strict=True)
        )
        return sane_wait_s(requests / per_second) if per_second else super().seconds_to_drain(requests)

    def _publish_rate(self) -> None:
        completed_at_s = self._completed_at_s
        self._responses = len(completed_at_s) - 1
        self._drains_since_s = self._busy_since_s - self._busy_s + completed_at_s[0]


def request_limit(
    row: CounterRow | None,
    owner: str,
    max_queue_size: int | None,
    max_concurrent_requests: int | None,
    clock: Callable[[], float] = time.monotonic,
    byte_limit: ByteLimit | None = None,
) -> RequestLimit:
    """Return a limit over all processes that count in the row, or of this process if it is None."""
    if row is None:
        return RequestLimit(owner, max_queue_size, max_concurrent_requests, clock, byte_limit)
    return SharedRequestLimit(row, owner, max_queue_size, max_concurrent_requests, clock, byte_limit)


HELD_BYTES_CELL = 4
"""Behind those of SharedRequestLimit, which may count in the same row."""


class SharedByteLimit(ByteLimit, Structure):
    """A ByteLimit whose own bytes are a cell of a CounterRow. Any thread may use it.

    The only hold of all processes always grows. Bytes are counted before they are checked, so the bound is never
    exceeded; two holds that grow in the same microsecond may both be refused.
    """

    _fields_ = (("own_bytes", c_int64),)

    def __new__(cls, row: CounterRow, *_: object, **__: object) -> Self:
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


OPEN_CELL = 5
"""Open connections, in the row of the server: behind the cells of its requests and bytes."""

_MAX_MODELS = 4096


@dataclass(frozen=True, slots=True)
class TenantShare:
    """The shared counts of a tenant: of its requests, sequences and bytes; and its two token buckets."""

    row: CounterRow
    requests: SharedPair
    tokens: SharedPair


class SharedLimits:
    """Memory for the counts of all limits, which hold over N workers and their supervisor.

    Create it in the supervisor before the fork. A worker calls `use` with its number before it creates limits. The
    supervisor calls `release` after a worker has ended; it alone allocates and frees the rows of models.
    """

    def __init__(self, workers: int, tenants: Iterable[str], max_models: int = _MAX_MODELS) -> None:
        """`tenants`: the names of those with limits. `max_models`: that are registered at once. Raises OSError."""
        names = list(tenants)
        self._counters = SharedCounters(workers + 1, 1 + len(names) + max_models, workers)
        self._pairs = SharedPairs(2 * len(names))
        self._server = self._counters.allocate_row()
        self._tenants = {name: (self._counters.allocate_row(), index) for index, name in enumerate(names)}

    def use(self, worker: int) -> None:
        """Count as this worker, from 0."""
        self._counters.use(worker)

    def release(self, worker: int) -> None:
        """Drop all that a worker counted. Tokens that it used stay charged."""
        self._counters.release(worker)

    def allocate_row(self) -> int:
        """Return the number of the row of a new model. Raises NoFreeRow."""
        return self._counters.allocate_row()

    def free_row(self, number: int) -> None:
        """Take back the row of a model that was deleted; requests to it may still be in progress."""
        self._counters.free_row(number)

    def server(self) -> CounterRow:
        """Return the row of all requests, bodies and connections."""
        return self._counters.row(self._server)

    def model(self, number: int) -> CounterRow:
        """Return the row of a model."""
        return self._counters.row(number)

    def tenant(self, name: str) -> TenantShare:
        """Return the counts of a tenant."""
        row, index = self._tenants[name]
        return TenantShare(self._counters.row(row), self._pairs.pair(2 * index), self._pairs.pair(2 * index + 1))
