"""Send requests over one persistent HTTP/1.1 connection, one at a time."""

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import urlsplit

import httptools

MAX_HEAD_BYTES = 64 * 1024
MAX_BODY_BYTES = 64 * 1024 * 1024

OnBody = Callable[[bytes], None]


class RequestFailure(Exception):
    """A request without a complete response. `code`: a short name of the reason."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


@dataclass(frozen=True, slots=True)
class Pem:
    """Contents of PEM files, as gRPC takes them. `authorities` None: those of gRPC."""

    authorities: bytes | None = None
    certificate: bytes | None = None
    key: bytes | None = None


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where the server listens. `prefix`: the path of its URL, before every other path. `pem`: TLS of gRPC."""

    host: str
    port: int
    authority: str
    prefix: str
    tls: ssl.SSLContext | None
    pem: Pem | None = None


def address_of(url: str, tls: ssl.SSLContext | None, pem: Pem | None = None) -> ServerAddress:
    """Read a URL. `tls` and `pem`: used for https. Raises ValueError with the remedy."""
    wanted = f'--url: expected an http:// or https:// address, got "{url}"'
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError(f"{wanted} ({error})") from None
    if parts.scheme not in {"http", "https"} or not host or not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError(wanted)
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError("--url: expected scheme, host, port and path, got more; give a key with --api-key")
    is_tls = parts.scheme == "https"
    prefix = parts.path.rstrip("/")
    return ServerAddress(
        host, port or (443 if is_tls else 80), parts.netloc, prefix, *((tls, pem) if is_tls else (None, None))
    )


@dataclass(slots=True)
class Response:
    """A response. `body`: the whole of it, unless it was handed over in parts."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


class Connection(asyncio.Protocol):
    """Parses responses within bounds. Use `connect`."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[Response] | None = None
        self._on_body: OnBody | None = None
        self._response = Response()
        self._parts: list[bytes] = []
        self._received = 0
        self._head_bytes = 0
        self._is_head_complete = False
        self._parser = httptools.HttpResponseParser(self)
        self.is_open = False
        self.is_closed_by_server = False

    @classmethod
    async def connect(cls, address: ServerAddress) -> "Connection":
        """Raises OSError, which includes errors of TLS."""
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(cls, address.host, address.port, ssl=address.tls)
        return connection

    async def send(self, request: bytes, on_body: OnBody | None = None) -> Response:
        """Send a request and return its response. Raises Failure, after which the connection is closed.

        `on_body`: takes the body of a 200 in parts, in place of `Response.body`; it may raise to end the request.
        """
        if self._transport is None or not self.is_open:
            raise RequestFailure("connection_closed")
        self._response, self._parts, self._on_body = Response(), [], on_body
        self._received = self._head_bytes = 0
        self._is_head_complete = False
        self._waiter = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            return await self._waiter
        except BaseException:
            # Also of a time limit: a late response must not be taken for that of the next request.
            self.close()
            raise
        finally:
            self._waiter = None

    def close(self) -> None:
        """Close at once."""
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        # uvloop's transports are not instances of asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        self.is_open = True

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the request, unless the end of the connection is the end of its body."""
        if self.is_open:
            self.is_closed_by_server = True
        self.is_open = False
        if self._waiter is None or self._waiter.done():
            return
        has_length = "content-length" in self._response.headers or "transfer-encoding" in self._response.headers
        if exc is None and self._is_head_complete and not has_length:
            self._complete()
        else:
            failure = RequestFailure("incomplete_response" if self._received else "connection_closed")
            failure.__cause__ = exc
            self._fail(failure)

    def data_received(self, data: bytes) -> None:
        """Parse a part of the response, within the bounds of head and body."""
        if self._waiter is None:
            # A response without a request.
            self.close()
            return
        self._received += len(data)
        if self._received > MAX_BODY_BYTES + MAX_HEAD_BYTES:
            self._fail(RequestFailure("response_too_large"))
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail(RequestFailure("invalid_response"))
        except httptools.HttpParserError as error:
            cause = error.__context__
            self._fail(cause if isinstance(cause, RequestFailure) else RequestFailure("invalid_response"))
        if not self._is_head_complete and self._received > MAX_HEAD_BYTES:
            self._fail(RequestFailure("response_too_large"))

    # The parser's callbacks

    def on_message_begin(self) -> None:
        """Refuse a second response to one request."""
        if self._waiter is None or self._waiter.done():
            self.close()
        self._response.headers.clear()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header; the last one of a name counts."""
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > MAX_HEAD_BYTES:
            raise RequestFailure("response_too_large")
        self._response.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Read the status."""
        self._response.status = self._parser.get_status_code()
        self._is_head_complete = self._response.status >= 200

    def on_body(self, body: bytes) -> None:
        """Keep or hand over a part of the body."""
        if self._on_body is not None and self._response.status == 200:
            self._on_body(body)
        else:
            self._parts.append(body)

    def on_message_complete(self) -> None:
        """Complete the response, unless it was an interim one (1xx)."""
        if self._response.status >= 200:
            if not self._parser.should_keep_alive():
                self.is_closed_by_server = True
                self.close()
            self._complete()

    def _complete(self) -> None:
        self._response.body = b"".join(self._parts)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(self._response)

    def _fail(self, failure: RequestFailure) -> None:
        self.close()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(failure)
