"""uvicorn's HTTP/1.1 protocol with bounds on what a client sends, and a fast path for whole bodies and responses."""

import asyncio
import urllib.parse
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from app.http.listener.body_receiver import BodyReceiver
from app.http.listener.clocks import BODY_PART_BYTES, CERTIFICATE_NAMES, HeldFlow
from app.http.listener.parsing import MAX_HEAD_BYTES, MAX_PIPELINED, SLICE_BYTES, HeldCycle, ParsingProtocol
from app.protocols.shared.errors import RequestTimeout
from frameworks.scheduling.byte_limit import UNCOUNTED_BYTES

if TYPE_CHECKING:
    from uvicorn._types import ASGIReceiveEvent

FAST_PATH = "roundhouse.fast_path"
"""The ASGI extension of this protocol, a Cycle: take a body that has arrived, and send a whole response, at once.
ASGI messages, events and checks of our own headers cost 12 µs more.

The application removes it from the scope: it refers to the scope, and only the garbage collector would free both.
"""
# A body below this is copied behind its head: one buffer, one system call.
_JOINED_BYTES = 16 * 1024


class BoundedHttpProtocol(ParsingProtocol):
    """One connection. Subclasses with `limits` are given to uvicorn.Config as its `http` class.

    All code that runs for every request is in this file, and the rest in those of its base classes.
    """

    cycle: "Cycle"
    # The head of the last request, where all of it arrived at once, and the bytes of the whole request; else 0.
    _head = b""
    _request_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = _Flow(transport)
        # Bytes that the reader has not taken are counted, from `pause_writing` to `resume_writing`.
        transport.set_write_buffer_limits(UNCOUNTED_BYTES, 0)
        limits = self.limits
        if not limits.accept():
            self.refuse_connection()
            return
        self._since_s = self.loop.time()
        self._timer_due_s = self._since_s + limits.bounds.header_timeout_s
        self._timer = self.loop.call_at(self._timer_due_s, self.check_clock)

    def connection_lost(self, exc: Exception | None) -> None:
        self.limits.forget()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._stall_timer is not None:
            self.forget_reader()
        if self._waiting_hold is not None:
            self._waiting_hold.release()
        self._timed = None
        self._unparsed = b""
        super().connection_lost(exc)
        cycle = self.cycle
        if cycle is not None and cycle.on_disconnect is not None and not cycle.response_complete:
            cycle.on_disconnect()

    def data_received(self, data: bytes) -> None:
        size = len(data)
        if size == self._request_bytes and data.startswith(self._head) and self._repeat(data):
            return
        self._request_bytes = 0
        previous = self.cycle
        if size > SLICE_BYTES or self._unparsed:
            self.feed_slices(data)
            if self.successor is not None:
                return
        else:
            is_between = not self._held_bytes and (previous is None or previous.scope is self.scope)
            self._held_bytes += size
            try:
                self.parser.feed_data(data)
            except (httptools.HttpParserUpgrade, httptools.HttpParserError) as error:
                self.feed_behind(error, data)
                if self.successor is not None:
                    return
            cycle = self.cycle
            if cycle is not previous and is_between and not cycle.more_body:
                self._head = data[: size - cycle.received_bytes]
                if self._head.find(b"\r\n\r\n") == size - cycle.received_bytes - 4:
                    self._request_bytes = size
        if self._held_bytes > MAX_HEAD_BYTES:
            self.refuse_head()
        cycle = self.cycle
        if cycle is None or cycle.more_body or cycle.scope is not self.scope:
            self.watch_parts()

    def _repeat(self, data: bytes) -> bool:
        """Start a request whose head is that of the one before, byte for byte: it is not parsed again.

        Most clients send one head for all requests of a connection. Parsing it takes a tenth of a small request.
        """
        before = self.cycle
        if before.repeat is None or not (before.response_complete and before.keep_alive) or self.transport.is_closing():
            return False
        cycle = self.cycle = Cycle(self, True)
        cycle.body += data[len(self._head) :]
        cycle.received_bytes = len(data) - len(self._head)
        cycle.more_body = False
        cycle.has_news = True
        cycle.repeat = before.repeat
        self._start(cycle, before.repeat(cycle))
        return True

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

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        """As uvicorn's. The request need not look for its task."""
        self._start(cycle, cycle.run_asgi(app))

    def _start(self, cycle: "Cycle", answering: Coroutine[Any, Any, None]) -> None:
        task = cycle.task = self.loop.create_task(answering)
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    def on_response_complete(self) -> None:
        """As uvicorn's, with one timer for all pauses of a connection."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            self.watch_reader()
            return
        if self.flow.read_paused:
            self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        if self._unparsed and len(self.pipeline) < MAX_PIPELINED:
            # The rest of the body of the request that was just started may be in it.
            self.feed_slices(b"")
            if not self.pipeline:
                self.flow.resume_reading()
        if self._waiting_hold is not None:
            self.count_waiting()
        cycle = self.cycle
        if cycle.body and cycle.response_complete:
            # It was not read; a connection that waits for its next request keeps no body.
            cycle.body = bytearray()
        if cycle.more_body or cycle.scope is not self.scope:
            self.watch_parts()
            return
        self._timed = None
        self._since_s = self.loop.time()
        due_s = self._since_s + self.timeout_keep_alive
        if self._timer is None or self._timer_due_s > due_s:
            self.start_timer(due_s)

    def on_body(self, body: bytes) -> None:
        self._held_bytes = 0
        cycle = self.cycle
        cycle.received_bytes += len(body)
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
        cycle.more_body = False
        if cycle.response_complete:
            return
        cycle.has_news = True
        if cycle.event is not None:
            cycle.event.set()


class _Flow(HeldFlow):
    def resume_reading(self) -> None:
        if self.read_paused and not self.is_held:
            super().resume_reading()


class Cycle(HeldCycle):
    """One request and its response: uvicorn's cycle, with methods that are faster than ASGI's messages.

    The event that ASGI's `receive` waits for is made when it is first used: most requests take the fast path.
    """

    task: asyncio.Task[None]
    """The task of the application."""
    repeat: "Callable[[Cycle], Coroutine[Any, Any, None]] | None" = None
    """Answers another request with the head of this one; None: only the application does. The endpoint sets it."""
    disconnected = False
    more_body = True
    response_started = False
    response_complete = False
    chunked_encoding = None
    expected_content_length = 0
    event: asyncio.Event | None = None
    has_news = False
    """Whether something arrived that `receive` has not returned yet. Used until `event` exists."""
    collected: list[bytes] | None = None
    """Parts of the body since `collect_body`; None: they are left to ASGI's messages."""
    received_bytes = 0
    on_disconnect: Callable[[], None] | None = None
    """Called when the client disconnects before the end of the response."""
    _most_bytes = 0

    def __init__(self, protocol: BoundedHttpProtocol, keep_alive: bool) -> None:
        # All attributes of uvicorn's cycle; its own __init__ would take them as twelve arguments.
        self.protocol = protocol
        self.scope = protocol.scope
        self.transport = protocol.transport
        self.flow = protocol.flow
        self.logger = protocol.logger
        self.access_logger = protocol.access_logger
        self.access_log = protocol.access_log
        self.default_headers = protocol.server_state.default_headers
        self.on_response = protocol.on_response_complete
        self.keep_alive = keep_alive
        self.waiting_for_100_continue = protocol.expect_100_continue
        self.body = bytearray()

    @property
    def message_event(self) -> asyncio.Event:  # type: ignore[override]
        if self.event is None:
            self.event = asyncio.Event()
            if self.has_news:
                self.event.set()
        return self.event

    @property
    def certificate_names(self) -> tuple[str, ...]:
        """The names in the client's certificate; empty without one."""
        names: tuple[str, ...] = self.transport.get_extra_info(CERTIFICATE_NAMES, ())
        return names

    async def receive(self) -> "ASGIReceiveEvent":
        """As RequestResponseCycle.receive. Raises RequestTimeout."""
        if not self.is_asked_for:
            self.is_asked_for = True
            if self.flow.is_held and not self.response_complete:
                self.protocol.feed_slices(b"")
        message = await super().receive()
        if self.is_late and not self.disconnected:
            raise RequestTimeout(
                f"body: expected {BODY_PART_BYTES} bytes in each {self.body_timeout_s:g} s (server.body_timeout_s), "
                "got fewer; send it faster"
            )
        if not self.more_body:
            # The list is the caller's; a connection that waits for its next request keeps no body.
            self.collected = None
        return message

    def take_body(self) -> bytes | None:
        """Return the whole body, once, if all of it has arrived; as RequestResponseCycle.receive."""
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

    def collect_body(self, max_bytes: int, try_grow: Callable[[int], bool]) -> list[bytes]:
        """Add further parts of the body to the returned list, without pausing, up to `max_bytes` bytes.

        ASGI's `receive` then returns at the end of the body, after `max_bytes`, when `try_grow` refuses to count a
        part, and when the client disconnects. A task that wakes for every 64 KiB takes longer than all that is done
        with them.
        """
        self._most_bytes = max_bytes
        self._try_grow = try_grow
        self.collected = []
        return self.collected

    @property
    def receives_into(self) -> bool:
        """Whether the transport can change its protocol; that of TLS has to decrypt."""
        return type(self.transport).set_protocol is not asyncio.BaseTransport.set_protocol

    @property
    def has_part(self) -> bool:
        """Whether a part of the body has arrived, and is held."""
        return self.flow.is_held and self.protocol.cycle is self and not self.is_asked_for

    def receive_into(self, buffer: memoryview, try_grow: Callable[[int], bool]) -> bool:
        """Receive the rest of the body into the buffer, which has its size, without the parser and its copies.

        `try_grow` counts the bytes. False while bytes of another request are unread. ASGI's `receive` then returns as
        after `collect_body`. The buffer is not written after the end of the response.
        """
        protocol = self.protocol
        if self.body or protocol.cycle is not self or self.bytes_left() != len(buffer):
            return False
        self.is_asked_for = True
        held = protocol.take_held(len(buffer))
        buffer[: len(held)] = held
        self.received_bytes += len(held)
        if not try_grow(len(held)):
            self.message_event.set()
        if len(held) < len(buffer):
            BodyReceiver(protocol, self, buffer[len(held) :], try_grow).start()
            return True
        protocol.end_body()
        protocol.feed_slices(b"")
        return True

    def collect(self, part: bytes) -> None:
        """Add a part of the body to the list of `collect_body`."""
        assert self.collected is not None
        self.collected.append(part)
        self._most_bytes -= len(part)
        if not self._try_grow(len(part)) or self._most_bytes < 0:
            self._most_bytes = -1
            self.flow.pause_reading()
            self.message_event.set()

    def respond(self, status: int, header_lines: bytes, body: bytes) -> bool:
        """Send a whole response, as RequestResponseCycle.send. False if it cannot be sent now.

        `header_lines`: valid lines, each with its CRLF.
        """
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

    def watch(self, on_disconnect: Callable[[], None]) -> None:
        """As WatchedConnection.watch."""
        if self.disconnected:
            on_disconnect()
            return
        self.on_disconnect = on_disconnect
        if self.flow.read_paused and not self.response_complete:
            # A connection that is not read tells of no disconnect.
            self.flow.resume_reading()

    def end_watch(self) -> None:
        self.on_disconnect = None

    def abort(self) -> None:
        """Close the connection, with what its reader has not taken."""
        self.disconnected = True
        self.transport.abort()
