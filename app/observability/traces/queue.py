"""Export ended requests in a thread: a slow or absent collector delays no request."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from app.observability.traces.traces import EndedRequest

log = structlog.get_logger(__name__)

_LOG_INTERVAL_S = 60.0


class Exporter(Protocol):
    """Sends requests to a collector."""

    def export(self, requests: Sequence[EndedRequest]) -> str:
        """Return why they were not sent; "" if they were. Blocks and never raises."""
        ...

    def interrupt(self) -> None:
        """End an `export` in progress soon. Later ones fail."""
        ...


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """`max_requests`: more are dropped. A batch is exported when it is full, or after `delay_s`."""

    max_requests: int = 2048
    max_batch: int = 512
    delay_s: float = 5.0


class TraceQueue:
    """A bounded queue of ended requests, and the thread that exports them. The event loop calls all methods."""

    def __init__(self, exporter: Exporter, bounds: QueueBounds, clock: Callable[[], float] = time.monotonic) -> None:
        self._overflowed = self._failed = 0
        self._exporter = exporter
        self._bounds = bounds
        self._clock = clock
        self._requests: deque[EndedRequest] = deque()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_closing = False
        self._unlogged = 0
        self._logged_s: float | None = None

    @property
    def dropped(self) -> int:
        """Number of requests whose spans are lost: the queue was full, or the collector did not take them."""
        # Two counts, as two threads add to them.
        return self._overflowed + self._failed

    def add(self, request: EndedRequest) -> None:
        """Queue a request; drop it if the queue is full."""
        queued = len(self._requests)
        if queued >= self._bounds.max_requests:
            self._overflowed += 1
            return
        self._requests.append(request)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="traces", daemon=True)
            self._thread.start()
        elif queued + 1 == self._bounds.max_batch:
            self._wake.set()

    def close(self, timeout_s: float) -> None:
        """Export what is queued and end the thread, within `timeout_s`; drop the rest."""
        self._is_closing = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout_s)
        self._exporter.interrupt()

    def _run(self) -> None:
        is_last = False
        while not is_last:
            self._wake.wait(self._bounds.delay_s)
            self._wake.clear()
            is_last = self._is_closing
            while self._requests:
                self._export_batch()
                # The rest of a batch waits for others.
                if len(self._requests) < self._bounds.max_batch and not self._is_closing:
                    break

    def _export_batch(self) -> None:
        batch = [self._requests.popleft() for _ in range(min(len(self._requests), self._bounds.max_batch))]
        failure = self._exporter.export(batch)
        if not failure:
            return
        self._note_lost(len(batch), failure)
        if self._is_closing:
            # The next batch would fail as well.
            self._note_lost(len(self._requests), failure)
            self._requests.clear()

    def _note_lost(self, count: int, failure: str) -> None:
        """Count lost requests, and log them at most once a minute."""
        self._failed += count
        self._unlogged += count
        now_s = self._clock()
        if self._logged_s is not None and now_s - self._logged_s < _LOG_INTERVAL_S:
            return
        self._logged_s = now_s
        log.warning("traces not exported", requests=self._unlogged, reason=failure)
        self._unlogged = 0
