"""The clocks and bounds of HTTP connections: how many there are, and how long each may wait for its client."""

import asyncio
import fcntl
import socket
import sys
import termios
from collections import Counter
from dataclasses import dataclass
from typing import Any

import orjson
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from app.auth.tls import ServerTls
from app.observability.metrics import request_id, server_timing
from frameworks.core.timings import Timings
from frameworks.scheduling.byte_limit import ByteHold, ByteLimit
from frameworks.scheduling.shared_limits import OPEN_CELL
from memory.shared_counters import CounterRow

BODY_PART_BYTES = 64 * 1024
"""A body has `body_timeout_s` for each part of this size."""

_UNREAD_S = 0.02
"""Time to read all sockets. If the server itself stood still, the bytes that the clock waits for may be in them."""

STALL_S = 30.0
"""Seconds between two checks of a reader that is behind."""
LEAST_READ_BYTES = 16 * 1024
"""A reader that is behind and takes no more than this in STALL_S loses its connection: unread bytes take memory."""
_SO_NWRITE = 0x1024
"""Socket option of macOS: bytes that are not sent yet (sys/socket.h)."""

MAX_CONNECTIONS, HEADER, BODY, IDLE, READER = "max_connections", "header_timeout", "body_timeout", "idle", "slow_reader"
TLS_HANDSHAKE = "tls_handshake"
CLOSE_REASONS = (MAX_CONNECTIONS, HEADER, BODY, IDLE, READER, TLS_HANDSHAKE)


CERTIFICATE_NAMES = "certificate_names"
"""Name under which a transport with TLS holds the names of its client's certificate."""


@dataclass(frozen=True, slots=True)
class ConnectionBounds:
    """The bounds of `[server]` that a connection has to keep."""

    header_timeout_s: float = 10.0
    body_timeout_s: float = 30.0
    max_connections: int = 20_000


class Connections:
    """The HTTP connections of the server: their bounds, how many are open, and why others were closed.

    Owned by the event loop.
    """

    def __init__(
        self,
        bounds: ConnectionBounds,
        byte_limit: ByteLimit | None = None,
        tls: ServerTls | None = None,
        row: CounterRow | None = None,
        most_here: int | None = None,
    ) -> None:
        """`byte_limit`: of all bodies in progress; None: unlimited. `tls`: None for plain HTTP. `row`: counts the
        connections of all processes; None: this is the only one. `most_here`: the bound of this process, besides that
        of all.
        """
        self.bounds = bounds
        self.byte_limit = byte_limit or ByteLimit(None)
        self.tls = tls
        self._row = row
        self._all_open = None if row is None else row.of_all(OPEN_CELL)
        self._most_here = bounds.max_connections if most_here is None else most_here
        self.own_open = 0
        self.own_streams = 0
        """Requests over HTTP/2 that are in progress in this process."""
        self.open_call: Any = None
        """Opens a call of gRPC on a stream, an OpenStream of http2/connection.py; None while gRPC is off."""
        self.closed = Counter(dict.fromkeys(CLOSE_REASONS, 0))
        """By reason; only those that the server closed."""

    @property
    def most(self) -> int:
        """The connections that all processes accept together."""
        # One of the rows is that of the supervisor, which accepts none.
        processes = 1 if self._all_open is None else len(self._all_open) - 1
        return min(self.bounds.max_connections, processes * self._most_here)

    @property
    def open(self) -> int:
        """The open connections, of all processes that share the count."""
        return self.own_open if self._all_open is None else sum(self._all_open)

    def accept(self) -> bool:
        """Count a new connection. Returns False if it is beyond the bounds; it counts until it is closed."""
        self._count(1)
        return self.own_open <= self._most_here and self.open <= self.bounds.max_connections

    @property
    def is_full_of_streams(self) -> bool:
        """Whether as many requests over HTTP/2 are in progress as there may be connections, each with one request."""
        return self.own_streams >= min(self._most_here, self.bounds.max_connections)

    def forget(self) -> None:
        """Count a closed connection out, whether it was accepted or not."""
        self._count(-1)

    def _count(self, more: int) -> None:
        self.own_open += more
        if self._row is not None:
            self._row.set(OPEN_CELL, self.own_open)


def refusal(code: str, message: str) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Return the headers and the body of what no route answers, in the contract's form."""
    given_id = request_id([])
    body = orjson.dumps({"error": {"code": code, "message": message, "request_id": given_id}})
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"x-request-id", given_id.encode()),
        (b"server-timing", server_timing(Timings()).encode()),
    ]
    return headers, body


class HeldFlow(FlowControl):
    """uvicorn's flow control, which resumes reading whenever a request asks for its body."""

    is_held = False
    """Whether reading stays paused, because bytes that were read are not parsed yet."""


class ClockedCycle(RequestResponseCycle):
    """A request whose body has to arrive in time."""

    received_bytes: int
    """Bytes of the body that have arrived."""
    collected: list[bytes] | None
    """Parts of the body that are not left to ASGI's messages."""
    is_late = False
    body_timeout_s = 0.0
    unread_limit: ByteLimit | None = None
    """Counts the bytes of the response that its reader has not taken; None: the server's limit."""

    def count_unread(self, limit: ByteLimit) -> None:
        """Count the bytes of the response that its reader has not taken in this limit, of the request's tenant."""
        self.unread_limit = limit

    def bytes_left(self) -> int:
        """Return how many bytes of the body are missing by its content-length, which the parser has checked."""
        if not self.more_body:
            return 0
        length = next((value for name, value in self.scope["headers"] if name == b"content-length"), b"0")
        return int(length) - self.received_bytes

    def time_out(self, body_timeout_s: float) -> None:
        """Let `receive` raise RequestTimeout: the body is too slow. The connection is closed after the response."""
        self.body_timeout_s = body_timeout_s
        self.is_late = True
        self.keep_alive = False
        self.message_event.set()


class ClockedProtocol(HttpToolsProtocol):
    """A connection that is closed when its client is too slow.

    One timer serves all clocks. It is not moved when a request arrives or completes, but looks at the connection when
    it fires: a timer for each request costs 3 µs. Only the first part of a head or body that arrives in several parts
    lets it fire earlier. The clock is the event loop's, which no change of the system's time affects.
    """

    limits: Connections
    cycle: ClockedCycle
    flow: HeldFlow
    _timer: asyncio.TimerHandle | None = None
    _timer_due_s = 0.0
    # When the clock that runs was started: by the connection, a response, or the first part of a head or body.
    _since_s = 0.0
    # The start of the clock that was found to be up, and gets another look.
    _up_since_s = -1.0
    # The scope whose head, or the cycle whose body, arrives in parts and has started the clock.
    _timed: object = None
    # Bytes of the body that had arrived when its clock was started.
    _counted_bytes = 0
    # Bytes that the reader had not taken at the last check, while the buffer is full, or at the end of the connection:
    # those of the transport and those of the kernel.
    _unread_bytes = 0
    _stall_timer: asyncio.TimerHandle | None = None
    # The count of those bytes.
    _unread_hold: ByteHold | None = None

    def refuse_connection(self) -> None:
        """Refuse a connection beyond `max_connections`."""
        self.limits.closed[MAX_CONNECTIONS] += 1
        self.refuse(
            503,
            "overloaded",
            f"connections: expected at most {self.limits.bounds.max_connections} open ones (server.max_connections), "
            "got one more; try again later",
            "retry-after: 1\r\n",
        )

    def refuse(self, status: int, code: str, message: str, header_lines: str = "") -> None:
        """Answer in the contract's form what no route answers, and close the connection.

        Nothing is sent into the response to an earlier request.
        """
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete and (cycle.response_started or self.pipeline):
            self.transport.close()
            return
        headers, body = refusal(code, message)
        lines = b"".join(b"%b: %b\r\n" % header for header in headers)
        head = b"%bconnection: close\r\n%b\r\n" % (lines, header_lines.encode("ascii"))
        self.transport.write(STATUS_LINE[status] + head + body)
        self.transport.close()

    def watch_parts(self) -> None:
        """Let the clock of the head or body that arrives in several parts run. Called after each part."""
        clock = self._running_clock()
        if clock is None or self.transport.is_closing():
            # The end of the response in progress calls this again.
            return
        received_bytes = self.cycle.received_bytes if clock is BODY else 0
        part = self.cycle if clock is BODY else self.scope
        if part is not self._timed or received_bytes - self._counted_bytes >= BODY_PART_BYTES:
            self._timed = part
            self._counted_bytes = received_bytes
            if self.cycle is not None:  # the first head has the time since the connection was made
                self._since_s = self.loop.time()
        self.start_timer(self._since_s + self._seconds_of(clock))

    def _running_clock(self) -> str | None:
        """Return which clock runs; None while the connection waits for the server."""
        cycle = self.cycle
        if cycle is None or cycle.scope is not self.scope:
            return HEADER if cycle is None or cycle.response_complete else None
        if cycle.more_body:
            # A body behind other requests is read when its own request is processed.
            return None if self.pipeline or cycle.is_late else BODY
        return IDLE if cycle.response_complete else None

    def _seconds_of(self, clock: str) -> float:
        if clock is IDLE:
            return self.timeout_keep_alive
        return self.limits.bounds.header_timeout_s if clock is HEADER else self.limits.bounds.body_timeout_s

    def start_timer(self, due_s: float) -> None:
        """Let the timer fire at `due_s`, or earlier: then it is started again."""
        if self._timer is not None:
            if self._timer_due_s <= due_s:
                return
            self._timer.cancel()
        self._timer_due_s = due_s
        self._timer = self.loop.call_at(due_s, self.check_clock)

    def check_clock(self) -> None:
        """Close the connection if the clock that runs is up, with an answer where one can still be given."""
        self._timer = None
        clock = self._running_clock()
        if clock is None or self.transport.is_closing():
            # The response in progress starts the timer again.
            return
        now_s = self.loop.time()
        if clock is BODY and self.flow.read_paused and not self.cycle.response_complete:
            # The client waits for the server.
            self._since_s = now_s
        due_s = self._since_s + self._seconds_of(clock)
        if due_s > now_s:
            self.start_timer(due_s)
            return
        if self._up_since_s != self._since_s:
            self._up_since_s = self._since_s
            self.start_timer(now_s + _UNREAD_S)
            return
        self.limits.closed[clock] += 1
        if clock is HEADER and self.scope is not None:
            seconds = self.limits.bounds.header_timeout_s
            self.refuse(
                408,
                "request_timeout",
                f"headers: expected the whole head within {seconds:g} s (server.header_timeout_s), got a part of it; "
                "send it faster",
            )
        elif clock is BODY and not self.cycle.response_complete:
            self.cycle.time_out(self.limits.bounds.body_timeout_s)
        else:
            self.transport.close()
            self.watch_reader()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.watch_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.forget_reader()

    def watch_reader(self) -> None:
        """From now on the reader has to take bytes, or the connection is closed with what is unread."""
        self.forget_reader()
        buffered_bytes = self.transport.get_write_buffer_size()
        if buffered_bytes:
            own = None if self.cycle is None else self.cycle.unread_limit
            self._unread_hold = (own or self.limits.byte_limit).hold()
            self._unread_hold.add(buffered_bytes)
            self._unread_bytes = buffered_bytes + _kernel_bytes(self.transport)
            self._stall_timer = self.loop.call_later(STALL_S, self._abort_if_stalled)

    def forget_reader(self) -> None:
        """End `watch_reader`."""
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        if self._unread_hold is not None:
            self._unread_hold.release()
            self._unread_hold = None

    def _abort_if_stalled(self) -> None:
        unread_bytes = self.transport.get_write_buffer_size() + _kernel_bytes(self.transport)
        if unread_bytes + LEAST_READ_BYTES > self._unread_bytes:
            self.limits.closed[READER] += 1
            self.transport.abort()
        else:
            self.watch_reader()


def _kernel_bytes(transport: asyncio.Transport) -> int:
    """Return the bytes in the send buffer of a socket that its peer has not acknowledged.

    The kernel takes more from the transport only when a third of that buffer is free: a reader that takes a
    megabyte in a minute may leave the transport with as much to send as before.
    """
    sock = transport.get_extra_info("socket")
    try:
        if sys.platform == "darwin":
            return int(sock.getsockopt(socket.SOL_SOCKET, _SO_NWRITE))
        return int.from_bytes(fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    except (OSError, ValueError):  # the connection has ended
        return 0
