"""Failures of an address count in all workers together, and in each alone without the supervisor."""

import pytest

from app.auth.failed_key_limit import FailedKeys, Slowdown
from app.workers.messages import NoteFailedKey
from app.workers.shared.failures import SharedFailures, WorkerFailures
from frameworks.replicas.control import Workers
from tests.app.workers.links import linked
from tests.support.clocks import Clock
from tests.support.loops import in_loop


@in_loop
async def test_failures_of_all_workers_count_together() -> None:
    workers = Workers()
    SharedFailures(workers, FailedKeys(burst=3, clock=Clock()))
    async with linked(workers) as links:
        one, other = [WorkerFailures(await links.connect(number)) for number in range(2)]
        assert [await each.note("10.0.0.1") for each in (one, other, one, other)] == [False, False, False, True]
        assert await one.note("10.0.0.2") is False


@in_loop
async def test_slowdown_counts_alone_without_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    delays: list[float] = []

    async def sleep(delay_s: float) -> None:
        delays.append(delay_s)

    workers = Workers()
    SharedFailures(workers, FailedKeys(burst=0, clock=Clock()))
    async with linked(workers) as links:
        link = await links.connect()
        slowdown = Slowdown(FailedKeys(burst=1, clock=Clock()), 7, WorkerFailures(link).note)
        with monkeypatch.context() as patched:
            patched.setattr("app.auth.failed_key_limit.asyncio.sleep", sleep)
            await slowdown.wait("10.0.0.1")
            assert delays == [7], "the table of the supervisor counts"
            await links.lose(link)
            await slowdown.wait("10.0.0.1")
            assert delays == [7], "the first failure in the table of the worker"
            await slowdown.wait("10.0.0.1")
            assert delays == [7, 7]


@in_loop
async def test_silent_supervisor_leaves_worker_alone() -> None:
    workers = Workers()
    workers.on_connect(lambda link: link.handle(NoteFailedKey, lambda question: None))
    async with linked(workers) as links:
        assert await WorkerFailures(await links.connect(), timeout_s=0.01).note("10.0.0.1") is None
