"""One request of a connection of HTTP/1.1 and its response: uvicorn's cycle, with a fast path for whole bodies."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from app.http.listener.body_receiver import BodyReceiver
from app.http.listener.clocks import BODY_PART_BYTES, CERTIFICATE_NAMES
from app.http.listener.parsing import HeldCycle, ParsingProtocol
from app.protocols.shared.errors import RequestTimeout

if TYPE_CHECKING:
    from uvicorn._types import ASGIReceiveEvent

FAST_PATH = "roundhouse.fast_path"
"""The ASGI extension of this protocol, a Cycle: take a body that has arrived, and send a whole response, at once.
ASGI messages, events and checks of our own headers cost 12 µs more.

The application removes it from the scope: it refers to the scope, and only the garbage collector would free both.
"""
# A body below this is copied behind its head: one buffer, one system call.
_JOINED_BYTES = 16 * 1024


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

    def __init__(self, protocol: ParsingProtocol, keep_alive: bool) -> None:
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
