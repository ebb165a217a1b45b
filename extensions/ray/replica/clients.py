"""The connections of ingresses to the versions in a replica."""

import asyncio
import time
from collections.abc import Callable, Sequence

import structlog

from extensions.ray.replica.metered_engine import MeteredEngine
from frameworks.core.channel.channel import Channel
from frameworks.core.channel.messages import ProtocolError
from frameworks.engine.process.host.session import ClientSession
from frameworks.engine.process.wire.messages import Free, FromEngine, Loaded, LoadFailed, Ping, Pong, ToEngine

log = structlog.get_logger(__name__)

SILENT_S = 30.0
"""Silence after which a client is considered lost: it pings every few seconds."""


class HostedVersion:
    """One version: being loaded, loaded, or failed. Owned by the event loop."""

    def __init__(self, name: str, path: str, state: object, host: MeteredEngine) -> None:
        """`state`: of its files before the load."""
        self.name = name
        self.path = path
        self.key = (name, path, state)
        self.host = host
        self.reply: Loaded | LoadFailed | None = None
        """The end of the load, for clients; None during the load."""
        self.clients: set[ReplicaClient] = set()
        self.was_closed = False
        """Whether a client has closed it, and none uses it since."""
        self.task: asyncio.Task[None] | None = None


class ReplicaClient:
    """The channel to one ingress, for one version. Owned by the event loop."""

    def __init__(self, version: HostedVersion, name: str, ended: Callable[["ReplicaClient", bool], None]) -> None:
        """`ended`: called once, with whether the client has closed its session."""
        self._name = name
        self.version = version
        self._ended = ended
        self.channel: Channel[ToEngine] = Channel(ToEngine, self._received, self._lost)
        self._session: ClientSession | None = None
        self.heard_s = time.monotonic()
        self._is_open = True
        self.is_served = False
        """Whether it knows the end of the load."""

    def greet(self) -> None:
        """Send the time here, and the reply to the load if it is known."""
        self.send(Pong(0, 0.0, time.perf_counter()))
        if self.version.reply is not None:
            self.serve(self.version.reply)

    def serve(self, reply: Loaded | LoadFailed) -> None:
        """Tell the client of the end of the load, and answer its requests from now on."""
        if self.is_served:
            return
        self.is_served = True
        if isinstance(reply, Loaded):
            host = self.version.host
            self._session = ClientSession(host, self.channel, _ignore_free, False, self._close)
            self.send(reply)
            host.describe(self.channel)
        else:
            self.send(reply)

    def send(self, message: FromEngine) -> None:
        """Send a message, unless the connection has ended."""
        if self.channel.is_open:
            self.channel.send(message)

    def check(self, now_s: float) -> None:
        """Drop a client that has been silent for too long."""
        if now_s - self.heard_s > SILENT_S:
            self.channel.fail(f"the client sent nothing for {SILENT_S:.0f} s")

    def close(self) -> None:
        """End the requests and the connection."""
        self._end(is_closed=False)

    def _received(self, messages: Sequence[ToEngine]) -> None:
        self.heard_s = time.monotonic()
        if self._session is not None:
            self._session.received(messages)
            return
        for message in messages:
            if not isinstance(message, Ping):
                raise ProtocolError(f"expected a Ping before the end of the load, got {type(message).__name__}")
            self.send(Pong(message.number, 0.0, time.perf_counter()))

    def _lost(self, reason: str) -> None:
        log.info("client of replica ends", client=self._name, version=self.version.name, reason=reason)
        self._end(is_closed=False)

    def _close(self) -> None:
        """Close the connection after the last message: the client has closed its session."""
        self._end(is_closed=True)

    def _end(self, is_closed: bool) -> None:
        if not self._is_open:
            return
        self._is_open = False
        if self._session is not None:
            self._session.abort()
        self.channel.close()
        self._ended(self, is_closed)


def _ignore_free(_: Free) -> None:
    """A replica shares no memory with its clients."""
