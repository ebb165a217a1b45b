"""uvicorn's HTTP/1.1 protocol with a bound on what comes before a body and on how long an answer may lie unread, our
own words for what is no HTTP, and a short way for whole bodies and answers.
"""

import asyncio

import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from app.observability.metrics import request_id, server_timing
from frameworks.types import Timings

MAX_HEAD_BYTES = 64 * 1024
"""Request line and headers together, or trailers; the parser itself would collect them without end."""

STALL_S = 30.0
"""How often it is looked whether a reader that is behind still reads."""
LEAST_READ_BYTES = 16 * 1024
"""A reader that is behind and takes no more than this in STALL_S is given up: what it does not read takes memory."""

FAST_PATH = "roundhouse.fast_path"
"""The ASGI extension of this protocol, a FastPath: a body that has come is taken, and a whole answer sent, at once.
Messages, events and checks of our own headers cost 12 µs more.
"""
# A body below this is copied behind its head: one buffer, one system call.
_JOINED_BYTES = 16 * 1024


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection. Named to uvicorn.Config as its `http` class."""

    _exchange: "_Exchange | None" = None
    _head_bytes = 0
    # Bytes that have come since the parser last gave something on: a header that does not end adds to nothing else.
    _held_bytes = 0
    _idle_since_s = 0.0
    _idle_timer: asyncio.TimerHandle | None = None
    # What the reader had not taken when it was looked at last, while that is a lot, or the last of the connection.
    _unread_bytes = 0
    _stall_timer: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        self._held_bytes += len(data)
        super().data_received(data)
        if self._held_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._head_bytes = self._held_bytes
            self.send_400_response("")

    def on_headers_complete(self) -> None:
        if self._held_bytes > MAX_HEAD_BYTES:
            # The beginning of the body may be among them.
            self._head_bytes = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
            if self._head_bytes > MAX_HEAD_BYTES:
                # Out of a parser's callback this ends the parsing, and the connection by send_400_response.
                raise ValueError("the head of the request is too long")
        self._held_bytes = 0
        super().on_headers_complete()
        self._exchange = _Exchange(self, self.cycle)
        self.scope["extensions"] = {FAST_PATH: self._exchange}  # type: ignore[dict-item]

    def on_response_complete(self) -> None:
        """As uvicorn's, with one timer for all the pauses of a connection: to start and stop one for each answer costs
        3 µs.
        """
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            self._watch_reader()
            return
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
        assert self._exchange is not None
        if not self._exchange.gathers(body):
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._held_bytes = 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Answers what the parser refused, in the contract's form, and closes."""
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

    def _close_if_idle(self) -> None:
        self._idle_timer = None
        if self.transport.is_closing() or not self.cycle.response_complete or self._held_bytes:
            # Under way again, or the next head is coming in; its answer winds the timer up anew.
            return
        left_s = self._idle_since_s + self.timeout_keep_alive - self.loop.time()
        if left_s > 0.0:
            self._idle_timer = self.loop.call_later(left_s, self._close_if_idle)
        else:
            self.transport.close()
            self._watch_reader()

    def _watch_reader(self) -> None:
        """From now on the reader has to take something, or the connection ends with what is unread."""
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


class _Exchange:
    """One request and its answer: the FastPath of it."""

    __slots__ = ("_cycle", "_gathered", "_protocol", "_room_bytes")

    def __init__(self, protocol: BoundedHttpProtocol, cycle: RequestResponseCycle) -> None:
        self._protocol = protocol
        self._cycle = cycle
        # None: what comes of the body is left to ASGI's messages.
        self._gathered: list[bytes] | None = None
        self._room_bytes = 0

    def take_body(self) -> bytes | None:
        """As RequestResponseCycle.receive, of a body that has come to its end."""
        cycle = self._cycle
        if cycle.more_body or cycle.disconnected or cycle.response_complete or cycle.waiting_for_100_continue:
            return None
        body = bytes(cycle.body)
        cycle.body = bytearray()
        cycle.message_event.clear()
        self._protocol.flow.resume_reading()
        return body

    def gather(self, most_bytes: int) -> list[bytes]:
        """From now on what comes of the body goes into this list, and no reading pauses, up to so many bytes. ASGI's
        `receive` then returns at the body's end, at the first byte too many, and when the caller leaves.

        A task that wakes for every 64 KiB takes longer than all that is done with them.
        """
        self._room_bytes = most_bytes
        self._gathered = []
        return self._gathered

    def gathers(self, piece: bytes) -> bool:
        """Whether the piece that has come was taken; else it is the cycle's."""
        if self._gathered is None or self._cycle.response_complete:
            return False
        self._gathered.append(piece)
        self._room_bytes -= len(piece)
        if self._room_bytes < 0:
            self._protocol.flow.pause_reading()
            self._cycle.message_event.set()
        return True

    def respond(self, status: int, header_lines: bytes, body: bytes) -> bool:
        """As RequestResponseCycle.send, of a whole answer."""
        cycle, protocol = self._cycle, self._protocol
        if cycle.disconnected or cycle.response_started or protocol.flow.write_paused:
            return False
        cycle.response_started = cycle.response_complete = True
        head = [STATUS_LINE[status]]
        for name, value in cycle.default_headers:
            head += (name, b": ", value, b"\r\n")
        head.append(header_lines)
        head.append(b"\r\n" if cycle.keep_alive else b"connection: close\r\n\r\n")
        cycle.message_event.set()
        if len(body) < _JOINED_BYTES:
            head.append(body)
            protocol.transport.write(b"".join(head))
        else:
            protocol.transport.write(b"".join(head))
            protocol.transport.write(body)
        if not cycle.keep_alive:
            protocol.transport.close()
        cycle.on_response()
        return True

    def abort(self) -> None:
        self._cycle.disconnected = True
        self._protocol.transport.abort()
