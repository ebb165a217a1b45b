"""Choose between HTTP/1.1 and HTTP/2 by the first bytes of a connection, or over TLS by ALPN."""

import asyncio
from collections.abc import Callable
from typing import Any

from app.http.listener.protocol import BoundedHttpProtocol

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""The first bytes of every client of HTTP/2 (RFC 9113, section 3.4)."""
H2 = "h2"
"""The name of HTTP/2 in ALPN."""


class FirstBytes(asyncio.Protocol):
    """The protocol of a new connection, until its first bytes have arrived.

    It has the clocks and the place of a connection of HTTP/1.1, which nearly all of them are.
    """

    def __init__(self, http: BoundedHttpProtocol, make_http2: Callable[[], asyncio.Protocol]) -> None:
        self._http = http
        self._make_http2 = make_http2
        self._held = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._http.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._http.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        held = self._held + data
        if not held.startswith(_PREFACE[: len(held)]):
            self._hand_over(self._http, held)
        elif len(held) < len(_PREFACE):
            self._held = held
        else:
            self._http.leave()
            http2 = self._make_http2()
            http2.connection_made(self._transport)
            self._hand_over(http2, held)

    def _hand_over(self, protocol: Any, held: bytes) -> None:
        self._transport.set_protocol(protocol)
        if not self._transport.is_closing():
            protocol.data_received(held)

    def eof_received(self) -> None:
        self._http.eof_received()

    def pause_writing(self) -> None:
        self._http.pause_writing()

    def resume_writing(self) -> None:
        self._http.resume_writing()
