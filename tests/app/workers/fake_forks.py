"""A fork server whose workers are objects of the test's event loop, connected by real sockets."""

import asyncio
import itertools
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from app.http.listener.sockets import HttpSockets, listen_for_workers
from app.observability.worker_counts import WorkerCounts
from app.workers.fork_server import ForkServer
from app.workers.messages import DrainWorker, WorkerReady, messages_to_worker
from app.workers.supervision import Supervision
from frameworks.models.replicas.control import ControlLink, Workers
from tests.support.loops import HANGS_AFTER_S, settle, soon


class FakeWorker:
    """The process of a worker."""

    def __init__(self, number: int, pid: int) -> None:
        self.pid = pid
        self.drain_timeouts_s: list[float] = []
        self.ends_by_order = True
        """Whether it ends when it is drained."""
        self.is_alive = True
        self.link = ControlLink(number, messages_to_worker())

    def serve(self) -> None:
        """Report that the worker accepts connections."""
        self.link.send(WorkerReady())


class FakeForkServer(ForkServer):
    """Forks objects instead of processes, and reports their ends as the fork server does."""

    def __init__(self) -> None:
        self.forked: dict[int, list[FakeWorker]] = {}
        """By number of the worker, in the order of their starts."""
        self.killed: list[int] = []
        self.failure = 0
        """The error number of the next forks; 0 for success."""
        self.reports_forks = True
        self._pids = itertools.count(1000)

    def watch(
        self, forked: Callable[[int, int], None], ended: Callable[[int, int, int], None], lost: Callable[[], None]
    ) -> None:
        self._note_forked, self._note_ended, self._note_lost = forked, ended, lost

    def fork(self, number: int, control: socket.socket, descriptors: socket.socket) -> None:
        if self.failure:
            raise OSError(self.failure, "the test refuses it")
        worker = FakeWorker(number, next(self._pids))
        worker.link.handle(DrainWorker, lambda message: self._drain(worker, message.timeout_s))
        self.forked.setdefault(number, []).append(worker)
        loop = asyncio.get_running_loop()
        # The caller closes its own.
        self._opening = loop.create_task(worker.link.open(control.dup(), descriptors.dup()))
        if self.reports_forks:
            loop.call_soon(self._note_forked, number, worker.pid)

    def kill(self, pid: int) -> None:
        self.killed.append(pid)
        for workers in self.forked.values():
            for worker in workers:
                if worker.pid == pid:
                    asyncio.get_running_loop().call_soon(self.end, worker, -signal.SIGKILL)

    def end(self, worker: FakeWorker, returncode: int) -> None:
        """End the process of a worker."""
        if worker.is_alive:
            worker.is_alive = False
            worker.link.close()
            self._note_ended(worker.link.number, worker.pid, returncode)

    def report_forked(self, worker: FakeWorker) -> None:
        """Report the process ID, which may be later than the first messages."""
        self._note_forked(worker.link.number, worker.pid)

    def lose(self) -> None:
        """End the fork server, and all workers with it."""
        for worker in self.alive:
            worker.is_alive = False
            worker.link.close()
        self._note_lost()

    @property
    def alive(self) -> list[FakeWorker]:
        """The workers that have not ended."""
        return [each for workers in self.forked.values() for each in workers if each.is_alive]

    def _drain(self, worker: FakeWorker, timeout_s: float) -> None:
        worker.drain_timeouts_s.append(timeout_s)
        if worker.ends_by_order:
            asyncio.get_running_loop().call_soon(self.end, worker, 0)


class Supervised:
    """A supervision with two workers on real listening sockets."""

    def __init__(self, http: HttpSockets) -> None:
        self.http = http
        self.server = FakeForkServer()
        self.links = Workers()
        self.counts = WorkerCounts()
        self.released: list[int] = []
        self.supervision = Supervision(self.server, self.links, http, self.counts, self.released.append)

    def is_listening(self, number: int) -> bool:
        """Whether the kernel gives connections to the socket of a worker."""
        return bool(self.http.sockets[number].getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))

    async def nth(self, number: int, start: int) -> FakeWorker:
        """Wait for a start of the worker, counted from 0; return its process when it has the connection."""
        await soon(lambda: len(self.server.forked.get(number, [])) > start)
        worker = self.server.forked[number][start]
        await soon(lambda: worker.link.is_open)
        await settle()
        return worker

    async def serving(self) -> list[FakeWorker]:
        """Start the workers; return their processes when all serve."""
        self.supervision.start()
        workers = [await self.nth(number, 0) for number in range(2)]
        for each in workers:
            each.serve()
        await self.supervision.all_ready
        return workers


@asynccontextmanager
async def supervised() -> AsyncIterator[Supervised]:
    """Supervise fake workers within the block."""
    http = listen_for_workers("127.0.0.1", 0, 2)
    whole = Supervised(http)
    try:
        yield whole
    finally:
        for worker in whole.server.alive:
            worker.ends_by_order = True
        await whole.supervision.drain(HANGS_AFTER_S)
        for link in [*whole.links.links.values()]:
            link.close()
        await settle()
        http.close()
