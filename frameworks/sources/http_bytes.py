"""Read files of a web server: their heads, small documents, and bytes from any offset.

Each method tries once. The store repeats it after SourceUnavailable, with growing delays.
"""

import re
import ssl
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from http.client import HTTPException
from threading import Lock

from frameworks.core.errors import InvalidModel
from frameworks.sources.connections import shown
from frameworks.sources.contract import SourceChanged
from frameworks.sources.http_exchange import WINDOW_S, Exchange, open_url, unavailable

ABSENT = (404, 410)
"""Statuses of a file that does not exist."""

_MAX_RETRY_AFTER_S = 60.0
_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Head:
    """A file's description. `size`: in bytes, None where the server does not say. `headers`: by lower-case name.

    `etag`: the entity tag, else the time of the last change; "" where the server gives neither.
    """

    size: int | None
    etag: str
    headers: Mapping[str, str]


class HttpBytes:
    """Read files of one web server. Every method raises SourceUnavailable and InvalidModel."""

    def __init__(
        self,
        headers: Mapping[str, str] | None = None,
        advice: str = "check the address and the right to read it",
        allows_plain: bool = False,
        window_s: float = WINDOW_S,
    ) -> None:
        """Describe the requests.

        `headers`: of each request; `authorization` is sent to the host of the URL only. `advice`: what a user does
        about a refusal. `allows_plain`: http on any host, else on loopback only. `window_s`: see `http_exchange`.
        """
        self._headers = {"Accept-Encoding": "identity", **(headers or {})}
        self._advice = advice
        self._allows_plain = allows_plain
        self._window_s = window_s
        # Loading the certificate authorities takes 36 ms: once for all threads of a fetch.
        self._load_authorities = cache(ssl.create_default_context)
        self._lock = Lock()

    def head(self, url: str, absent: Collection[int] = ABSENT) -> Head | None:
        """Describe a file; None where the status is one of `absent`. Servers without HEAD are asked with GET."""
        exchange = self._open("HEAD", url)
        if exchange.status in (405, 501):
            exchange.close()
            exchange = self._open("GET", url)
        with closing(exchange):
            if exchange.status in absent:
                return None
            self._check_status(url, exchange, (200,))
            return Head(_length(exchange), validator(exchange.headers), exchange.headers)

    def document(self, url: str, max_bytes: int, absent: Collection[int] = ABSENT) -> bytes | None:
        """Return a small file; None where the status is one of `absent`. A larger one is an InvalidModel."""
        exchange = self._open("GET", url)
        with closing(exchange):
            if exchange.status in absent:
                return None
            self._check_status(url, exchange, (200,))
            length = _length(exchange)
            body = bytearray()
            for chunk in _chunks(url, exchange, max_bytes):
                body += chunk
                if len(body) > max_bytes:
                    break
            if len(body) > max_bytes or (length or 0) > max_bytes:
                raise InvalidModel(f"{shown(url)}: expected at most {max_bytes} bytes, got more; check the address")
            if length is not None and len(body) != length:
                raise unavailable(url, f"{len(body)} of {length} bytes")
            return bytes(body)

    def read(self, url: str, size: int, offset: int = 0, etag: str | None = None) -> Iterator[bytes]:
        """Yield the bytes of a file of `size` bytes from `offset` on. Closing the iterator closes the connection.

        `etag`: the validator that the response must have; None: not compared. Raises SourceChanged where the server
        has another size or etag, or no such file any more.
        """
        exchange = self._open("GET", url, {"Range": f"bytes={offset}-"} if offset else {})
        with closing(exchange):
            skipped = self._check_part(url, exchange, size, offset, etag)
            position = offset - skipped
            for chunk in _chunks(url, exchange, size):
                piece = chunk[max(offset - position, 0) : size - position]
                position += len(chunk)
                if piece:
                    yield piece
                if position >= size:
                    return
            if position < size:
                raise unavailable(url, f"{position} of {size} bytes")

    def _authorities(self) -> ssl.SSLContext:
        with self._lock:
            return self._load_authorities()

    def _open(self, method: str, url: str, headers: Mapping[str, str] | None = None) -> Exchange:
        sent = {**self._headers, **(headers or {})}
        return open_url(method, url, sent, self._authorities, self._allows_plain, self._window_s)

    def _check_part(self, url: str, exchange: Exchange, size: int, offset: int, etag: str | None) -> int:
        """Return the bytes before `offset` that the response repeats: servers may ignore a range."""
        if exchange.status in (*ABSENT, 416):
            raise SourceChanged(f"{shown(url)}: got {exchange.status}")
        self._check_status(url, exchange, (200, 206) if offset else (200,))
        if etag is not None and validator(exchange.headers) != etag:
            raise SourceChanged(f"{shown(url)}: got another etag")
        if exchange.status == 200:
            if _length(exchange) not in (None, size):
                raise SourceChanged(f"{shown(url)}: expected {size} bytes, got {_length(exchange)}")
            return offset
        found = _RANGE.fullmatch(exchange.headers.get("content-range", ""))
        if found is None or int(found[1]) != offset:
            raise unavailable(url, f'the range "{exchange.headers.get("content-range", "")[:80]}"')
        if int(found[3]) != size:
            raise SourceChanged(f"{shown(url)}: expected {size} bytes, got {found[3]}")
        return 0

    def _check_status(self, url: str, exchange: Exchange, expected: Collection[int]) -> None:
        # The hub gives its reason in a header.
        status, reason = exchange.status, (exchange.headers.get("x-error-message") or exchange.reason)[:200]
        if status in (408, 425, 429) or status >= 500:
            raise unavailable(url, f"{status} {reason}", _retry_after_s(exchange.headers))
        if status not in expected:
            raise InvalidModel(f"{shown(url)}: expected a file, got {status} {reason}; {self._advice}")
        if exchange.headers.get("content-encoding", "identity").lower() != "identity":
            raise InvalidModel(f"{shown(url)}: expected a file as it is, got a compressed one; check the web server")


def validator(headers: Mapping[str, str]) -> str:
    """Return the text that changes with the content: ETag, else Last-Modified, else ""."""
    return (headers.get("etag") or headers.get("last-modified") or "")[:512]


def _chunks(url: str, exchange: Exchange, max_bytes: int) -> Iterator[bytes]:
    try:
        yield from exchange.chunks(max_bytes)
    except (OSError, HTTPException) as error:
        raise unavailable(url, error) from error


def _length(exchange: Exchange) -> int | None:
    """Return the size that the response states for the whole file."""
    text = exchange.headers.get("content-length", "")
    chunked = "transfer-encoding" in exchange.headers
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 and not chunked else None


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of Retry-After, which is a count or a date, at most _MAX_RETRY_AFTER_S."""
    text = headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:9]), _MAX_RETRY_AFTER_S)
    try:
        delay = (parsedate_to_datetime(text).astimezone(UTC) - datetime.now(UTC)).total_seconds()
    except (ValueError, OverflowError):
        return None
    return min(max(delay, 0.0), _MAX_RETRY_AFTER_S)
