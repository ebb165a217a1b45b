"""uvicorn's HTTP/1.1 protocol with bounds on the head and on unread responses, error responses in the contract's
form, and a fast path for whole bodies and responses.
"""

import asyncio
import urllib.parse

import httptools
import orjson
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from app.observability.metrics import request_id, server_timing
from frameworks.types import Timings

MAX_HEAD_BYTES = 64 * 1024
"""Request line and headers together, or trailers; the parser itself has no bound."""

STALL_S = 30.0
"""Seconds between two checks of a reader that is behind."""
LEAST_READ_BYTES = 16 * 1024
"""A reader that is behind and takes no more than this in STALL_S loses its connection: unread bytes take memory."""

FAST_PATH = "roundhouse.fast_path"
"""The ASGI extension of this protocol, a FastPath: take a body that has arrived, and send a whole response, at once.
ASGI messages, events and checks of our own headers cost 12 µs more.
"""
# A body below this is copied behind its head: one buffer, one system call.
_JOINED_BYTES = 16 * 1024


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection. Named to uvicorn.Config as its `http` class."""

    cycle: "Cycle"
    _head_bytes = 0
    # Bytes that arrived since the parser last reported something: a header without end adds to nothing else.
    _held_bytes = 0
    _is_upgrade = False
    _idle_since_s = 0.0
    _idle_timer: asyncio.TimerHandle | None = None
    # Bytes that the reader had not taken at the last check, while the buffer is full, or at the end of the connection.
    _unread_bytes = 0
    _stall_timer: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        self._held_bytes += len(data)
        while True:
            try:
                self.parser.feed_data(data)
                break
            except httptools.HttpParserUpgrade as error:
                if self.parser.get_method() == b"CONNECT":
                    self.send_400_response("method: expected one of HTTP, got CONNECT; this server is no proxy")
                    return
                # No upgrade is offered, so the request counts without it. The parser left its body.
                head = self._head_without_upgrade()
                self.parser = _new_parser(self)
                data = head + data[error.args[0] :]
            except httptools.HttpParserError:
                self.logger.warning("invalid HTTP request")
                self.send_400_response("the request is not valid HTTP/1.1")
                return
        if self._held_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._head_bytes = self._held_bytes
            self.send_400_response("")

    def on_headers_complete(self) -> None:
        """As uvicorn's, with a Cycle. uvicorn's concurrency limit is off: permits bound requests."""
        if self.parser.should_upgrade():
            # The parser ends the message here; `data_received` feeds this head again, without the upgrade.
            self._is_upgrade = True
            return
        if self._held_bytes > MAX_HEAD_BYTES:
            # The first part of the body may be among them.
            self._head_bytes = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
            if self._head_bytes > MAX_HEAD_BYTES:
                # Raised in a callback of the parser, this ends the parsing; send_400_response closes the connection.
                raise ValueError("the head of the request is too long")
        self._held_bytes = 0
        parser, scope = self.parser, self.scope
        http_version = parser.get_http_version()
        scope["method"] = parser.get_method().decode("ascii")
        if http_version != "1.1":
            scope["http_version"] = http_version
        url = httptools.parse_url(self.url)
        path = url.path.decode("ascii")
        if "%" in path:
            path = urllib.parse.unquote(path)
        scope["path"] = self.root_path + path
        scope["raw_path"] = self.root_path.encode("ascii") + url.path
        scope["query_string"] = url.query or b""
        previous = self.cycle
        cycle = self.cycle = Cycle(self, http_version != "1.0" and parser.should_keep_alive())
        scope["extensions"] = {FAST_PATH: cycle}  # type: ignore[dict-item]
        if previous is None or previous.response_complete:
            self._start_asgi_task(cycle, self.app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, self.app))
        # The parser reports trailers as it does headers; they end in this list.
        self.headers = []

    def on_response_complete(self) -> None:
        """As uvicorn's, with one timer for all pauses of a connection: a timer for each response costs 3 µs."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            self._watch_reader()
            return
        if self.flow.read_paused:
            self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
            return
        self._idle_since_s = self.loop.time()
        if self._idle_timer is None:
            self._idle_timer = self.loop.call_later(self.timeout_keep_alive, self._close_if_idle)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        self._forget_reader()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._forget_reader()

    def on_body(self, body: bytes) -> None:
        self._held_bytes = 0
        cycle = self.cycle
        if cycle.response_complete:
            return
        if cycle.collected is not None:
            cycle.collect(body)
            return
        cycle.body += body
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        cycle.has_news = True
        if cycle.event is not None:
            cycle.event.set()

    def on_message_complete(self) -> None:
        if self._is_upgrade:
            self._is_upgrade = False
            return
        self._held_bytes = 0
        cycle = self.cycle
        if cycle.response_complete:
            return
        cycle.more_body = False
        cycle.has_news = True
        if cycle.event is not None:
            cycle.event.set()

    def send_400_response(self, msg: str) -> None:
        """Answer what the parser refused, in the contract's form, and close the connection."""
        if self._head_bytes > MAX_HEAD_BYTES:
            msg = f"headers: more than {MAX_HEAD_BYTES} bytes of request line and headers; send fewer"
        given_id = request_id([])
        body = orjson.dumps({"error": {"code": "invalid_input", "message": msg, "request_id": given_id}})
        head = (
            "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n"
            f"content-length: {len(body)}\r\nx-request-id: {given_id}\r\n"
            f"server-timing: {server_timing(Timings())}\r\n\r\n"
        )
        self.transport.write(head.encode("ascii") + body)
        self.transport.close()

    def _head_without_upgrade(self) -> bytes:
        version = self.parser.get_http_version().encode("ascii")
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
        for name, value in self.headers:
            if name == b"connection":
                kept = [token for token in value.split(b",") if token.strip().lower() != b"upgrade"]
                lines.append(b"connection:" + b",".join(kept))
            elif name != b"upgrade":
                lines.append(b"%b:%b" % (name, value))
        return b"\r\n".join([*lines, b"", b""])

    def _close_if_idle(self) -> None:
        self._idle_timer = None
        if self.transport.is_closing() or not self.cycle.response_complete or self._held_bytes:
            # A request is in progress, or the next head arrives; its response starts the timer again.
            return
        left_s = self._idle_since_s + self.timeout_keep_alive - self.loop.time()
        if left_s > 0.0:
            self._idle_timer = self.loop.call_later(left_s, self._close_if_idle)
        else:
            self.transport.close()
            self._watch_reader()

    def _watch_reader(self) -> None:
        """From now on the reader has to take bytes, or the connection is closed with what is unread."""
        self._forget_reader()
        self._unread_bytes = self.transport.get_write_buffer_size()
        if self._unread_bytes:
            self._stall_timer = self.loop.call_later(STALL_S, self._abort_if_stalled)

    def _forget_reader(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _abort_if_stalled(self) -> None:
        if self.transport.get_write_buffer_size() + LEAST_READ_BYTES > self._unread_bytes:
            self.transport.abort()
        else:
            self._watch_reader()


def _new_parser(protocol: BoundedHttpProtocol) -> httptools.HttpRequestParser:
    """As uvicorn's: a pipelined request behind a request with `connection: close` is not an error of the first."""
    parser = httptools.HttpRequestParser(protocol)
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    return parser


class Cycle(RequestResponseCycle):
    """One request and its response: uvicorn's cycle, and the FastPath of the request.

    The event that ASGI's `receive` waits for is made when it is first used: most requests take the fast path.
    """

    def __init__(self, protocol: BoundedHttpProtocol, keep_alive: bool) -> None:
        # All attributes of uvicorn's cycle; its own __init__ would take them as twelve arguments.
        self.scope = protocol.scope
        self.transport = protocol.transport
        self.flow = protocol.flow
        self.logger = protocol.logger
        self.access_logger = protocol.access_logger
        self.access_log = protocol.access_log
        self.default_headers = protocol.server_state.default_headers
        self.on_response = protocol.on_response_complete
        self.disconnected = False
        self.keep_alive = keep_alive
        self.waiting_for_100_continue = protocol.expect_100_continue
        self.body = bytearray()
        self.more_body = True
        self.response_started = False
        self.response_complete = False
        self.chunked_encoding = None
        self.expected_content_length = 0
        self.event: asyncio.Event | None = None
        self.has_news = False
        """Whether something arrived that `receive` has not returned yet. Used until `event` exists."""
        self.collected: list[bytes] | None = None
        """Parts of the body since `collect_body`; None: they are left to ASGI's messages."""
        self._most_bytes = 0

    @property
    def message_event(self) -> asyncio.Event:  # type: ignore[override]
        if self.event is None:
            self.event = asyncio.Event()
            if self.has_news:
                self.event.set()
        return self.event

    def take_body(self) -> bytes | None:
        """Return the whole body, if all of it has arrived; as RequestResponseCycle.receive."""
        if self.more_body or self.disconnected or self.response_complete or self.waiting_for_100_continue:
            return None
        body = bytes(self.body)
        self.body = bytearray()
        self.has_news = False
        if self.event is not None:
            self.event.clear()
        if self.flow.read_paused:
            self.flow.resume_reading()
        return body

    def collect_body(self, max_bytes: int) -> list[bytes]:
        """Add further parts of the body to the returned list, without pausing, up to `max_bytes` bytes.

        ASGI's `receive` then returns at the end of the body, after `max_bytes`, and when the client disconnects. A task
        that wakes for every 64 KiB takes longer than all that is done with them.
        """
        self._most_bytes = max_bytes
        self.collected = []
        return self.collected

    def collect(self, part: bytes) -> None:
        """Add a part of the body to the list of `collect_body`."""
        assert self.collected is not None
        self.collected.append(part)
        self._most_bytes -= len(part)
        if self._most_bytes < 0:
            self.flow.pause_reading()
            self.message_event.set()

    def respond(self, status: int, header_lines: bytes, body: bytes) -> bool:
        """Send a whole response, as RequestResponseCycle.send. False if it cannot be sent now."""
        if self.disconnected or self.response_started or self.flow.write_paused:
            return False
        self.response_started = self.response_complete = True
        head = [STATUS_LINE[status]]
        for name, value in self.default_headers:
            head += (name, b": ", value, b"\r\n")
        head.append(header_lines)
        head.append(b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n")
        if self.scope["method"] == "HEAD":
            body = b""
        if self.event is not None:
            self.event.set()
        if len(body) < _JOINED_BYTES:
            head.append(body)
            self.transport.write(b"".join(head))
        else:
            self.transport.write(b"".join(head))
            self.transport.write(body)
        if not self.keep_alive:
            self.transport.close()
        self.on_response()
        return True

    def abort(self) -> None:
        """Close the connection, with what its reader has not taken."""
        self.disconnected = True
        self.transport.abort()
