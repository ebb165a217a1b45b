"""Follow what one replica has loaded, over a connection of its own."""

import asyncio
from collections.abc import Callable, Sequence

import structlog

from extensions.ray.handshake import PROTOCOL_VERSION, Address, Handshake, encode_handshake
from extensions.ray.ingress.link import CONNECT_S, PING_S, SILENT_S
from extensions.ray.tls import client_context
from frameworks.core.channel.channel import Channel
from frameworks.core.channel.messages import ChannelLost, ProtocolError
from frameworks.engine.process.wire.messages import FromEngine, Ping, Pong, ReplicaReport

log = structlog.get_logger(__name__)

_RETRY_S = 0.5


class LoadedVersionReports:
    """Owned by the event loop. Connects again and again from `open` to `close`."""

    def __init__(self, address: Address, client: str, on_report: Callable[[ReplicaReport | None], None]) -> None:
        """`client`: name of this process. `on_report`: called with each report; with None when it is lost."""
        self._address = address
        self._client = client
        self._on_report = on_report
        self._heard_s = 0.0
        self._task: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Begin to follow the replica."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    def close(self) -> None:
        """End the connection."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        address = self._address
        while True:
            try:
                reason = await self._follow()
            except (OSError, TimeoutError, ChannelLost) as error:
                reason = f"{type(error).__name__}: {error}"
            log.info("replica not followed", host=address.host, port=address.port, reason=reason)
            self._on_report(None)
            await asyncio.sleep(_RETRY_S)

    async def _follow(self) -> str:
        """Follow the replica over one connection. Returns why it has ended."""
        loop = asyncio.get_running_loop()
        over: asyncio.Future[str] = loop.create_future()
        channel: Channel[FromEngine] = Channel(FromEngine, self._received, over.set_result)
        address = self._address
        try:
            async with asyncio.timeout(CONNECT_S):
                transport, _ = await loop.create_connection(
                    lambda: channel, address.host, address.port, ssl=client_context()
                )
            transport.write(
                encode_handshake(Handshake(PROTOCOL_VERSION, address.secret, self._client, "", "", follows=True))
            )
            self._heard_s = loop.time()
            number = 0
            while not over.done():
                number += 1
                channel.send(Ping(number))
                due_s = loop.time() + PING_S
                await asyncio.wait([over], timeout=PING_S)
                # A process that was stopped has not read what the replica has sent.
                if loop.time() - self._heard_s > SILENT_S and loop.time() < due_s + PING_S:
                    return f"it sent nothing for {SILENT_S:.0f} s"
            return over.result()
        finally:
            channel.close()

    def _received(self, messages: Sequence[FromEngine]) -> None:
        self._heard_s = asyncio.get_running_loop().time()
        for message in messages:
            if isinstance(message, ReplicaReport):
                self._on_report(message)
            elif not isinstance(message, Pong):
                raise ProtocolError(f"expected ReplicaReport, got {type(message).__name__}")
