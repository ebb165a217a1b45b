"""Listen on the port of a replica: accept connections, check the secret of their handshake, start their sessions."""

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, cast

import structlog

from extensions.ray.handshake import Handshake, take_handshake
from frameworks.core.channel.channel import Channel
from frameworks.core.channel.messages import ProtocolError
from frameworks.engine.process.wire.messages import ToEngine

log = structlog.get_logger(__name__)

MAX_UNKNOWN = 64
"""Bound of the connections that have not sent their handshake."""
HANDSHAKE_S = 10.0
"""Time for the handshake."""

Accept = Callable[[Handshake], Channel[ToEngine]]
"""Return the channel that receives what follows the handshake."""


class ReplicaListener:
    """The port of a replica. Owned by the event loop."""

    def __init__(self, secret: str, accept: Accept) -> None:
        self._secret = secret
        self._accept = accept
        self._unknown: set[_PendingConnection] = set()
        self._server: asyncio.Server | None = None
        self._is_closed = False

    async def open(self, host: str, tls: ssl.SSLContext | None = None) -> int:
        """Listen at any free port; return it. Raises OSError."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _PendingConnection(self), host, 0, ssl=tls)
        return int(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        """Accept no more connections."""
        self._is_closed = True
        if self._server is not None:
            self._server.close()
        for each in list(self._unknown):
            each.refuse("the replica stops")

    def admit(self, connection: "_PendingConnection") -> bool:
        """Count a connection without a handshake. Returns whether there is room for it."""
        if self._is_closed or len(self._unknown) >= MAX_UNKNOWN:
            return False
        self._unknown.add(connection)
        return True

    def forget(self, connection: "_PendingConnection") -> None:
        """Stop counting a connection."""
        self._unknown.discard(connection)

    def hand_over(self, connection: "_PendingConnection", transport: asyncio.Transport, received: bytearray) -> None:
        """Give the connection to its session when its handshake is whole. Raises ProtocolError."""
        handshake = take_handshake(received, self._secret)
        if handshake is None:
            return
        connection.end()
        channel: Any = self._accept(handshake)
        transport.set_protocol(channel)
        channel.connection_made(transport)
        if received:
            channel.data_received(bytes(received))


class _PendingConnection(asyncio.Protocol):
    """A connection that has not sent its whole handshake."""

    def __init__(self, listener: ReplicaListener) -> None:
        self._listener = listener
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if not self._listener.admit(self):
            self._transport.abort()
            return
        self._timer = asyncio.get_running_loop().call_later(HANDSHAKE_S, self.refuse, "no handshake in time")

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        self._received += data
        try:
            self._listener.hand_over(self, self._transport, self._received)
        except ProtocolError as error:
            self.refuse(error.message)

    def connection_lost(self, error: Exception | None) -> None:
        self.end()

    def refuse(self, reason: str) -> None:
        """Close the connection."""
        log.warning("connection to replica refused", reason=reason)
        self.end()
        if self._transport is not None:
            self._transport.abort()

    def end(self) -> None:
        """Stop waiting for the handshake."""
        self._listener.forget(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
