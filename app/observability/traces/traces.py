"""The trace of a request: its context by W3C Trace Context, and its export in a thread when it has ended."""

import random
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import structlog

from frameworks.core.timings import Timings

log = structlog.get_logger(__name__)

MAX_TRACESTATE_BYTES = 512
"""A longer `tracestate` is dropped. The specification asks for no more."""

_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)
_UNKNOWN_VERSION = b"ff"
_FIRST_VERSION = b"00"
_SAMPLED = 1
_LOG_INTERVAL_S = 60.0


class RemoteParent(NamedTuple):
    """The span of a client. `state`: its `tracestate`, not validated, at most MAX_TRACESTATE_BYTES."""

    trace_id: int
    span_id: int
    flags: int
    state: bytes = b""

    @property
    def is_sampled(self) -> bool:
        return bool(self.flags & _SAMPLED)


class KeyCheck(NamedTuple):
    """A check of a key that another thread has made. `begun_s`: time.perf_counter."""

    begun_s: float
    seconds: float


class RequestTrace:
    """The context of one request. `begun_s`: when it was made, after authentication (time.perf_counter).

    `checked`: how its key was checked before it was begun, over gRPC.
    """

    __slots__ = ("begun_s", "checked", "is_sampled", "parent", "span_id", "trace_id")

    def __init__(self, trace_id: int, parent: RemoteParent | None, is_sampled: bool) -> None:
        self.trace_id = trace_id
        # Unique, not secret. Zero is invalid.
        self.span_id = random.getrandbits(64) or 1
        self.parent = parent
        self.is_sampled = is_sampled
        self.begun_s = time.perf_counter()
        self.checked: KeyCheck | None = None

    @property
    def span_ref(self) -> bytes:
        """The ids of the trace and of its span, as SpanRef."""
        return self.trace_id.to_bytes(16) + self.span_id.to_bytes(8)

    @property
    def hex_id(self) -> str:
        """The id of the trace, as in `traceparent`."""
        return f"{self.trace_id:032x}"


@dataclass(frozen=True, slots=True)
class EndedRequest:
    """A sampled request that has ended. `ended_ns`: Unix time. `is_authenticated`: it had a key."""

    trace: RequestTrace
    request_id: str
    method: str
    path: str
    model: str
    version: str
    tenant: str
    status: int
    code: str
    timings: Timings
    started_s: float
    total_s: float
    ended_ns: int
    is_authenticated: bool


IsSampled = Callable[[int, RemoteParent | None], bool]
"""Decides on a trace by its id and the parent."""


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
    """A bounded queue of ended requests, and the thread that exports them: a slow collector delays no request.

    The event loop calls all methods.
    """

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


class Tracer:
    """Begins the trace of each request, and hands sampled requests on when they have ended."""

    def __init__(self, is_sampled: IsSampled, ended: TraceQueue) -> None:
        self._is_sampled = is_sampled
        self.ended = ended

    def begin(self, headers: Iterable[tuple[bytes, bytes]]) -> RequestTrace:
        """Return the trace of a request. A malformed `traceparent` is ignored."""
        parent = read_parent(headers)
        trace_id = parent.trace_id if parent is not None else random.getrandbits(128) or 1
        return RequestTrace(trace_id, parent, self._is_sampled(trace_id, parent))


def read_parent(headers: Iterable[tuple[bytes, bytes]]) -> RemoteParent | None:
    """Return the client's span; None without a valid `traceparent`, or with several."""
    given: bytes | None = None
    state = b""
    for name, value in headers:
        if name == b"traceparent":
            if given is not None:
                return None
            given = value
        elif name == b"tracestate" and len(state) <= MAX_TRACESTATE_BYTES:
            state = state + b"," + value if state else value
    if given is None:
        return None
    matched = _TRACEPARENT.fullmatch(given)
    if matched is None:
        return None
    version, trace_id, span_id, flags, rest = matched.groups()
    if version == _UNKNOWN_VERSION or (version == _FIRST_VERSION and rest is not None):
        return None
    parent = RemoteParent(int(trace_id, 16), int(span_id, 16), int(flags, 16), state)
    if not parent.trace_id or not parent.span_id:
        return None
    return parent if len(state) <= MAX_TRACESTATE_BYTES else parent._replace(state=b"")
