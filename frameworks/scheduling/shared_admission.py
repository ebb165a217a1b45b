"""Admit requests in a server of several processes: the bounds of RequestLimit apply to their sum."""

import time
from collections.abc import Callable
from ctypes import Structure, c_double, c_int64
from math import inf
from typing import Self

from frameworks.scheduling.admission import RequestLimit
from frameworks.scheduling.byte_limit import ByteLimit
from frameworks.scheduling.drain_rate import sane_wait_s
from memory.shared_counters import CounterRow

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

    def __new__(
        cls,
        row: CounterRow,
        owner: str,
        max_queue_size: int | None,
        max_concurrent_requests: int | None,
        clock: Callable[[], float] = time.monotonic,
        byte_limit: ByteLimit | None = None,
    ) -> Self:
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
