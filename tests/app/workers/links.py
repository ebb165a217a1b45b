"""A supervisor and its workers in one event loop, connected by real sockets."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from app.workers.messages import messages_from_worker, messages_to_worker
from frameworks.core.channel.descriptors import socket_pair
from frameworks.models.replicas.control import ControlLink, Workers
from tests.support.loops import settle


class Links:
    """The links of a supervisor's workers, each with both ends."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._ends: list[ControlLink] = []

    async def connect(self, number: int = 0) -> ControlLink:
        """Connect a new worker; return its end."""
        ours, theirs = ControlLink(number, messages_from_worker()), ControlLink(number, messages_to_worker())
        (one, other), (first, second) = socket.socketpair(), socket_pair()
        await theirs.open(other, second)
        await self._workers.connect(ours, one, first)
        self._ends += [ours, theirs]
        return theirs

    async def lose(self, link: ControlLink) -> None:
        """End the connection of a worker; return when both ends know."""
        link.close()
        await asyncio.gather(*(each.lost for each in self._ends if each.number == link.number))

    def close(self) -> None:
        """End all connections."""
        for each in self._ends:
            each.close()


@asynccontextmanager
async def linked(workers: Workers) -> AsyncIterator[Links]:
    """Connect workers within the block. Register all handlers of the supervisor before."""
    links = Links(workers)
    try:
        yield links
    finally:
        links.close()
        await settle()
