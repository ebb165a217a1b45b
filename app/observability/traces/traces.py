"""The trace of a request: its context by W3C Trace Context, and what spans need to know when the request has ended."""

import random
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from frameworks.core.timings import Timings

MAX_TRACESTATE_BYTES = 512
"""A longer `tracestate` is dropped. The specification asks for no more."""

_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)
_UNKNOWN_VERSION = b"ff"
_FIRST_VERSION = b"00"
_SAMPLED = 1


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


class Ended(Protocol):
    """Takes sampled requests when they have ended. The event loop calls it."""

    @property
    def dropped(self) -> int:
        """Number of requests whose spans are lost."""
        ...

    def add(self, request: EndedRequest) -> None:
        """Take a request. Does not block."""
        ...

    def close(self, timeout_s: float) -> None:
        """Export what is left, within `timeout_s`."""
        ...


class Tracer:
    """Begins the trace of each request, and hands sampled requests on when they have ended."""

    def __init__(self, is_sampled: IsSampled, ended: Ended) -> None:
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
