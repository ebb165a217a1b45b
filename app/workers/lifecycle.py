"""Hold the state of the server in a worker, and send it there from the supervisor."""

import asyncio
from contextlib import suppress

from app.inference.lifecycle import Lifecycle
from app.workers.messages import ServerStatus, StatusNoted
from frameworks.core.channel.messages import ChannelLost
from frameworks.models.replicas.control import ControlLink, Workers

_POLL_S = 0.1


class WorkerLifecycle(Lifecycle):
    """The state of the server as the supervisor has sent it, and whether this worker refuses requests."""

    def __init__(self, link: ControlLink) -> None:
        super().__init__()
        self._is_server_ready = False
        link.answer(ServerStatus, self._note)

    @property
    def is_ready(self) -> bool:
        return self._is_server_ready and not self.is_draining

    async def _note(self, status: ServerStatus) -> StatusNoted:
        self._is_server_ready = status.is_ready
        return StatusNoted(status.id)


class StatusSender:
    """Send the readiness of the server to all workers whenever it changes. Owned by the event loop."""

    def __init__(self, workers: Workers, lifecycle: Lifecycle) -> None:
        """Made before the first worker is connected."""
        self._workers = workers
        self._lifecycle = lifecycle
        self._is_ready = lifecycle.is_ready
        self._unconfirmed: set[asyncio.Task[None]] = set()
        workers.on_joined(self._send)

    async def run(self) -> None:
        """Look for changes until cancelled."""
        while True:
            self._send_change()
            await asyncio.sleep(_POLL_S)

    async def applied(self) -> None:
        """Return when all workers have the readiness of now."""
        self._send_change()
        if self._unconfirmed:
            await asyncio.wait(self._unconfirmed)

    def _send_change(self) -> None:
        is_ready = self._lifecycle.is_ready
        if is_ready != self._is_ready:
            self._is_ready = is_ready
            for link in self._workers.links.values():
                self._send(link)

    def _send(self, link: ControlLink) -> None:
        task = link.start(self._ask(link, self._is_ready))
        self._unconfirmed.add(task)
        task.add_done_callback(self._unconfirmed.discard)

    async def _ask(self, link: ControlLink, is_ready: bool) -> None:
        with suppress(ChannelLost):
            await link.ask(lambda number: ServerStatus(number, is_ready))
