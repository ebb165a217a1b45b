"""Start the workers, replace those that end, and drain them at the end of the server."""

import asyncio
import errno
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import structlog

from app.http.listener.sockets import HttpSockets
from app.observability.worker_counts import WorkerCounts
from app.workers.fork_server import ForkServer
from app.workers.messages import DrainWorker, WorkerReady, messages_from_worker
from frameworks.core.backoff import RestartBackoff
from frameworks.core.channel.descriptors import socket_pair
from frameworks.engine.process.exit_reason import ExitReason
from frameworks.models.replicas.control import ControlLink, Workers

log = structlog.get_logger(__name__)

_END_S = 5.0
"""How long a worker may take to end after its drain timeout, before it is killed."""


# A start is a fork that takes about 50 ms, but a worker that is missing costs its share of the server. The delays are
# therefore shorter than those of engine processes, which load a model. At the longest delay a worker that ends in every
# start takes 0.5 % of a CPU, and its log lines stay few.
_DELAYS_S = (0.0, 1.0, 2.0, 4.0, 8.0, 10.0)
# A worker that cannot work ends in its start or in its first requests, long before.
_STABLE_S = 10.0


@dataclass(slots=True)
class _Worker:
    """`link`, `pid`: of its process; None and 0 while there is none."""

    number: int
    link: ControlLink | None = None
    pid: int = 0
    is_ready: bool = False
    replacement: RestartBackoff = field(default_factory=lambda: RestartBackoff(delays_s=_DELAYS_S, stable_s=_STABLE_S))
    timer: asyncio.TimerHandle | None = None


class Supervision:
    """Owns the worker processes. Owned by the event loop."""

    def __init__(
        self,
        fork_server: ForkServer,
        workers: Workers,
        http: HttpSockets,
        counts: WorkerCounts,
        release: Callable[[int], None],
    ) -> None:
        """`http`: one socket for each worker. `release(number)`: drops all that a worker has counted in shared memory,
        after its end.
        """
        self._fork_server = fork_server
        self._links = workers
        self._http = http
        self._workers = [_Worker(number) for number in range(len(http.sockets))]
        self._counts = counts
        self._release = release
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_draining = False
        self._changed = asyncio.Event()
        self.all_ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when all workers have been ready once."""
        self.fork_server_ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the fork server has ended, and all workers with it: none can be replaced."""
        counts.running = 0

    def start(self) -> None:
        """Start all workers."""
        self._fork_server.watch(self.forked, self.ended, self.fork_server_lost)
        for worker in self._workers:
            self._start(worker)

    async def drain(self, timeout_s: float) -> None:
        """Let all workers answer the requests in progress, and end; kill those that do not end in time."""
        self._is_draining = True
        for worker in self._workers:
            if worker.timer is not None:
                worker.timer.cancel()
            if worker.link is not None:
                worker.link.send(DrainWorker(timeout_s))
        if not await self._all_ended(timeout_s + _END_S):
            for worker in self._workers:
                self._kill(worker)
            await self._all_ended(_END_S)

    def kill(self, number: int) -> None:
        """End a worker at once; it is replaced."""
        self._kill(self._workers[number])

    def forked(self, number: int, pid: int) -> None:
        """Note that a worker was started."""
        worker = self._workers[number]
        worker.pid = pid
        if worker.link is not None:
            worker.link.pid = pid
            if worker.link.lost.done():
                self._kill(worker)

    def ended(self, number: int, pid: int, returncode: int) -> None:
        """Note that a worker has ended, or with `pid` 0 that it could not be forked. As of ForkServer.watch."""
        worker = self._workers[number]
        if pid:
            reason = ExitReason.of(returncode, None, "")
            label, detail = reason.label, reason.detail
        else:
            label, detail = "not_forked", errno.errorcode.get(returncode, str(returncode))
        self._counts.running -= worker.is_ready
        worker.pid, worker.is_ready = 0, False
        if worker.link is not None:
            worker.link.close()
            worker.link = None
        self._release(number)
        self._changed.set()
        if not self._is_draining:
            worker.replacement.crashed()
            delay_s = worker.replacement.delay_s
            self._counts.restarts[label] += 1
            if delay_s:
                self._http.pause(number)
            log.error("worker ended", worker=number, worker_pid=pid, reason=detail, restart_in_s=delay_s)
            worker.timer = asyncio.get_running_loop().call_later(delay_s, self._start, worker)

    def fork_server_lost(self) -> None:
        """Note that all workers have ended with the fork server."""
        # The end of each worker is not reported any more.
        for worker in self._workers:
            worker.pid = 0
        self._changed.set()
        if not self._is_draining:
            log.error("the fork server has ended, and all workers with it")
            self.fork_server_ended.set_result(None)

    def _start(self, worker: _Worker) -> None:
        if worker.timer is not None:
            worker.timer = None
            self._http.resume(worker.number)
        task = asyncio.get_running_loop().create_task(self._connect(worker))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, worker: _Worker) -> None:
        try:
            control, theirs = socket.socketpair()
            try:
                group, other = socket_pair()
            except OSError:
                control.close()
                theirs.close()
                raise
        except OSError as error:
            self.ended(worker.number, 0, error.errno or errno.EMFILE)
            return
        link = worker.link = ControlLink(worker.number, messages_from_worker())
        link.handle(WorkerReady, lambda _: self._ready(worker))
        with theirs, other:
            await self._links.connect(link, control, group)
            link.lost.add_done_callback(partial(self._lost, worker, link))
            if self._is_draining:
                link.close()
                return
            try:
                self._fork_server.fork(worker.number, theirs, other)
            except OSError as error:
                self.ended(worker.number, 0, error.errno or errno.EPIPE)

    def _ready(self, worker: _Worker) -> None:
        worker.is_ready = True
        worker.replacement.serves()
        self._counts.running += 1
        if not self.all_ready.done() and all(each.is_ready for each in self._workers):
            self.all_ready.set_result(None)
        elif self.all_ready.done():
            log.info("worker replaced", worker=worker.number, worker_pid=worker.pid)

    def _lost(self, worker: _Worker, link: ControlLink, lost: "asyncio.Future[str]") -> None:
        """End a process whose link is lost: it cannot know what changes any more."""
        if worker.link is link and worker.pid and not self._is_draining:
            log.error("worker is ended: its control link is lost", worker=worker.number, reason=lost.result())
            self._kill(worker)

    def _kill(self, worker: _Worker) -> None:
        if worker.pid:
            self._fork_server.kill(worker.pid)

    async def _all_ended(self, timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                while any(worker.pid for worker in self._workers):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True
