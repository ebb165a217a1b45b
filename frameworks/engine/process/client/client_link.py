"""A connection to an engine process that another process has started and owns."""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Sequence

import structlog

from frameworks.core.channel.messages import ChannelLost
from frameworks.engine.process.client.connection import PROTOCOL, ProcessLink
from frameworks.engine.process.client.process_engine import ProcessEngine
from frameworks.engine.process.link import Loss
from memory.shared_arena import SharedArena

log = structlog.get_logger(__name__)

# A process whose connections have ended is ending itself, and its owner reports why.
_END_S = 5.0


class ClientLink(ProcessLink):
    """Implement Link for a client that is not the owner. Owned by the event loop."""

    def __init__(
        self,
        descriptors: Sequence[int],
        model: str,
        find_loss: Callable[[], Awaitable[Loss]],
        kill: Callable[[str, str], None],
    ) -> None:
        """`descriptors`: of `OwnerLink.attach`, which the link takes over: control socket, arena of requests, arena of
        answers. Call `open` next.

        `find_loss`: waits for the owner's report of why the process has ended; it may wait for ever where the process
        goes on. `kill`: asks the owner to end a process that has broken the protocol, with the label and the reason.
        """
        control, requests, answers = descriptors
        self._socket = socket.socket(fileno=control)
        super().__init__(_attached(requests), _attached(answers))
        self._model = model
        self._find_loss = find_loss
        self._kill = kill
        self._engine: ProcessEngine | None = None
        self._over: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._reporting: asyncio.Task[None] | None = None
        self._is_closed = False

    async def open(self, engine: ProcessEngine) -> None:
        """Connect the channel. From then on messages go to `engine`."""
        self._engine, self._receive = engine, engine.received
        await self._channel.open(self._socket)

    def kill(self, label: str, reason: str) -> None:
        """Ask the owner to end the process. The connection ends with it."""
        self._kill(label, reason)

    def abandon(self, reason: str) -> None:
        """Close the connection; the process ends the requests of this client, and goes on for others."""
        self._shut(reason)

    async def ended(self, within_s: float) -> None:
        """Wait until the process has answered all requests after Close, and close the connection."""
        self._is_closed = True
        await asyncio.wait([self._over], timeout=within_s)
        if not self._over.done():
            log.warning("engine process did not end its connection", model=self._model)
        self._shut("it was closed")

    def _channel_lost(self, reason: str) -> None:
        self._close_connection()
        self._over.set_result(reason)
        if not self._is_closed:
            self._reporting = asyncio.get_running_loop().create_task(self._report_loss(reason))

    async def _report_loss(self, reason: str) -> None:
        """Report why the process has ended, or that only the connection to it has."""
        loss = Loss(PROTOCOL, f"the connection to the engine process ended: {reason}")
        try:
            async with asyncio.timeout(_END_S):
                loss = await self._find_loss()
        except (TimeoutError, ChannelLost):
            pass
        except Exception:
            log.exception("reason of a lost engine process not found", model=self._model)
        if self._engine is not None:
            self._engine.lost(loss)

    def _shut(self, reason: str) -> None:
        self._is_closed = True
        if self._reporting is not None:
            self._reporting.cancel()
        self._close_connection()
        if not self._over.done():
            self._over.set_result(reason)


def _attached(fd: int) -> SharedArena:
    return SharedArena.attach(fd, os.fstat(fd).st_size)
