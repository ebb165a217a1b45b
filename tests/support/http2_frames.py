"""Write frames of HTTP/2 by hand, and be a client that sends them over a socket."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import ngh2

Header = tuple[bytes, bytes]

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED, HAS_PRIORITY = 1, 1, 4, 8, 32
HEAD_BYTES = 9
INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE = 4, 5


class Frame(NamedTuple):
    """A frame that a peer has received."""

    kind: int
    flags: int
    stream_id: int
    payload: bytes

    @property
    def error_code(self) -> int:
        """Of RST_STREAM and GOAWAY."""
        begin = 4 if self.kind == GOAWAY else 0
        return int.from_bytes(self.payload[begin : begin + 4], "big")


def frame(kind: int, payload: bytes = b"", flags: int = 0, stream_id: int = 0) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream_id.to_bytes(4, "big") + payload


def number(value: int) -> bytes:
    """Return the four bytes of an error code, a window or a stream's id."""
    return value.to_bytes(4, "big")


def settings(values: dict[int, int] | None = None) -> bytes:
    return frame(SETTINGS, b"".join(k.to_bytes(2, "big") + number(value) for k, value in (values or {}).items()))


START = PREFACE + settings()
SETTINGS_ACK = frame(SETTINGS, flags=ACK)


def headers_of(path: str, *more: Header) -> list[Header]:
    """Return the headers of a call."""
    return [
        *((b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"a"), (b":path", path.encode())),
        *((b"te", b"trailers"), (b"content-type", b"application/grpc")),
        *more,
    ]


def literals(headers: Iterable[Header]) -> bytes:
    """Return a header block of HPACK that neither uses nor changes the dynamic table."""
    return b"".join(b"\0" + _text(name) + _text(value) for name, value in headers)


def indexed_literal(name: bytes, value: bytes) -> bytes:
    """Return a header that enters the dynamic table of HPACK, where its index is 62."""
    return b"\x40" + _text(name) + _text(value)


def _text(text: bytes) -> bytes:
    """Return a string of HPACK without Huffman's code."""
    length = len(text)
    if length < 127:
        return bytes([length]) + text
    length -= 127
    head = bytearray([127])
    while length >= 128:
        head.append(length & 127 | 128)
        length >>= 7
    return bytes([*head, length]) + text


def headers_frame(stream_id: int, path: str, flags: int = END_HEADERS) -> bytes:
    """Return the frame that opens a call."""
    return frame(HEADERS, literals(headers_of(path)), flags, stream_id)


def data_frame(stream_id: int, data: bytes, flags: int = 0) -> bytes:
    return frame(DATA, data, flags, stream_id)


def split_frames(data: bytes) -> list[bytes]:
    """Return the whole frames at the start of some bytes."""
    frames = []
    while len(data) >= HEAD_BYTES:
        size = HEAD_BYTES + int.from_bytes(data[:3], "big")
        if len(data) < size:
            break
        frames.append(data[:size])
        data = data[size:]
    return frames


class Peer:
    """A client that sends whatever it is given."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    @classmethod
    @asynccontextmanager
    async def connect(cls, address: str, first: bytes = START, acknowledges: bool = True) -> AsyncIterator[Self]:
        """Connect and send the first bytes. `acknowledges`: the server's settings, which hold from then on."""
        host, port = address.split(":")
        peer = cls(*await asyncio.open_connection(host, int(port)))
        try:
            peer.write(first)
            if acknowledges:
                await peer.receive_kind(SETTINGS)
                peer.write(SETTINGS_ACK)
            yield peer
        finally:
            peer.writer.transport.abort()

    def write(self, data: bytes) -> None:
        self.writer.write(data)

    async def drain(self) -> bool:
        """Wait until the socket takes more. Returns False if the server has closed the connection."""
        try:
            await self.writer.drain()
        except ConnectionError:
            return False
        return not (self.writer.transport.is_closing() or self._reader.at_eof())

    async def receive(self) -> Frame | None:
        """Return the next frame; None if the connection has ended."""
        try:
            head = await self._reader.readexactly(HEAD_BYTES)
            payload = await self._reader.readexactly(int.from_bytes(head[:3], "big"))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        return Frame(head[3], head[4], int.from_bytes(head[5:], "big"), payload)

    async def receive_kind(self, kind: int) -> Frame:
        """Return the next frame of a kind. Acknowledgements are not counted."""
        while received := await self.receive():
            if received.kind == kind and not (kind in (SETTINGS, PING) and received.flags & ACK):
                return received
        raise AssertionError("the connection has ended")

    async def handled(self) -> list[Frame]:
        """Wait until the server has taken all that was sent. Returns the frames that arrived meanwhile."""
        self.write(frame(PING, b"handled?"))
        frames: list[Frame] = []
        while received := await self.receive():
            if received.kind == PING and received.flags & ACK:
                return frames
            frames.append(received)
        raise AssertionError("the connection has ended")

    async def ended(self, stream_id: int) -> list[Frame]:
        """Wait until the server ends a stream. Returns the frames of the stream that arrived meanwhile."""
        frames: list[Frame] = []
        while received := await self.receive():
            if received.stream_id == stream_id:
                frames.append(received)
                is_last = received.kind in (DATA, HEADERS) and received.flags & END_STREAM
                if is_last or received.kind == RST_STREAM:
                    return frames
        raise AssertionError("the connection has ended")

    async def end(self) -> int | None:
        """Wait until the server closes the connection. Returns the error code of its last GOAWAY, which gets lost if
        the server has not read everything.
        """
        code = None
        while received := await self.receive():
            if received.kind == GOAWAY:
                code = received.error_code
        return code


@dataclass
class Response:
    """Of one stream, as far as it has arrived."""

    headers: dict[bytes, bytes] = field(default_factory=dict)
    """With the trailers."""
    body: bytes = b""
    error_code: int | None = None
    """Of the stream's end; None while it is open."""


class Engine:
    """A client of HTTP/2 that follows the protocol, without a socket."""

    def __init__(self, values: dict[int, int] | None = None, is_reading: bool = True) -> None:
        """`values`: its settings. `is_reading`: whether the server may send more when a response's part has arrived."""
        # As strict as the server: a client is not a part of what is tested.
        self.ngh2 = ngh2.Connection(ngh2.Role.CLIENT, ngh2.Configuration(auto_window_update=is_reading))
        self.ngh2.initiate_connection(values or {})
        self.responses: dict[int, Response] = {}

    def request(self, headers: Iterable[Header], body: bytes = b"") -> int:
        """Return the id of a new stream, which ends with the body."""
        stream_id = self.open(headers)
        self.ngh2.send_data(stream_id, body, end_stream=True)
        return stream_id

    def open(self, headers: Iterable[Header]) -> int:
        stream_id = self.ngh2.send_request(headers)
        self.responses[stream_id] = Response()
        return stream_id

    def receive(self, data: bytes) -> None:
        self.ngh2.receive_data(data)
        self._take_events()

    def to_send(self) -> bytes:
        data = self.ngh2.data_to_send()
        self._take_events()  # of streams that ended with these bytes
        return data

    def _take_events(self) -> None:
        for event in self.ngh2.events():
            if isinstance(event, ngh2.ResponseReceived | ngh2.TrailersReceived):
                self.responses[event.stream_id].headers.update(event.headers)
            elif isinstance(event, ngh2.DataReceived):
                self.responses[event.stream_id].body += event.data
            elif isinstance(event, ngh2.StreamClosed):
                self.responses[event.stream_id].error_code = event.error_code


class Client:
    """An `Engine` on a socket, over which other bytes may be sent too, between its frames."""

    def __init__(self, engine: Engine, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.engine = engine
        self._reader = reader
        self.writer = writer

    @classmethod
    @asynccontextmanager
    async def connect(cls, address: str, engine: Engine | None = None) -> AsyncIterator[Self]:
        host, port = address.split(":")
        client = cls(engine or Engine(), *await asyncio.open_connection(host, int(port)))
        try:
            client.flush()
            yield client
        finally:
            client.writer.transport.abort()

    def flush(self) -> None:
        self.writer.write(self.engine.to_send())

    async def response(self, stream_id: int) -> Response:
        """Return the response of a stream when it is complete."""
        response = self.engine.responses[stream_id]
        self.flush()
        while response.error_code is None:
            await self.receive()
        return response

    async def receive(self) -> None:
        """Send what waits, and take the next bytes of the server."""
        self.flush()
        data = b""
        with suppress(ConnectionError):
            data = await self._reader.read(65_536)
        if not data:
            raise AssertionError("the connection has ended")
        self.engine.receive(data)
        self.flush()

    async def call(self, path: str, body: bytes, *more: Header) -> Response:
        """Return the response of a call."""
        return await self.response(self.engine.request(headers_of(path, *more), body))
