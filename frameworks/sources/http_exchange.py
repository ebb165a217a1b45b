"""Send one HTTP request and open its response, with limits in time and bytes, redirects, TLS and proxies.

Redirects lead to https only, never from a public host to a private one, and never carry a token to another host.
"""

import io
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, quote, urljoin, urlsplit

from frameworks.core.errors import InvalidModel, SourceUnavailable
from frameworks.sources.connections import Authorities, connect, is_loopback, port_of, shown, split

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

WINDOW_S = 60.0
"""A response must bring MIN_BYTES_PER_S on average over each window."""
MIN_BYTES_PER_S = 1024
MAX_HEAD_BYTES = 1 << 20
MAX_REDIRECTS = 5
CHUNK_BYTES = 1 << 18

_REDIRECTS = (301, 302, 303, 307, 308)
_LOCATION_CHARACTERS = "%/:=&?~#+!$,;'@()*[]"


class Exchange:
    """A response whose head has been read. `url`: after redirects. `headers`: by lower-case name."""

    def __init__(self, url: str, response: HTTPResponse, reader: "_TimedReader") -> None:
        self.url = url
        self.status: int = response.status
        self.reason = response.reason
        self.headers = {name.lower(): value for name, value in response.headers.items()}
        self._response = response
        self._reader = reader

    def chunks(self, max_bytes: int) -> Iterator[bytes]:
        """Yield the body. Ends early where the connection ends early; raises OSError and HTTPException.

        The caller stops after `max_bytes`; the frames of a chunked body may double the bytes on the connection.
        """
        self._reader.expect(2 * max_bytes + MAX_HEAD_BYTES)
        while chunk := self._response.read1(CHUNK_BYTES):
            yield chunk

    def close(self) -> None:
        """Close the connection, whether the body was read or not."""
        self._response.close()
        self._reader.disconnect()


def open_url(
    method: str,
    url: str,
    headers: Mapping[str, str],
    authorities: Authorities,
    allows_plain: bool = False,
    window_s: float = WINDOW_S,
) -> Exchange:
    """Send a request, follow redirects and return the response of any other status.

    `allows_plain`: whether `url` may be http on another host than loopback. Raises SourceUnavailable and InvalidModel.
    """
    first = split(url)
    _check_scheme(first, first if allows_plain else None)
    is_public = False
    for _ in range(MAX_REDIRECTS + 1):
        parts = split(url)
        own = headers if _origin(parts) == _origin(first) else _without_secrets(headers)
        try:
            connected, is_global = connect(parts, is_public, authorities)
            exchange = _exchange(method, url, own, connected, window_s)
        except (OSError, HTTPException, UnicodeError) as error:
            raise unavailable(url, error) from error
        location = exchange.headers.get("location")
        if exchange.status not in _REDIRECTS or not location:
            return exchange
        exchange.close()
        url = _joined(url, location)
        _check_scheme(split(url), parts)
        is_public = is_public or is_global
    raise InvalidModel(f"{shown(url)}: expected at most {MAX_REDIRECTS} redirects, got more; give the last address")


def unavailable(url: str, error: Exception | str, retry_after_s: float | None = None) -> SourceUnavailable:
    """Return the error for a server that does not answer."""
    reason, remedy = _reason_of(error), "check the network"
    if isinstance(error, ssl.SSLCertVerificationError):
        remedy = "set SSL_CERT_FILE to a file with its authority"
    message = f"expected a complete answer, got {reason}; {remedy} and load the model again"
    return SourceUnavailable(f"{shown(url)}: {message}", retry_after_s)


def _reason_of(error: Exception | str) -> str:
    match error:
        case ssl.SSLCertVerificationError():
            return f"a certificate that is not trusted ({error.verify_message})"
        case ConnectionRefusedError():
            return "no connection: nothing listens there"
        case socket.gaierror():
            return "a host name that is not known"
    return str(error)[:200] or type(error).__name__


class _TimedReader(io.RawIOBase):
    """Receive from a socket with a minimum rate and a maximum count of bytes.

    Only the time in `recv` counts: a slow disk does not end a download.
    """

    def __init__(self, connected: socket.socket, window_s: float) -> None:
        self._socket = connected
        self._window_s = window_s
        self.expect(MAX_HEAD_BYTES)

    def expect(self, max_bytes: int) -> None:
        """Begin a window. `max_bytes`: more from here on are an error."""
        self._allowed = max_bytes
        self._waited_s = 0.0
        self._window_bytes = 0

    def makefile(self, _mode: str) -> io.BufferedReader:
        """Return a buffered reader, as a socket does for HTTPResponse."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        if self._allowed <= 0:
            raise ConnectionError("more bytes than it announced")
        while True:
            self._socket.settimeout(max(self._window_s - self._waited_s, 0.001))
            started = time.monotonic()
            try:
                count = self._socket.recv_into(buffer)
            except TimeoutError:
                count = -1
            self._waited_s += time.monotonic() - started
            self._window_bytes += max(count, 0)
            self._allowed -= max(count, 0)
            if count < 0 or self._waited_s >= self._window_s:
                self._end_window()
            if count >= 0:
                return count

    def disconnect(self) -> None:
        self._socket.close()

    def _end_window(self) -> None:
        if self._window_bytes < MIN_BYTES_PER_S * self._window_s:
            raise TimeoutError(f"{self._window_bytes} bytes in {self._window_s:.0f} s")
        self._waited_s = 0.0
        self._window_bytes = 0


def _exchange(method: str, url: str, headers: Mapping[str, str], connected: socket.socket, window_s: float) -> Exchange:
    """Send the request and read the head of the response. An error closes the socket."""
    parts = urlsplit(url)
    connection = HTTPConnection(parts.hostname or "", port_of(parts))
    # Left out of the Host header. HTTPSConnection would load the authorities again.
    connection.default_port = 443 if parts.scheme == "https" else 80
    connection.sock = connected
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    reader = _TimedReader(connected, window_s)
    try:
        connection.request(method, target, headers={"User-Agent": "roundhouse", "Connection": "close", **headers})
        response = HTTPResponse(reader, method=method)  # type: ignore[arg-type]  # it takes `makefile` only
        response.begin()
        return Exchange(url, response, reader)
    except BaseException:
        connected.close()
        raise


def _joined(url: str, location: str) -> str:
    """Return the URL that a redirect names."""
    try:
        return urljoin(url, quote(location, safe=_LOCATION_CHARACTERS))
    except ValueError:
        raise InvalidModel(f"{shown(url)}: expected a redirect to a URL; check the web server") from None


def _origin(parts: SplitResult) -> tuple[str, str | None, int]:
    return parts.scheme, parts.hostname, port_of(parts)


def _check_scheme(parts: SplitResult, allowed_by: SplitResult | None) -> None:
    """Raise InvalidModel for anything but https, http on loopback, and http on the host that `allowed_by` names."""
    if parts.scheme == "https":
        return
    are_loopback = is_loopback(parts) and (allowed_by is None or is_loopback(allowed_by))
    may_be_plain = allowed_by is None or allowed_by.scheme == "http"
    is_same_host = allowed_by is not None and parts.hostname == allowed_by.hostname
    if parts.scheme == "http" and may_be_plain and (are_loopback or is_same_host):
        return
    raise InvalidModel(f"{shown(parts.geturl())}: expected https, got {parts.scheme[:16]}; use an address with https")


def _without_secrets(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in ("authorization", "cookie")}
