"""uvicorn's HTTP/1.1 protocol with a bound on what comes before a body, and our own words for what is no HTTP."""

import orjson
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app.observe import request_id, server_timing
from frameworks.types import Timings

MAX_HEAD_BYTES = 64 * 1024
"""Request line and headers together, or trailers; the parser itself would collect them without end."""


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection. Named to uvicorn.Config as its `http` class."""

    _head_bytes = 0
    # Bytes that have come since the parser last gave something on: a header that does not end adds to nothing else.
    _held_bytes = 0

    def data_received(self, data: bytes) -> None:
        self._held_bytes += len(data)
        super().data_received(data)
        if self._held_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._head_bytes = self._held_bytes
            self.send_400_response("")

    def on_message_begin(self) -> None:
        self._head_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._held_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._held_bytes = 0
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
            f"server-timing: {server_timing(Timings()).decode()}\r\n\r\n"
        )
        self.transport.write(head.encode("ascii") + body)
        self.transport.close()

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES:
            # Out of a parser's callback this ends the parsing, and the connection by send_400_response.
            raise ValueError("the head of the request is too long")
