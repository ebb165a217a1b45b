"""Serve an HTTP connection over TLS: handshake, decrypted bytes for the protocol, encrypted bytes for the socket.

The event loop's own TLS transport takes one context for all connections, encrypts a whole body at once, and does not
report what the socket's buffer holds. Here each connection takes the current context, and its buffers are counted.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from app.auth.client_certificates import certificate_names
from app.auth.tls import ServerTls
from app.http.listener.clocks import CERTIFICATE_NAMES, MAX_CONNECTIONS, TLS_HANDSHAKE, Connections
from frameworks.scheduling.byte_limit import UNCOUNTED_BYTES

_RECORD_BYTES = 16 * 1024
_CHUNK_BYTES = 64 * 1024
# Encrypting this much takes less than a millisecond; other connections are served before the rest.
_BYTES_PER_TURN = 8 * _CHUNK_BYTES
_PLAIN_HTTP = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: close\r\n"
    b"content-length: 63\r\n\r\nscheme: expected https on this port, got http; use https://...\n"
)


def tls_protocol(
    make_protocol: Callable[..., asyncio.Protocol], tls: ServerTls, limits: Connections
) -> Callable[..., "TlsConnection"]:
    """Return the `http` class for uvicorn.Config: connections of `make_protocol`, which gets the protocol that ALPN has
    chosen and uvicorn's parts, over TLS.
    """

    def make_connection(**parts: Any) -> TlsConnection:
        return TlsConnection(
            lambda chosen: make_protocol(chosen, **parts), parts["server_state"].connections, tls.context, limits
        )

    return make_connection


class TlsConnection(asyncio.Protocol, asyncio.Transport):
    """The protocol of the TCP connection, and the transport of the HTTP protocol above.

    The HTTP protocol is made when the handshake is complete. Until then this object counts as an open connection.
    """

    def __init__(
        self,
        make_protocol: Callable[[str | None], asyncio.Protocol],
        connections: set[Any],
        context: ssl.SSLContext,
        limits: Connections,
    ) -> None:
        """`connections`: holds it during the handshake. `context`: the files may change at any time; this connection
        keeps what it started with.
        """
        super().__init__()
        self._make_protocol = make_protocol
        self._connections = connections
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._context = context
        self._app: asyncio.Protocol | None = None
        self._timer: asyncio.TimerHandle | None = None
        # Bytes that wait for the socket, not encrypted yet.
        self._unsent: deque[memoryview] = deque()
        self._unsent_bytes = 0
        self._high_bytes = UNCOUNTED_BYTES
        self._is_tcp_full = self._is_app_paused = self._is_closing = self._is_sending = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._tcp = transport
        limits = self._limits
        self._connections.add(self)
        if not limits.accept():
            # A response would need the handshake, which costs more than many requests.
            limits.closed[MAX_CONNECTIONS] += 1
            self.abort()
            return
        self._tls = self._context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._timer = self._loop.call_later(limits.bounds.header_timeout_s, self._end_late_handshake)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_closing = True
        self._drop_unsent()
        if self._app is not None:
            self._app.connection_lost(exc)
            return
        self._end_handshake()
        self._limits.forget()

    def data_received(self, data: bytes) -> None:
        if self._is_closing:
            return
        self._incoming.write(data)
        if self._app is None and not self._shake_hands():
            return
        self._read()

    def eof_received(self) -> bool:
        """End the connection when all is sent, as without TLS. HTTP's framing shows a message that was cut off."""
        if self._app is not None and not self._is_closing:
            self._app.eof_received()
            self.close()
        return bool(self._unsent)

    def pause_writing(self) -> None:
        self._is_tcp_full = True
        self._pause_app()

    def resume_writing(self) -> None:
        self._is_tcp_full = False
        self._send_unsent()

    def _shake_hands(self) -> bool:
        """Continue the handshake with what has arrived. Returns whether it is complete."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return False
        except ssl.SSLError as error:
            self._refuse_handshake(error)
            return False
        self._flush()
        self._end_handshake()
        self._names = certificate_names(self._tls.getpeercert())
        self._limits.forget()  # the protocol counts itself
        self._app = self._make_protocol(self._tls.selected_alpn_protocol())
        self._app.connection_made(self)
        return True

    def _refuse_handshake(self, error: ssl.SSLError) -> None:
        self._limits.closed[TLS_HANDSHAKE] += 1
        self._flush()  # the alert says why
        if error.reason == "HTTP_REQUEST":
            self._tcp.write(_PLAIN_HTTP)
        # The timer ends the connection of a client that does not read the alert.
        self._is_closing = True
        self._tcp.close()

    def _end_late_handshake(self) -> None:
        if not self._is_closing:
            self._limits.closed[TLS_HANDSHAKE] += 1
        self.abort()

    def _end_handshake(self) -> None:
        self._connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def shutdown(self) -> None:
        """End a handshake: the server stops. uvicorn calls it for all connections."""
        self.abort()

    def _read(self) -> None:
        """Decrypt all that has arrived, and hand it over at once."""
        incoming, tls = self._incoming, self._tls
        parts: list[bytes] = []
        is_end = False
        try:
            while incoming.pending or not parts or tls.pending():
                part = tls.read(_RECORD_BYTES)
                if not part:
                    is_end = True
                    break
                parts.append(part)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:
            self._flush()
            self.abort()
            return
        if self._outgoing.pending:
            self._flush()  # the response to a key update
        if parts and not self._is_closing:
            assert self._app is not None
            self._app.data_received(parts[0] if len(parts) == 1 else b"".join(parts))
        if is_end:
            self.eof_received()

    def pause_reading(self) -> None:
        self._tcp.pause_reading()

    def resume_reading(self) -> None:
        if not self._is_closing:
            self._tcp.resume_reading()

    def is_reading(self) -> bool:
        return self._tcp.is_reading()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_closing:
            return
        if not self._unsent and len(data) <= _CHUNK_BYTES:
            self._encrypt(data)
            return
        self._unsent.append(memoryview(data))
        self._unsent_bytes += len(data)
        self._send_unsent()

    def _encrypt(self, data: bytes | bytearray | memoryview) -> None:
        if data:
            try:
                self._tls.write(data)
            except ssl.SSLError:
                self.abort()
                return
            self._tcp.write(self._outgoing.read())

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._tcp.write(self._outgoing.read())

    def _send_unsent(self) -> None:
        """Encrypt and send until the socket is full, with a bound for each turn of the event loop."""
        if self._is_sending:
            return
        self._is_sending = True
        self._turn()

    def _turn(self) -> None:
        left = _BYTES_PER_TURN
        while self._unsent and left > 0 and not self._is_tcp_full:
            part = self._unsent[0]
            chunk = part[:_CHUNK_BYTES]
            if len(chunk) == len(part):
                self._unsent.popleft()
            else:
                self._unsent[0] = part[_CHUNK_BYTES:]
            self._unsent_bytes -= len(chunk)
            left -= len(chunk)
            self._encrypt(chunk)
        if self._unsent and not self._is_tcp_full:
            self._loop.call_soon(self._turn)
            if self._unsent_bytes > self._high_bytes:
                self._pause_app()
            return
        self._is_sending = False
        if not self._unsent and self._is_closing:
            self._finish()
        elif not self._unsent and not self._is_tcp_full:
            self._resume_app()

    def _pause_app(self) -> None:
        if not self._is_app_paused and self._app is not None:
            self._is_app_paused = True
            self._app.pause_writing()

    def _resume_app(self) -> None:
        if self._is_app_paused and self._app is not None:
            self._is_app_paused = False
            self._app.resume_writing()

    def get_write_buffer_size(self) -> int:
        return self._unsent_bytes + self._tcp.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high_bytes = high if high is not None else _CHUNK_BYTES
        self._tcp.set_write_buffer_limits(high, low)

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        """Close the connection when all is sent."""
        if self._is_closing:
            return
        self._is_closing = True
        if not self._tcp.is_closing():
            self._tcp.pause_reading()
        if not self._unsent:
            self._finish()

    def _finish(self) -> None:
        """Tell the client that no more follows, and close."""
        if self._tcp.is_closing():
            return
        with suppress(ssl.SSLError):  # the client's own end does not matter
            self._tls.unwrap()
        self._flush()
        self._tcp.close()

    def abort(self) -> None:
        self._is_closing = True
        self._drop_unsent()
        self._tcp.abort()

    def _drop_unsent(self) -> None:
        self._unsent.clear()
        self._unsent_bytes = 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "sslcontext":
            return self._context
        if name == CERTIFICATE_NAMES:
            return self._names
        return self._tcp.get_extra_info(name, default)
