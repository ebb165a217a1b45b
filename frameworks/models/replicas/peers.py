"""Hold what the supervisor knows of each connected worker, and connect the workers to the processes of models."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from frameworks.core.channel.messages import ChannelMessage
from frameworks.core.errors import ModelFailed, RoundhouseError
from frameworks.models.replicas.control import ControlLink
from frameworks.models.replicas.messages import ModelState


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


_ASK_AGAIN_S = 2.0


@dataclass(slots=True)
class _WaitingWorker:
    """A worker that waits. `suspects`: number of its requests that may have ended the process."""

    suspects: int
    granted: asyncio.Future[None]


class ConnectionGrants:
    """Grant the workers of one process their connections. Owned by the event loop."""

    def __init__(self, is_up: Callable[[], bool]) -> None:
        """`is_up`: whether the process serves."""
        self._is_up = is_up
        self._asked: dict[Peer, _WaitingWorker] = {}
        self._connected: set[Peer] = set()
        # Were connected when the process was lost, and have not asked again.
        self._expected: set[Peer] = set()
        self._known: set[Peer] = set()
        self._running_suspects: Peer | None = None
        self._give_up: asyncio.TimerHandle | None = None

    async def granted(self, peer: Peer, suspects: int) -> None:
        """Wait until the worker may connect. Raises ModelFailed where the process cannot be started or was closed."""
        granted = asyncio.get_running_loop().create_future()
        self._asked[peer] = _WaitingWorker(suspects, granted)
        self._expected.discard(peer)
        self._connected.discard(peer)
        if self._running_suspects is peer:
            self._running_suspects = None
        self._advance()
        try:
            await granted
        except asyncio.CancelledError:
            self._withdraw(peer, granted)
            raise

    def was_connected(self, peer: Peer) -> bool:
        """Whether the worker has been connected to this process, or to one before it."""
        return peer in self._known

    def started(self) -> None:
        """Note that the process serves. Workers that do not ask again are waited for during 2 s."""
        self._stop_timer()
        if self._expected:
            self._give_up = asyncio.get_running_loop().call_later(_ASK_AGAIN_S, self._wait_no_longer)
        self._advance()

    def lost(self) -> None:
        """Note the end of the process."""
        self._expected |= self._connected
        self._connected.clear()
        self._running_suspects = None
        self._stop_timer()

    def fail(self, error: RoundhouseError) -> None:
        """Fail all workers that wait."""
        asked, self._asked = self._asked, {}
        for each in asked.values():
            if not each.granted.done():
                each.granted.set_exception(error)

    def settled(self, peer: Peer) -> None:
        """Note that all suspects of a worker have an outcome."""
        if self._running_suspects is peer:
            self._running_suspects = None
            self._advance()

    def left(self, peer: Peer) -> None:
        """Forget a worker that is lost, or that needs the process no longer."""
        asked = self._asked.pop(peer, None)
        if asked is not None and not asked.granted.done():
            asked.granted.set_exception(ModelFailed("the worker needs the model no longer"))
        self._known.discard(peer)
        self._drop(peer)

    def close(self) -> None:
        """Fail all workers that wait: the model is closed."""
        self._stop_timer()
        self.fail(ModelFailed("the model was unloaded"))

    def _advance(self) -> None:
        if not self._is_up() or self._expected or self._running_suspects is not None:
            return
        suspicious = next((peer for peer, asked in self._asked.items() if asked.suspects), None)
        if suspicious is not None:
            self._running_suspects = suspicious
            self._grant(suspicious)
            return
        for peer in list(self._asked):
            self._grant(peer)

    def _grant(self, peer: Peer) -> None:
        asked = self._asked.pop(peer)
        self._connected.add(peer)
        self._known.add(peer)
        if not asked.granted.done():
            asked.granted.set_result(None)

    def _withdraw(self, peer: Peer, granted: "asyncio.Future[None]") -> None:
        """Forget a request whose task was cancelled, perhaps after it was granted."""
        asked = self._asked.get(peer)
        if asked is not None and asked.granted is not granted:
            return  # the worker has asked again
        self._drop(peer)

    def _drop(self, peer: Peer) -> None:
        self._asked.pop(peer, None)
        self._connected.discard(peer)
        self._expected.discard(peer)
        if self._running_suspects is peer:
            self._running_suspects = None
        self._advance()

    def _wait_no_longer(self) -> None:
        self._give_up = None
        self._expected.clear()
        self._advance()

    def _stop_timer(self) -> None:
        if self._give_up is not None:
            self._give_up.cancel()
            self._give_up = None
