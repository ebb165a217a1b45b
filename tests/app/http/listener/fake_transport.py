"""A transport of asyncio without a socket."""

from typing import Any

from app.http.listener.http2.connection import Http2Connection


class FakeTransport:
    """A socket whose client reads when `take` is called. Like asyncio's, it pauses the connection above a limit."""

    def __init__(self) -> None:
        self.is_closed = False
        self.unread = bytearray()
        self.connection: Http2Connection | None = None
        self._limit = 0
        self._is_paused = False

    def open(self, connection: Http2Connection) -> None:
        self.connection = connection
        connection.connection_made(self)  # type: ignore[arg-type]

    def set_write_buffer_limits(self, high: int) -> None:
        self._limit = high

    def get_write_buffer_size(self) -> int:
        return len(self.unread)

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 40_000) if name == "peername" else None

    def is_closing(self) -> bool:
        return self.is_closed

    def write(self, data: bytes) -> None:
        self.unread += data
        if not self._is_paused and len(self.unread) > self._limit:
            self._is_paused = True
            assert self.connection is not None
            self.connection.pause_writing()

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def take(self, size: int | None = None) -> bytes:
        """Return bytes that the client has read."""
        data = bytes(self.unread[:size])
        del self.unread[:size]
        if self._is_paused and len(self.unread) <= self._limit // 4:
            self._is_paused = False
            assert self.connection is not None
            self.connection.resume_writing()
        return data
