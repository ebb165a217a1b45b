"""The readiness of the server reaches every worker."""

import asyncio

import pytest

from app.inference.lifecycle import Lifecycle
from app.workers import lifecycle as workers_lifecycle
from app.workers.lifecycle import StatusSender, WorkerLifecycle
from app.workers.messages import ServerStatus, StatusNoted, messages_to_worker
from frameworks.core.errors import Draining
from frameworks.models.replicas.control import ControlLink, Workers
from frameworks.models.replicas.messages import Reply
from tests.support.control_links import connect
from tests.support.loops import in_loop, settle, soon, task


class Server(Lifecycle):
    """A server whose readiness tests set."""

    is_ready = False


class Supervisor:
    """Sends the status of a server to its workers."""

    def __init__(self) -> None:
        self.server = Server()
        self.workers = Workers()
        self.sender = StatusSender(self.workers, self.server)
        self.links: list[ControlLink] = []

    async def connect(self, number: int) -> WorkerLifecycle:
        link = ControlLink(number, messages_to_worker())
        lifecycle = WorkerLifecycle(link)
        self.links += [link, await connect(self.workers, link)]
        return lifecycle

    def close(self) -> None:
        for link in self.links:
            link.close()


@in_loop
async def test_new_worker_gets_readiness_at_once() -> None:
    supervisor = Supervisor()
    supervisor.server.is_ready = True
    await supervisor.sender.applied()
    worker = await supervisor.connect(0)
    before = worker.is_ready
    await supervisor.sender.applied()
    assert (before, worker.is_ready) == (False, True)
    supervisor.close()


@in_loop
async def test_applied_changes_reach_all_workers() -> None:
    supervisor = Supervisor()
    workers = [await supervisor.connect(number) for number in range(3)]
    for is_ready in (True, False, True):
        supervisor.server.is_ready = is_ready
        await supervisor.sender.applied()
        assert [worker.is_ready for worker in workers] == [is_ready] * 3
    supervisor.close()


@in_loop
async def test_change_is_found_without_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers_lifecycle, "_POLL_S", 0.0)
    supervisor = Supervisor()
    worker = await supervisor.connect(0)
    polling = task(supervisor.sender.run())
    for is_ready in (True, False):
        supervisor.server.is_ready = is_ready
        await soon(lambda: worker.is_ready == is_ready)  # noqa: B023 - awaited at once
    polling.cancel()
    supervisor.close()


@in_loop
async def test_same_readiness_is_not_sent_again() -> None:
    supervisor = Supervisor()
    link = ControlLink(0, messages_to_worker())
    received: list[bool] = []

    async def note(status: ServerStatus) -> Reply:
        received.append(status.is_ready)
        return StatusNoted(status.id)

    link.answer(ServerStatus, note)
    supervisor.links += [link, await connect(supervisor.workers, link)]
    for is_ready in (False, True, True, True, False):
        supervisor.server.is_ready = is_ready
        await supervisor.sender.applied()
    assert received == [False, True, False]
    supervisor.close()


@in_loop
async def test_lost_worker_holds_no_answer_back() -> None:
    supervisor = Supervisor()
    silent, never = ControlLink(0, messages_to_worker()), asyncio.Event()

    async def hang(status: ServerStatus) -> Reply:
        await never.wait()
        raise AssertionError

    silent.answer(ServerStatus, hang)
    supervisor.links += [silent, await connect(supervisor.workers, silent)]
    waiting = task(supervisor.sender.applied())
    await settle()
    assert not waiting.done()
    silent.close()
    await waiting
    supervisor.close()


@in_loop
async def test_draining_worker_is_not_ready() -> None:
    supervisor = Supervisor()
    worker = await supervisor.connect(0)
    supervisor.server.is_ready = True
    await supervisor.sender.applied()
    worker.check_accepting()
    assert worker.drain_left_s(5.0) == 5.0
    worker.drain()
    assert (worker.is_ready, worker.is_draining) == (False, True)
    with pytest.raises(Draining):
        worker.check_accepting()
    supervisor.close()
