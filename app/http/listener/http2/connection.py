"""A connection of HTTP/2: bytes of a socket in, events of its streams out. libnghttp2 (ngh2) frames and checks them."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import ngh2
import structlog

from app.http.listener.clocks import MAX_CONNECTIONS, Connections
from app.http.listener.http2.clocks import ClockedConnection, Http2Bounds, Http2Stream

log = structlog.get_logger(__name__)

Header = tuple[bytes, bytes]

_STREAM_WINDOW_BYTES = 256 * 1024
# Larger frames than the default of 16 KiB make fewer events of a large request.
_MAX_FRAME_BYTES = 64 * 1024
_MAX_HEADER_LIST_BYTES = 64 * 1024
# The windows of its streams bound the bytes that a connection may hold. A stream whose handler does not read must not
# stop the others.
_CONNECTION_WINDOW_BYTES = 2**31 - 1
# Serialized at once. The rest stays in the streams, where it is counted, until the socket takes it.
_WRITE_BYTES = 256 * 1024
MAX_UNSENT_BYTES = 64 * 1024
"""Bytes of a response that the client has not taken; above it, who sends it waits. A single part may be larger."""
# Frames that carry no request and ask for work: PING, SETTINGS, WINDOW_UPDATE, RST_STREAM and empty DATA.
_MAX_CONTROL_FRAMES = 10_000
# Of a request that has its response already; the stream is reset above it, or after a while.
_MAX_DROPPED_BYTES = 64 * 1024 * 1024
_LINGER_S = 10.0
# Time for the last bytes of a connection.
_CLOSE_S = 10.0
_DRAIN_PING = b"draining"
_KEEPALIVE_PING = b"is alive"

CANCEL = int(ngh2.ErrorCode.CANCEL)
NO_ERROR = int(ngh2.ErrorCode.NO_ERROR)
_INTERNAL = int(ngh2.ErrorCode.INTERNAL_ERROR)
_FLOOD = int(ngh2.ErrorCode.ENHANCE_YOUR_CALM)


@dataclass(slots=True)
class _Answered:
    since_s: float
    dropped_bytes: int = 0


OpenStream = Callable[["Http2Connection", int, tuple[Header, ...], bool], Http2Stream]
"""Called with the connection, the stream's id, its headers, and whether it has no body."""


class Http2Connection(ClockedConnection, asyncio.Protocol):
    """One connection. Owned by the event loop."""

    def __init__(self, open_stream: OpenStream, bounds: Http2Bounds, limits: Connections, opened: set[Any]) -> None:
        """`limits`: counts the connection. `opened`: holds it while it is open."""
        super().__init__(bounds, limits)
        self._open_stream = open_stream
        self._opened = opened
        self.peer = ""
        """The client's address and port: `ipv4:127.0.0.1:40000`."""
        self._engine = ngh2.Connection(ngh2.Role.SERVER, _CONFIGURATION)
        self._waiting: dict[int, Http2Stream] = {}
        # Streams whose response is complete, while the client may still send; when, and how many bytes it has sent.
        self._answered: dict[int, _Answered] = {}
        self.has_calls = False
        """Whether gRPC's clients use it: they move to another connection when it drains, and lose nothing."""
        self._control_frames = 0
        self._sent_bytes = 0
        self._is_flushing = self._is_full = self._is_lost = self._is_ending = self._has_refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        if not self._limits.accept():
            self._limits.closed[MAX_CONNECTIONS] += 1
            transport.abort()
            return
        self._opened.add(self)
        self.peer = _peer(transport)
        transport.set_write_buffer_limits(MAX_UNSENT_BYTES)
        self._engine.initiate_connection(_settings(self._bounds.max_streams))
        self._engine.set_local_window_size(_CONNECTION_WINDOW_BYTES)
        self._flush_soon()
        self.start_clocks()

    def connection_lost(self, exc: Exception | None) -> None:
        self._limits.forget()
        self._opened.discard(self)
        self._lose()

    def _lose(self) -> None:
        """End all streams. Nothing is sent from now on."""
        self._is_lost = True
        self.stop_clocks()
        streams, self._streams = self._streams, {}
        self._waiting.clear()
        self._answered.clear()
        for stream in streams.values():
            stream.closed()

    def data_received(self, data: bytes) -> None:
        if self._is_lost:
            return
        self._received_s = time.monotonic()
        self._has_pinged = False
        try:
            self._engine.receive_data(data)
            self._take_events()
        except ngh2.NGH2Error as error:
            self._end_broken(error)
            return
        if not self._is_flushing:
            self._flush_soon()

    def _end_broken(self, error: ngh2.NGH2Error) -> None:
        """Close the connection of a client that breaks the protocol, or a bound of it."""
        log.debug("a connection of HTTP/2 was ended", reason=str(error))
        with suppress(ngh2.NGH2Error):
            self._write()  # the reason, for the client
        self._close()

    def _close(self) -> None:
        self._lose()
        self.transport.close()
        if self.transport.get_write_buffer_size():
            # A client that does not read must not keep what is unsent.
            self._loop.call_later(_CLOSE_S, self.transport.abort)

    def eof_received(self) -> None:
        """Close: a client that sends no more acknowledges nothing."""

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self._flush()

    def _take_events(self) -> None:
        for event in self._engine.events():
            if isinstance(event, ngh2.DataReceived):
                self._receive(event.stream_id, event.data, event.end_stream)
            elif isinstance(event, ngh2.RequestReceived):
                self._control_frames = 0
                stream_id = event.stream_id
                # It may be answered at once.
                self._streams[stream_id] = REFUSED
                self._streams[stream_id] = self._open_stream(self, stream_id, event.headers, event.end_stream)
            elif isinstance(event, ngh2.StreamClosed):
                self._forget(event.stream_id)
            elif isinstance(event, ngh2.TrailersReceived):
                self._receive(event.stream_id, b"", True)
            else:
                self._take_control(event)

    def _receive(self, stream_id: int, data: bytes, is_end: bool) -> None:
        if not data and not is_end:
            self._count_control_frame()
        stream = self._streams.get(stream_id)
        if stream is None or stream_id in self._answered:
            self._drop(stream_id, data)
        else:
            stream.receive(data, is_end)

    def _drop(self, stream_id: int, data: bytes) -> None:
        """Take bytes that nothing needs, up to a bound: many clients read a response after they have sent it all."""
        self.consumed(stream_id, len(data))
        answered = self._answered.get(stream_id)
        if answered is not None:
            answered.dropped_bytes += len(data)
            if answered.dropped_bytes > _MAX_DROPPED_BYTES:
                self.reset(stream_id, NO_ERROR)

    def check_answered(self, now_s: float) -> None:
        """End streams whose clients do not end them after the response (RFC 9113, section 8.1)."""
        for stream_id, answered in list(self._answered.items()):
            if now_s - answered.since_s > _LINGER_S and not self.unsent_bytes(stream_id):
                # Trailers may wait for a window that the client never opens: then the response is not complete.
                self.reset(stream_id, NO_ERROR if self._has_window(stream_id) else CANCEL)

    def _has_window(self, stream_id: int) -> bool:
        try:
            return min(self._engine.remote_window_size, self._engine.stream_remote_window_size(stream_id)) > 0
        except ngh2.NGH2Error:
            return False

    def _take_control(self, event: Any) -> None:
        self._count_control_frame()
        if isinstance(event, ngh2.SettingsReceived):
            self._has_preface = True
        elif isinstance(event, ngh2.PingAcknowledged) and event.opaque_data == _DRAIN_PING:
            # All that the client had sent before it saw the notice has arrived.
            self.refuse_streams()

    def _count_control_frame(self) -> None:
        self._control_frames += 1
        if self._control_frames == _MAX_CONTROL_FRAMES:
            self._submit(self._engine.terminate_connection, _FLOOD)

    def _forget(self, stream_id: int) -> None:
        stream = self._streams.pop(stream_id, None)
        self._answered.pop(stream_id, None)
        self._waiting.pop(stream_id, None)
        if not self._streams:
            self._idle_since_s = time.monotonic()
            if self._is_ending or (self._is_draining and not self.has_calls):
                self.refuse_streams()
        if stream is not None:
            stream.closed()

    def consumed(self, stream_id: int, num_bytes: int) -> None:
        """Let the client send as many bytes of a body more."""
        if num_bytes:
            self._submit(self._engine.acknowledge_received_data, num_bytes, stream_id)

    def send_headers(self, stream_id: int, headers: list[Header], is_end: bool = False) -> None:
        """Begin a response. With `is_end` it has no body. Like the other methods that send, without effect on a stream
        that the client has closed.
        """
        self._send(stream_id, self._engine.send_response, headers, is_end)

    def send_informational(self, stream_id: int, status: bytes) -> None:
        """Send the head of an interim response: `100`."""
        if stream_id in self._streams:
            self._submit(self._engine.send_informational_response, stream_id, [(b":status", status)])

    def send_data(self, stream_id: int, data: bytes, is_end: bool = False) -> None:
        """Send a part of a response's body; the last one with `is_end`."""
        self._send(stream_id, self._engine.send_data, data, is_end)

    def respond(self, stream_id: int, headers: list[Header], body: bytes, trailers: list[Header]) -> None:
        """Send a whole response with its trailers."""
        if stream_id not in self._streams:
            return
        self._note_answered(stream_id)
        engine = self._engine
        try:
            engine.send_response(stream_id, headers)
            engine.send_data(stream_id, body)
            engine.send_trailers(stream_id, trailers)
        except ngh2.NGH2Error as error:
            log.debug("a response over HTTP/2 was not sent", reason=str(error))
            self._submit(engine.reset_stream, stream_id, _INTERNAL)
        if not self._is_flushing:
            self._flush_soon()

    def end(self, stream_id: int, trailers: list[Header]) -> None:
        """Complete a response with its trailers."""
        if stream_id in self._streams:
            self._note_answered(stream_id)
            self._submit(self._engine.send_trailers, stream_id, trailers)

    def reset(self, stream_id: int, error_code: int = CANCEL) -> None:
        """End a stream without a response, or within it."""
        if stream_id in self._streams:
            self._submit(self._engine.reset_stream, stream_id, error_code)

    def unsent_bytes(self, stream_id: int) -> int:
        """Return the bytes of a response's body that wait for the client."""
        return self._engine.queued_body_size(stream_id) if stream_id in self._streams else 0

    def call_when_sent(self, stream_id: int) -> None:
        """Call the stream's `has_space` once, when nothing of it waits for the client."""
        if stream_id in self._streams:
            self._waiting[stream_id] = self._streams[stream_id]

    def _send(self, stream_id: int, send: Any, content: Any, is_end: bool) -> None:
        if stream_id not in self._streams:
            return
        if is_end:
            self._note_answered(stream_id)
        if not self._submit(partial(send, end_stream=is_end), stream_id, content):
            # The client must not wait for the rest of a response that cannot be sent.
            self._submit(self._engine.reset_stream, stream_id, _INTERNAL)

    def _note_answered(self, stream_id: int) -> None:
        self._answered[stream_id] = _Answered(time.monotonic())
        self._control_frames = 0

    def _submit(self, submit: Callable[..., object], *arguments: Any) -> bool:
        """Hand something to the library, and send it soon. Returns False if it is not accepted: where the connection
        ends, which `_flush` finds out, and for headers that are not valid.
        """
        if self._is_lost:
            return False
        try:
            submit(*arguments)
        except ngh2.NGH2Error as error:
            log.debug("a frame of HTTP/2 was not sent", reason=str(error))
            return False
        finally:
            if not self._is_flushing:
                self._flush_soon()
        return True

    def _flush_soon(self) -> None:
        """Send at the end of this round of the event loop: what several streams send together takes one write."""
        if not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flushing = False
        if self._is_lost:
            return
        try:
            self._write()
            self._take_events()  # of streams that ended with these bytes
        except ngh2.NGH2Error as error:
            self._end_broken(error)
            return
        if self._waiting:
            self._call_waiting()
        if not (self._engine.want_read or self._engine.want_write):
            self._close()

    def _write(self) -> None:
        while not self._is_full and (data := self._engine.data_to_send(_WRITE_BYTES)):
            self._sent_bytes += len(data)
            self.transport.write(data)

    def _call_waiting(self) -> None:
        for stream_id, stream in list(self._waiting.items()):
            if not self._engine.queued_body_size(stream_id):
                del self._waiting[stream_id]
                stream.has_space()

    def drain(self) -> None:
        """Ask the client to open no further streams; close when those that are open have ended.

        Clients of HTTP, httpx among them, take this for the end of all streams. They are asked when none is open.
        """
        if self._is_draining or self._is_lost:
            return
        self._is_draining = True
        self._drained_s = time.monotonic()
        if self.has_calls or not self._streams:
            self._submit(self._engine.send_shutdown_notice)
            self._submit(self._engine.ping, _DRAIN_PING)

    def shutdown(self) -> None:
        """Drain, without the wait for streams that the client is about to open: the server stops."""
        self.drain()
        self._is_ending = True
        if not self._streams:
            self.refuse_streams()

    def refuse_streams(self) -> None:
        """Take no further streams: GOAWAY names the last one."""
        if not self._has_refused:
            self._has_refused = True
            self._submit(self._engine.send_goaway, NO_ERROR)

    def ask_for_life(self) -> None:
        self._submit(self._engine.ping, _KEEPALIVE_PING)

    def abort(self) -> None:
        """Close the connection now, and all its streams."""
        self.transport.abort()

    @property
    def taken_bytes(self) -> int:
        return self._sent_bytes - self.transport.get_write_buffer_size()

    @property
    def is_behind(self) -> bool:
        return self._is_full or self._engine.queued_body_size() > 0


class _RefusedStream:
    """Implement Http2Stream for a stream that is answered when it is opened."""

    def receive(self, data: bytes, is_end: bool) -> None: ...
    def closed(self) -> None: ...
    def has_space(self) -> None: ...
    def check(self, now_s: float) -> None: ...


REFUSED = _RefusedStream()
"""The result of OpenStream for a stream that it has answered."""
_CONFIGURATION = ngh2.Configuration(
    auto_window_update=False, max_inbound_header_list_size=_MAX_HEADER_LIST_BYTES, max_continuations=8
)


def _peer(transport: asyncio.Transport) -> str:
    name = transport.get_extra_info("peername")
    if not isinstance(name, tuple):
        return f"unix:{name or ''}"
    host, port = name[:2]
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"


def _settings(max_streams: int) -> dict[int, int]:
    setting = ngh2.Setting
    return {
        setting.MAX_CONCURRENT_STREAMS: max_streams,
        setting.INITIAL_WINDOW_SIZE: _STREAM_WINDOW_BYTES,
        setting.MAX_FRAME_SIZE: _MAX_FRAME_BYTES,
        setting.MAX_HEADER_LIST_SIZE: _MAX_HEADER_LIST_BYTES,
    }
