"""The rarer ways of a connection's bytes: long chunks, offers to upgrade, HTTP/2, heads that are refused."""

import asyncio
from collections.abc import Callable
from typing import Any

import httptools

from app.http.listener.clocks import ClockedCycle, ClockedProtocol, HeldFlow
from frameworks.scheduling.byte_limit import UNCOUNTED_BYTES, ByteHold

MAX_HEAD_BYTES = 64 * 1024
"""Request line and headers together, or trailers; the parser itself has no bound."""

MAX_PIPELINED = 16
"""Requests of a connection that wait behind another one; at this number the connection is not read further."""
LONG_BODY_BYTES = 256 * 1024
"""Bodies from this length on may be received into memory of their own."""
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""The first bytes of every client of HTTP/2 (RFC 9113, section 3.4)."""
_PREFACE_ERROR = "Pause on PRI/Upgrade"
"""The error of the parser at their end."""
SLICE_BYTES = 8 * 1024
"""The parser cannot be stopped within the bytes that it gets: the requests in one slice may exceed MAX_PIPELINED."""


class HeldCycle(ClockedCycle):
    """A request whose long body is held until something asks for it."""

    flow: HeldFlow
    is_asked_for = False
    """Whether something has asked for the body."""


class ParsingProtocol(ClockedProtocol):
    """A connection that parses no more than it can hold."""

    cycle: "HeldCycle"
    make_http2: Callable[[Any], asyncio.Protocol] | None = None
    """Makes the protocol of a connection of HTTP/2 from this one; None where it cannot take over the connection."""
    successor: asyncio.Protocol | None = None
    """The protocol that has taken over."""
    _head_bytes = 0
    # Bytes that arrived since the parser last reported something: a header without end adds to nothing else.
    _held_bytes = 0
    _is_upgrade = False
    # Bytes behind MAX_PIPELINED requests, or of a long body that nothing has asked for.
    _unparsed: bytes | memoryview = b""
    # The count of those bytes, and of bodies that wait behind another request; None until there were any.
    _waiting_hold: ByteHold | None = None

    def take_held(self, nbytes: int) -> memoryview:
        """Return at most so many bytes that have arrived and that the parser has not got. It does not get them."""
        held = memoryview(self._unparsed)
        # An empty view would keep the bytes that were taken.
        self._unparsed = held[nbytes:] or b""
        self.flow.is_held = bool(self._unparsed)
        return held[:nbytes]

    def _holds_body(self) -> bool:
        """Whether the rest of the body waits for what the request does: it may be received elsewhere."""
        cycle = self.cycle
        if cycle is None or cycle.is_asked_for or cycle.response_complete or self.pipeline:
            return False
        return cycle.bytes_left() >= LONG_BODY_BYTES

    def feed_slices(self, data: bytes | memoryview) -> None:
        """Feed what is unparsed and a long chunk behind it to the parser, until MAX_PIPELINED requests wait."""
        if not data:
            data = self._unparsed
        elif self._unparsed:
            data = b"".join((self._unparsed, data))
        rest = memoryview(data)
        self._unparsed = b""
        while rest and self._held_bytes <= MAX_HEAD_BYTES and not self.transport.is_closing():
            if len(self.pipeline) >= MAX_PIPELINED:
                self._unparsed = rest
                self.flow.pause_reading()
                break
            # A body is one slice, up to its end where content-length tells it.
            size = SLICE_BYTES if self.cycle is None else max(SLICE_BYTES, self.cycle.bytes_left())
            part = rest[:size]
            rest = rest[size:]
            self._held_bytes += len(part)
            try:
                self.parser.feed_data(part)
            except (httptools.HttpParserUpgrade, httptools.HttpParserError) as error:
                self.feed_behind(error, part)
                if self.successor is not None:
                    self.successor.data_received(bytes(rest))
                    return
            if rest and self._holds_body():
                self._unparsed = rest
                self.flow.pause_reading()
                break
        self.flow.is_held = bool(self._unparsed)
        if self.pipeline:
            self.count_waiting()

    def count_waiting(self) -> None:
        """Count what waits behind the request in progress; close the connection if it does not fit."""
        if self._waiting_hold is None:
            self._waiting_hold = self.limits.byte_limit.hold()
        # A part of the body of the request in progress is counted when it asks for it.
        unparsed_bytes = len(self._unparsed) if self.pipeline else 0
        waiting = unparsed_bytes + sum(len(cycle.body) for cycle, _ in self.pipeline)
        if waiting <= UNCOUNTED_BYTES:
            waiting = 0
        if not self._waiting_hold.try_grow(waiting - self._waiting_hold.held_bytes):
            self.transport.close()

    def feed_behind(self, error: Exception, data: bytes | memoryview) -> None:
        """Continue behind the error of the parser if it is an offer to upgrade; else refuse the request."""
        rest = memoryview(data)
        while True:
            first: HeldCycle | None = self.cycle
            if first is None and str(error) == _PREFACE_ERROR and self.make_http2 is not None:
                self._turn_to_http2(data)
                return
            if not isinstance(error, httptools.HttpParserUpgrade):
                self.logger.warning("invalid HTTP request")
                self.send_400_response("the request is not valid HTTP/1.1")
                return
            if self.parser.get_method() == b"CONNECT":
                self.send_400_response("method: expected one of HTTP, got CONNECT; this server is no proxy")
                return
            # No upgrade is offered, so the request counts without it. The parser left its body.
            head = self._head_without_upgrade()
            rest = rest[error.args[0] :]
            self.parser = _new_parser(self)
            try:
                self.parser.feed_data(head)
                self.parser.feed_data(rest)
                return
            except (httptools.HttpParserUpgrade, httptools.HttpParserError) as next_error:
                error = next_error

    def _turn_to_http2(self, data: bytes | memoryview) -> None:
        """Leave the connection to HTTP/2: its first bytes are those of every client of it. `data` has their end."""
        assert self.make_http2 is not None
        seen_bytes = self._held_bytes - len(data)
        rest = bytes(data[len(_PREFACE) - seen_bytes :])
        self.leave()
        self.successor = self.make_http2(self)
        self.successor.connection_made(self.transport)
        self.transport.set_protocol(self.successor)
        self.successor.data_received(_PREFACE + rest)

    def leave(self) -> None:
        """Leave the connection to another protocol, before its first request."""
        self.limits.forget()
        self.connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def end_body(self) -> None:
        """Note the end of a body that the parser has not seen: it still expects the rest, and another one follows."""
        self.parser = _new_parser(self)
        self.on_message_complete()

    def refuse_head(self) -> None:
        """Refuse a head that has grown too long before its end."""
        if not self.transport.is_closing():
            self._head_bytes = self._held_bytes
            self.send_400_response("")

    def send_400_response(self, msg: str) -> None:
        """Answer what the parser refused, in the contract's form, and close the connection."""
        if self._head_bytes > MAX_HEAD_BYTES:
            msg = f"headers: more than {MAX_HEAD_BYTES} bytes of request line and headers; send fewer"
        self.refuse(400, "invalid_input", msg)

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


def _new_parser(protocol: ParsingProtocol) -> httptools.HttpRequestParser:
    """As uvicorn's: a pipelined request behind a request with `connection: close` is not an error of the first."""
    parser = httptools.HttpRequestParser(protocol)
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    return parser
