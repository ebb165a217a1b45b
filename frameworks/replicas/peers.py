"""Hold what the supervisor knows of each connected worker: what it was sent, and what it has."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from frameworks.core.channel.messages import ChannelMessage
from frameworks.core.errors import RoundhouseError
from frameworks.replicas.control import ControlLink
from frameworks.replicas.messages import ModelState


class Signal:
    """Wakes tasks that wait for a condition. Owned by the event loop."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def notify(self) -> None:
        """Let all waiting tasks look at their condition again."""
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds. Raises its errors."""
        while not condition():
            future = asyncio.get_running_loop().create_future()
            self._waiting.add(future)
            try:
                await future
            finally:
                self._waiting.discard(future)


@dataclass(slots=True)
class PeerLoad:
    """One load of a version at one worker.

    `prepare`: number of the Prepare without an answer. `is_held`: the worker has its engine. `is_shown`: the worker has
    been sent it as ready, so it sends Drained. `failure`: of the last Prepare.
    """

    prepare: int | None = None
    is_held: bool = False
    is_shown: bool = False
    failure: RoundhouseError | None = None
    failures: int = 0
    retry: asyncio.TimerHandle | None = None
    references: int = 0


class Peer:
    """One connected worker. Owned by the event loop."""

    def __init__(self, link: ControlLink) -> None:
        self.link = link
        self.sent = 0
        """The last number that was sent."""
        self.applied = 0
        """The last number that was applied."""
        self.shown: dict[str, ModelState] = {}
        """The models as they were sent last, by name."""
        self.loads: dict[int, PeerLoad] = {}
        """By number of the load."""

    @property
    def pending(self) -> set[int]:
        """The numbers of the Prepares without an answer."""
        return {load.prepare for load in self.loads.values() if load.prepare is not None}

    def forget(self, serving: int) -> None:
        """Forget a load."""
        load = self.loads.pop(serving, None)
        if load is not None and load.retry is not None:
            load.retry.cancel()


class Peers:
    """The connected workers. Owned by the event loop."""

    def __init__(self) -> None:
        self.connected: dict[ControlLink, Peer] = {}
        self.signal = Signal()
        """Notified when a worker has applied a change, has drained a load, or is lost."""
        self._number = 0

    def send(self, peer: Peer, make: Callable[[int], ChannelMessage]) -> int:
        """Send the message `make(number)` and return its number, which rises."""
        self._number = peer.sent = self._number + 1
        peer.link.send(make(self._number))
        return self._number

    def is_connected(self, peer: Peer) -> bool:
        """Whether the worker is not lost."""
        return self.connected.get(peer.link) is peer
