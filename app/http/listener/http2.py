"""A connection of HTTP/2: bytes of a socket in, events of its streams out. libnghttp2 (ngh2) frames and checks them."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import ngh2
import structlog

from app.http.listener.clocks import LEAST_READ_BYTES, MAX_CONNECTIONS, READER, STALL_S, Connections

log = structlog.get_logger(__name__)

Header = tuple[bytes, bytes]

_STREAM_WINDOW_BYTES = 256 * 1024
# Larger frames than the default of 16 KiB make fewer events of a large request.
_MAX_FRAME_BYTES = 64 * 1024
_MAX_HEADER_LIST_BYTES = 64 * 1024
# What a connection may hold is bounded by the windows of its streams. A stream whose handler does not read must not
# stop the others.
_CONNECTION_WINDOW_BYTES = 2**31 - 1
# Serialized at once. The rest stays in the streams, where it is counted, until the socket takes it.
_WRITE_BYTES = 256 * 1024
_UNSENT_BYTES = 64 * 1024
# Frames that carry no request and ask for work: PING, SETTINGS, WINDOW_UPDATE, RST_STREAM and empty DATA.
_MAX_CONTROL_FRAMES = 10_000
_DRAIN_PING = b"draining"
_KEEPALIVE_PING = b"is alive"

CANCEL = int(ngh2.ErrorCode.CANCEL)
NO_ERROR = int(ngh2.ErrorCode.NO_ERROR)
_FLOOD = int(ngh2.ErrorCode.ENHANCE_YOUR_CALM)


@dataclass(frozen=True, slots=True)
class Http2Bounds:
    """The bounds of connections, in seconds. Clients of HTTP/2 connect again by themselves.

    `max_streams`: open on one connection; the client queues more. `preface_s`: until a new connection has sent
    HTTP/2's first bytes. `idle_s`: without a stream, until it is closed. `age_s`: until it accepts no further streams.
    `grace_s`: after that until it is closed. `ping_s`: without a byte from the client, until the server asks whether
    it lives. `pong_s`: after that, until the connection is closed.
    """

    max_streams: int = 256
    preface_s: float = 10.0
    idle_s: float = 600.0
    age_s: float = 3600.0
    grace_s: float = 3600.0
    ping_s: float = 60.0
    pong_s: float = 20.0


class Http2Stream(Protocol):
    """The receiver of one stream's events."""

    def receive(self, data: bytes, is_end: bool) -> None:
        """Take a part of the body, maybe empty. `Http2Connection.consumed` lets the client send more."""

    def closed(self) -> None:
        """End: the response was sent, the client has reset the stream, or the connection is lost."""

    def has_space(self) -> None:
        """Continue: the client has taken what `Http2Connection.unsent_bytes` counts for this stream."""

    def check(self, now_s: float) -> None:
        """Look at the clocks of this stream. `now_s`: on the monotonic clock."""


OpenStream = Callable[["Http2Connection", int, tuple[Header, ...], bool], Http2Stream]
"""Called with the connection, the stream's id, its headers, and whether it has no body."""


class Http2Connection(asyncio.Protocol):
    """Owned by the event loop. Whoever makes it calls `check` every second or so."""

    def __init__(
        self, open_stream: OpenStream, bounds: Http2Bounds, limits: Connections, opened: "set[Http2Connection]"
    ) -> None:
        """`limits`: counts the connection. `opened`: holds it while it is open."""
        self._open_stream = open_stream
        self._bounds = bounds
        self._limits = limits
        self._opened = opened
        self.peer = ""
        """The client's address and port: `ipv4:127.0.0.1:40000`."""
        self._loop = asyncio.get_running_loop()
        self._engine = ngh2.Connection(ngh2.Role.SERVER, _CONFIGURATION)
        self._streams: dict[int, Http2Stream] = {}
        self._waiting: dict[int, Http2Stream] = {}
        # Streams whose response is complete, while the client may still send.
        self._answered: set[int] = set()
        self._control_frames = 0
        self._sent_bytes = 0
        self._is_flushing = self._is_full = self._is_lost = False
        self._has_preface = self._is_draining = self._has_pinged = False
        self._opened_s = self._received_s = self._idle_since_s = time.monotonic()
        self._drained_s = 0.0
        # When the progress of a slow reader was last noted, and the bytes that it had taken.
        self._stall_s, self._taken_bytes = self._opened_s, 0

    @property
    def num_streams(self) -> int:
        """The open streams."""
        return len(self._streams)

    @property
    def is_draining(self) -> bool:
        """Whether the client was asked to open no further streams."""
        return self._is_draining

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        if not self._limits.accept():
            self._limits.closed[MAX_CONNECTIONS] += 1
            transport.abort()
            return
        self._opened.add(self)
        self.peer = _peer(transport)
        transport.set_write_buffer_limits(_UNSENT_BYTES)
        self._engine.initiate_connection(_settings(self._bounds.max_streams))
        self._engine.set_local_window_size(_CONNECTION_WINDOW_BYTES)
        self._flush_soon()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        self._limits.forget()
        self._opened.discard(self)
        streams, self._streams = self._streams, {}
        self._waiting.clear()
        for stream in streams.values():
            stream.closed()

    def data_received(self, data: bytes) -> None:
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
            self._flush()  # what the client is told about it
        self.transport.close()

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
            self._engine.acknowledge_received_data(len(data), stream_id)
        else:
            stream.receive(data, is_end)

    def _take_control(self, event: Any) -> None:
        self._count_control_frame()
        if isinstance(event, ngh2.SettingsReceived):
            self._has_preface = True
        elif isinstance(event, ngh2.PingAcknowledged) and event.opaque_data == _DRAIN_PING:
            # What the client had sent before it saw the notice has arrived.
            self._refuse_streams()

    def _count_control_frame(self) -> None:
        self._control_frames += 1
        if self._control_frames == _MAX_CONTROL_FRAMES:
            self._engine.terminate_connection(_FLOOD)

    def _forget(self, stream_id: int) -> None:
        stream = self._streams.pop(stream_id, None)
        self._answered.discard(stream_id)
        self._waiting.pop(stream_id, None)
        if not self._streams:
            self._idle_since_s = time.monotonic()
        if stream is not None:
            stream.closed()

    def consumed(self, stream_id: int, num_bytes: int) -> None:
        """Let the client send as many bytes of a body more."""
        if num_bytes and not self._is_lost:
            self._engine.acknowledge_received_data(num_bytes, stream_id)
            if not self._is_flushing:
                self._flush_soon()

    def send_headers(self, stream_id: int, headers: list[Header], is_end: bool = False) -> None:
        """Begin a response. With `is_end` it has no body. Like the other methods that send, without effect on a stream
        that the client has closed.
        """
        self._send(stream_id, self._engine.send_response, headers, is_end)

    def send_data(self, stream_id: int, data: bytes) -> None:
        """Send a part of a response's body."""
        self._send(stream_id, self._engine.send_data, data, False)

    def end(self, stream_id: int, trailers: list[Header]) -> None:
        """Complete a response with its trailers."""
        if stream_id in self._streams:
            self._engine.send_trailers(stream_id, trailers)
            self._answer(stream_id)

    def reset(self, stream_id: int, error_code: int = CANCEL) -> None:
        """End a stream without a response, or within it."""
        if stream_id in self._streams:
            self._engine.reset_stream(stream_id, error_code)
            self._flush_soon()

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
        send(stream_id, content, end_stream=is_end)
        if is_end:
            self._answer(stream_id)
        elif not self._is_flushing:
            self._flush_soon()

    def _answer(self, stream_id: int) -> None:
        self._control_frames = 0
        self._answered.add(stream_id)
        if not self._is_flushing:
            self._flush_soon()

    def _flush_soon(self) -> None:
        """Send at the end of this round of the event loop: what several streams send together takes one write."""
        if not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flushing = False
        if self._is_lost:
            return
        engine, transport = self._engine, self.transport
        while not self._is_full and (data := engine.data_to_send(_WRITE_BYTES)):
            self._sent_bytes += len(data)
            transport.write(data)
        self._take_events()  # of streams that ended with these bytes
        if self._answered and not self._is_full:
            self._end_answered()
        if self._waiting:
            self._call_waiting()
        if not (engine.want_read or engine.want_write):
            transport.close()

    def _end_answered(self) -> None:
        """Tell clients that still send into a complete response to stop. As RFC 9113, section 8.1, asks."""
        sent = [each for each in self._answered if not self._engine.queued_body_size(each)]
        for stream_id in sent:
            self._answered.discard(stream_id)
            self._engine.reset_stream(stream_id, NO_ERROR)
        if sent:
            self._flush()

    def _call_waiting(self) -> None:
        for stream_id, stream in list(self._waiting.items()):
            if not self._engine.queued_body_size(stream_id):
                del self._waiting[stream_id]
                stream.has_space()

    def drain(self) -> None:
        """Ask the client to open no further streams; close when those that are open have ended."""
        if self._is_draining or self._is_lost:
            return
        self._is_draining = True
        self._drained_s = time.monotonic()
        self._engine.send_shutdown_notice()
        self._engine.ping(_DRAIN_PING)
        self._flush_soon()

    def _refuse_streams(self) -> None:
        self._engine.send_goaway(NO_ERROR)
        self._flush_soon()

    def abort(self) -> None:
        """Close the connection now, and all its streams."""
        self.transport.abort()

    def check(self, now_s: float) -> None:
        """Look at the clocks. `now_s`: on the monotonic clock."""
        for stream in list(self._streams.values()):
            stream.check(now_s)
        if self._is_lost or self._is_reader_slow(now_s):
            return
        bounds = self._bounds
        if not self._has_preface:
            if now_s - self._opened_s > bounds.preface_s:
                self.abort()
        elif self._is_draining:
            self._check_drain(now_s - self._drained_s)
        elif now_s - self._opened_s > bounds.age_s or self._idle_s(now_s) > bounds.idle_s:
            self.drain()
        else:
            self._check_life(now_s - self._received_s)

    def _idle_s(self, now_s: float) -> float:
        return 0.0 if self._streams else now_s - self._idle_since_s

    def _check_drain(self, since_s: float) -> None:
        if since_s > self._bounds.grace_s:
            self.abort()
        elif not self._streams and since_s > self._bounds.pong_s:
            self._refuse_streams()  # the client does not answer

    def _check_life(self, silent_s: float) -> None:
        """Find out whether a client that sends nothing is still there."""
        if self._has_pinged:
            if silent_s > self._bounds.ping_s + self._bounds.pong_s:
                self.abort()
        elif silent_s > self._bounds.ping_s:
            self._has_pinged = True
            self._engine.ping(_KEEPALIVE_PING)
            self._flush_soon()

    def _is_reader_slow(self, now_s: float) -> bool:
        """Close the connection of a client that takes next to nothing of what is sent: unread bytes take memory."""
        kernel_bytes = self._sent_bytes - self.transport.get_write_buffer_size()
        if not (self._is_full or self._engine.queued_body_size()):
            self._stall_s, self._taken_bytes = now_s, kernel_bytes
        elif now_s - self._stall_s > STALL_S:
            if kernel_bytes - self._taken_bytes <= LEAST_READ_BYTES:
                self._limits.closed[READER] += 1
                self.abort()
                return True
            self._stall_s, self._taken_bytes = now_s, kernel_bytes
        return False


class _RefusedStream:
    """Implement Http2Stream for a stream that is answered when it is opened."""

    def receive(self, data: bytes, is_end: bool) -> None: ...
    def closed(self) -> None: ...
    def has_space(self) -> None: ...
    def check(self, now_s: float) -> None: ...


REFUSED = _RefusedStream()
"""What OpenStream returns for a stream that it has answered."""
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
